"""A store in a local directory: every write is a temporary file, synced, then linked or renamed, then its
folder synced.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

from decurion_ledger.errors import (
    AccessDenied,
    NotFound,
    ReadOnly,
    RootReplaced,
    StoreError,
    StoreFull,
    Unavailable,
)
from decurion_ledger.stores.port import ObjectInfo, Put, Range, check_key

T = TypeVar("T")

_THREADS = 8
_LIST_BATCH = 1000
_TEMPORARY = ".tmp"
_KINDS: dict[int, type[StoreError]] = {
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
    errno.EROFS: ReadOnly,
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
    errno.EFBIG: StoreFull,
}
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST})


class LocalStore:
    """Objects as files under `root`, which is created on the first write.

    Exclusive creation is `link(2)`, which one of any number of processes on one file system wins. Temporary
    files lie in `root/.tmp`; what a killed process leaves there is never read. Blocking calls run in a pool
    of 8 threads. Once written to, the folder must stay the same one: after an unmount the empty mount point
    would otherwise take what belongs behind the log that is gone.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.uri = self.root.as_uri()
        self._identity: tuple[int, int] | None = None
        self._pool = ThreadPoolExecutor(_THREADS, "decurion-local-store")

    async def put_new(self, key: str, data: bytes) -> Put:
        return await self._call(self._put_new, "PUT", key, data)

    async def put(self, key: str, data: bytes) -> None:
        await self._call(self._put, "PUT", key, data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        return await self._call(self._get, "GET", key, range)

    async def head(self, key: str) -> ObjectInfo:
        return await self._call(self._head, "HEAD", key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        found = _walk(self.root, prefix, after)
        while batch := await self._call(_take, "LIST", prefix, found):
            for info in batch:
                yield info

    async def delete(self, key: str) -> None:
        await self._call(self._delete, "DELETE", key)

    async def prune(self, prefix: str) -> None:
        """Remove the folders below `prefix` that hold nothing, and it. Nobody else may write there meanwhile."""
        await self._call(self._prune, "DELETE", prefix.rstrip("/"))

    async def aclose(self) -> None:
        """Waits for the requests that are running, in a thread of its own so that the loop goes on."""
        await asyncio.to_thread(self._pool.shutdown, wait=True)

    async def _call(self, work: Callable[..., T], verb: str, key: str, *arguments: object) -> T:
        if verb != "LIST":
            check_key(key)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, key, *arguments)
        except OSError as e:
            raise _store_error(verb, f"{self.uri}/{key}", e) from e

    def _put_new(self, key: str, data: bytes) -> Put:
        target = self.root / key
        if target.is_file():
            self._check_root()
            # its writer may not have synced the folder yet, and the caller will rely on what it finds
            _sync_folder(target.parent)
            return Put.EXISTS
        temporary = self._written(data)
        try:
            _make_folder(target.parent)
            try:
                os.link(temporary, target)
            except FileExistsError:
                if target.is_dir():
                    raise
                _sync_folder(target.parent)
                return Put.EXISTS
            except OSError:
                # NFS may report failure for a link that was made
                if temporary.stat().st_nlink != 2:
                    raise
            _sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)
        return Put.CREATED

    def _put(self, key: str, data: bytes) -> None:
        target = self.root / key
        temporary = self._written(data)
        try:
            _make_folder(target.parent)
            temporary.replace(target)
            _sync_folder(target.parent)
        finally:
            temporary.unlink(missing_ok=True)

    def _get(self, key: str, range: Range | None) -> bytes:
        with (self.root / key).open("rb") as file:
            if range is None:
                return file.read()
            start, end, _ = slice(*range).indices(os.fstat(file.fileno()).st_size)
            file.seek(start)
            return file.read(max(end - start, 0))

    def _head(self, key: str) -> ObjectInfo:
        status = (self.root / key).stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return ObjectInfo(key, status.st_size, modified=status.st_mtime)

    def _delete(self, key: str) -> None:
        target = self.root / key
        try:
            target.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        _sync_folder(target.parent)

    def _prune(self, prefix: str) -> None:
        for folder, _, _ in os.walk(self.root / prefix, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError as e:
                if e.errno != errno.ENOTEMPTY:
                    raise

    def _check_root(self) -> None:
        """Raises `RootReplaced` when the root is not the folder of the first write."""
        try:
            status = self.root.stat()
        except FileNotFoundError:
            found = None
        else:
            found = (status.st_dev, status.st_ino)
        if self._identity is None:
            self._identity = found
        elif found != self._identity:
            reason = "the folder is gone" if found is None else "another folder is mounted or stands there now"
            raise RootReplaced(f"PUT {self.uri}", reason)

    def _written(self, data: bytes) -> Path:
        """A new temporary file with `data` in it, durable."""
        self._check_root()
        folder = self.root / _TEMPORARY
        temporary = folder / f"{os.getpid()}-{os.urandom(8).hex()}"
        try:
            descriptor = _new_file(temporary)
        except FileNotFoundError:
            _make_folder(folder)
            descriptor = _new_file(temporary)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(descriptor)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def _make_folder(folder: Path) -> None:
    """Creates `folder` and its parents so that they survive a loss of power."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take(_prefix: str, found: Iterator[ObjectInfo]) -> tuple[ObjectInfo, ...]:
    return tuple(islice(found, _LIST_BATCH))


def _walk(root: Path, prefix: str, after: str, folder: str = "") -> Iterator[ObjectInfo]:
    """The objects below `root/folder` in order of their keys; folders that cannot hold one asked for are not
    opened.
    """
    try:
        with os.scandir(root / folder) as found:
            entries = [(f"{folder}{e.name}/" if e.is_dir() else f"{folder}{e.name}", e) for e in found]
    except (FileNotFoundError, NotADirectoryError):
        return
    for key, entry in sorted(entries, key=lambda pair: pair[0]):
        if entry.name.startswith(".") or not (key.startswith(prefix) or prefix.startswith(key)):
            continue
        if key.endswith("/"):
            if after < key or after.startswith(key):
                yield from _walk(root, prefix, after, key)
        elif key > after and key.startswith(prefix):
            try:
                status = entry.stat()
                yield ObjectInfo(key, status.st_size, modified=status.st_mtime)
            except FileNotFoundError:
                continue


def _store_error(verb: str, address: str, e: OSError) -> StoreError:
    request, reason = f"{verb} {address}", e.strerror or str(e)
    if e.errno in _MISSING:
        if verb != "PUT":
            return NotFound(request, "no such object")
        return StoreError(request, f"a file or folder is in the way ({reason})")
    return _KINDS.get(e.errno or 0, Unavailable)(request, reason)

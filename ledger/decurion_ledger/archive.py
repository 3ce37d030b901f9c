"""A run that has ended as one file, for cold storage: a tar of a ledger that holds it alone.

Many small objects are dear to keep and slow to move, one large one is not. The members have the names that they have in
a ledger, in order, without times or owners: the same run gives the same file. Unpacked it is a ledger in a folder,
which needs nothing of this project to be looked at, and `decurion ledger verify` to be proved.
"""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from decurion_ledger.copying import Copied, copy_run
from decurion_ledger.errors import ArchiveUnreadable, BadKey
from decurion_ledger.layout import BLOBS, FORMAT, run_of, run_prefix
from decurion_ledger.stores.local import LocalStore
from decurion_ledger.stores.port import Store, check_key

_MAX_MEMBER = 64 * 1024 * 1024


async def pack_run(
    source: Store, run: str, file: Path, *, progress: Callable[[Copied], None] = lambda copied: None
) -> Copied:
    """Write a closed run into `file`, in place of what is there, once it was copied and verified. With problems there
    is no file. Raises as `copy_run`, or `OSError`.
    """
    folder = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    store = LocalStore(folder)
    try:
        copied = await copy_run(source, run, store, progress=progress)
        if not copied.problems:
            await asyncio.to_thread(_write, folder, run, file)
        return copied
    finally:
        await store.aclose()
        await asyncio.to_thread(_remove, folder)


async def unpack_run(
    file: Path, run: str, target: Store, *, progress: Callable[[Copied], None] = lambda copied: None
) -> Copied:
    """Copy the run in `file` into a store, and verify it there. Raises `ArchiveUnreadable`, or as `copy_run`."""
    folder = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    store = LocalStore(folder)
    try:
        await asyncio.to_thread(_read, file, folder)
        return await copy_run(store, run, target, progress=progress)
    finally:
        await store.aclose()
        await asyncio.to_thread(_remove, folder)


def runs_in(file: Path) -> list[str]:
    """The runs that an archive holds. Raises `ArchiveUnreadable`."""
    try:
        with tarfile.open(file, "r:") as tar:
            return sorted({run for member in tar if (run := run_of(member.name)) is not None})
    except (tarfile.TarError, OSError) as e:
        raise ArchiveUnreadable(str(file), str(e)) from e


def _write(folder: Path, run: str, file: Path) -> None:
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("wb") as opened:
            with tarfile.open(fileobj=opened, mode="w:", format=tarfile.USTAR_FORMAT) as tar:
                for name in _members(folder, run):
                    data = (folder / name).read_bytes()
                    info = tarfile.TarInfo(name)
                    info.size, info.mode = len(data), 0o644
                    tar.addfile(info, io.BytesIO(data))
            opened.flush()
            os.fsync(opened.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _members(folder: Path, run: str) -> Iterator[str]:
    """What a ledger of this run holds; the checks of the store are none of it."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and (name == FORMAT or name.startswith((BLOBS, run_prefix(run)))):
            yield name


def _read(file: Path, folder: Path) -> None:
    """Unpack what a ledger may hold, and nothing else: no link, no device, no name that leads out."""
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse() or member.size > _MAX_MEMBER:
                    raise ArchiveUnreadable(str(file), f"{member.name!r:.80} is no object of a ledger")
                target = folder / check_key(member.name)
                data = tar.extractfile(member)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data.read() if data is not None else b"")
    except (tarfile.TarError, OSError, BadKey) as e:
        raise ArchiveUnreadable(str(file), str(e)) from e


def _remove(folder: Path) -> None:
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in files:
            (Path(parent) / name).unlink()
        for name in folders:
            (Path(parent) / name).rmdir()
    if folder.exists():
        folder.rmdir()

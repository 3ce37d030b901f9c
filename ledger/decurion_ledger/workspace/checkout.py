"""Putting a version onto a disk, and reading back what became of it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from decurion_crds.globs import Globs
from decurion_ledger.errors import BadTree, WorkspaceBusy
from decurion_ledger.workspace.disk import Stamp, listed, make_link, opened, reading, stamp, write_all, writing
from decurion_ledger.workspace.edit import edited, files_of
from decurion_ledger.workspace.objects import CHUNK, LARGE, Objects, chunk_list
from decurion_ledger.workspace.pack import Blob
from decurion_ledger.workspace.tree import Entry, file_name
from decurion_ledger.workspace.upload import Upload
from decurion_ledger.workspace.version import Limits, Version

SLACK_NS = 100_000_000
"""How long after a file's times it may change again without showing it: clocks of file systems tick slowly."""
TRIES = 3
_BATCH = 256
_FICLONE = 0x40049409


@dataclass(slots=True)
class Index:
    """What is known of a folder: each file's stamp and entry, the tree that they make, and when they were read (ns)."""

    root: str
    taken: int
    files: dict[str, tuple[Stamp, Entry]] = field(default_factory=dict)
    links: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scanned:
    """A folder as it was read: its version, and what the next scan starts from. `hashed` files were read."""

    version: Version
    index: Index
    hashed: int


async def checkout(
    objects: Objects,
    version: Version,
    folder: Path,
    *,
    wanted: Globs | None = None,
    read_only: bool = False,
    limits: Limits | None = None,
) -> Index:
    """Put the files of a version, or those that are `wanted`, into `folder`, which is made or is empty.

    Files are clones of those in the cache where the file system has such, else copies; with `read_only` nobody may
    write to them. Raises `BadTree`, `WorkspaceTooLarge`, `BlobCorrupt`,
    `OSError`, or the store's error.
    """
    await objects.learn(version)
    files = await files_of(objects, version.root, limits=limits)
    if wanted is not None:
        files = {path: entry for path, entry in files.items() if wanted.fits(path)}
    await asyncio.to_thread(_make_empty, folder)
    taken = time.time_ns()
    index = Index(version.root if wanted is None else "", taken)
    index.links = {path: entry for path, entry in files.items() if entry.kind == "link"}
    plain = [(path, entry) for path, entry in files.items() if entry.kind != "link"]
    put = _Putter(objects, folder, read_only=read_only)
    for batch in _batches(plain):
        index.files.update(await put.files(batch))
    await asyncio.to_thread(put.links, index.links)
    return index


def _make_empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BadTree(str(folder), "the folder is not empty; name a new one")


def _batches(files: Sequence[tuple[str, Entry]]) -> Iterator[list[tuple[str, Entry]]]:
    """Files that are fetched together: not too many, not too large."""
    batch: list[tuple[str, Entry]] = []
    size = 0
    for path, entry in files:
        if batch and (len(batch) == _BATCH or size + entry.size > LARGE):
            yield batch
            batch, size = [], 0
        batch.append((path, entry))
        size += entry.size
    if batch:
        yield batch


class _Putter:
    """Writes files into one folder."""

    def __init__(self, objects: Objects, folder: Path, *, read_only: bool) -> None:
        self._objects = objects
        self._folder = folder
        self._read_only = read_only
        self._clones = objects.cache is not None

    async def files(self, batch: Sequence[tuple[str, Entry]]) -> dict[str, tuple[Stamp, Entry]]:
        if len(batch) == 1 and self._objects.kind(batch[0][1].ref) == "chunks":
            path, entry = batch[0]
            return {path: (await self._large(path, entry), entry)}
        self._objects.check_sizes(entry for _, entry in batch)
        contents = await self._objects.fetch(entry.ref for _, entry in batch)
        stamps = await asyncio.to_thread(self._small, batch, contents)
        return {path: (stamps[path], entry) for path, entry in batch}

    def _small(self, batch: Sequence[tuple[str, Entry]], contents: Mapping[str, bytes]) -> dict[str, Stamp]:
        found = {}
        with opened(self._folder) as root:
            for path, entry in batch:
                found[path] = self._one(root, path, entry, contents[entry.ref])
        return found

    def _one(self, root: int, path: str, entry: Entry, content: bytes) -> Stamp:
        with writing(root, path, executable=entry.kind == "exec") as descriptor:
            if not self._cloned(descriptor, entry, content):
                write_all(descriptor, content)
            self._close(descriptor, entry)
            return stamp(path, os.fstat(descriptor))

    def _close(self, descriptor: int, entry: Entry) -> None:
        if self._read_only:
            os.fchmod(descriptor, 0o555 if entry.kind == "exec" else 0o444)

    def _cloned(self, descriptor: int, entry: Entry, content: bytes) -> bool:
        """Make the new file a clone of the cached one, where the file system can."""
        cache = self._objects.cache
        if cache is None or not self._clones:
            return False
        cache.put(entry.ref, "file", content)
        try:
            with cache.path(entry.ref, "file").open("rb") as source:
                fcntl.ioctl(descriptor, _FICLONE, source.fileno())
        except FileNotFoundError:
            return False
        except OSError:
            self._clones = False
            return False
        return True

    async def _large(self, path: str, entry: Entry) -> Stamp:
        with opened(self._folder) as root, writing(root, path, executable=entry.kind == "exec") as descriptor:
            async for piece in self._objects.content(entry):
                await asyncio.to_thread(write_all, descriptor, piece)
            self._close(descriptor, entry)
            return stamp(path, os.fstat(descriptor))

    def links(self, links: Mapping[str, Entry]) -> None:
        with opened(self._folder) as root:
            for path, entry in links.items():
                make_link(root, path, entry.ref)


async def scan(
    objects: Objects,
    folder: Path,
    base: Version,
    *,
    index: Index | None = None,
    write: Globs | None = None,
    limits: Limits | None = None,
    now: Callable[[], int] = time.time_ns,
) -> Scanned:
    """The version of what is in `folder` now, made of `base`. Files whose stamp is that of `index` are not read, unless
    they were changed so shortly before that was taken that they may have changed since.

    Whoever writes there must have ended. Raises `BadTree` for what no workspace may hold and for changes outside
    `write`, `WorkspaceTooLarge`, `WorkspaceBusy` for a file that changes while it is read, `OSError`, or the store's
    error.
    """
    bounds, taken = limits or Limits(), now()
    await objects.learn(base)
    stamps, targets = await asyncio.to_thread(listed, folder, bounds)
    known = index or Index("", 0)
    clean = {path: known.files[path] for path, found in stamps.items() if _clean(known, path, found)}
    upload = Upload(objects, base)
    read = _Reader(folder, upload)
    dirty = [(path, found) for path, found in stamps.items() if path not in clean]
    files = {**clean, **await read.files(dirty)}
    links = {path: Entry("link", len(target.encode()), target) for path, target in targets.items()}
    after = {path: entry for path, (_, entry) in files.items()} | links
    before = _entries(known) if known.root == base.root else await files_of(objects, base.root)
    changes: dict[str, Entry | None] = {p: entry for p, entry in after.items() if before.get(p) != entry}
    changes |= dict.fromkeys(before.keys() - after.keys())
    if write is not None:
        for path in sorted(changes):
            if not write.fits(path):
                raise BadTree(path, f"it was changed, and only {write.words} may be written here")
    root = await edited(upload, base.root, changes, limits=bounds) if changes else base.root
    version = await upload.version(root) if changes else base
    return Scanned(version, Index(root, taken, files, links), len(dirty))


def _clean(index: Index, path: str, found: Stamp) -> bool:
    """Whether a file is the one that the index knows, and could not have changed since it was read."""
    known = index.files.get(path)
    return known is not None and known[0] == found and max(found.mtime_ns, found.ctime_ns) + SLACK_NS < index.taken


def _entries(index: Index) -> dict[str, Entry]:
    return {path: entry for path, (_, entry) in index.files.items()} | index.links


class _Reader:
    """Reads files of one folder into an upload."""

    def __init__(self, folder: Path, upload: Upload) -> None:
        self._folder = folder
        self._upload = upload

    async def files(self, dirty: Sequence[tuple[str, Stamp]]) -> dict[str, tuple[Stamp, Entry]]:
        found: dict[str, tuple[Stamp, Entry]] = {}
        small = iter([one for one in dirty if one[1].size <= LARGE])
        while batch := list(islice(small, _BATCH)):
            for path, mark, content in await asyncio.to_thread(self._small, batch):
                name = await self._upload.add_file(content)
                found[path] = (mark, Entry("exec" if mark.executable else "file", len(content), name))
        for path, mark in dirty:
            if mark.size > LARGE:
                found[path] = await self._large(path)
        return found

    def _small(self, batch: Sequence[tuple[str, Stamp]]) -> list[tuple[str, Stamp, bytes]]:
        with opened(self._folder) as root:
            return [(path, *self._one(root, path)) for path, _ in batch]

    def _one(self, root: int, path: str) -> tuple[Stamp, bytes]:
        for _ in range(TRIES):
            with reading(root, path) as descriptor:
                before = stamp(path, os.fstat(descriptor))
                content = _whole(descriptor)
                if stamp(path, os.fstat(descriptor)) == before and len(content) == before.size:
                    return before, content
        raise WorkspaceBusy(path)

    async def _large(self, path: str) -> tuple[Stamp, Entry]:
        for _ in range(TRIES):
            with opened(self._folder) as root, reading(root, path) as descriptor:
                before = stamp(path, os.fstat(descriptor))
                whole, chunks, size = hashlib.sha256(), [], 0
                while piece := await asyncio.to_thread(os.read, descriptor, CHUNK):
                    while len(piece) < CHUNK and (more := await asyncio.to_thread(os.read, descriptor, CHUNK)):
                        piece += more
                    whole.update(piece)
                    size += len(piece)
                    chunks.append((file_name(piece), len(piece)))
                    await self._upload.add(Blob(chunks[-1][0], "file", piece))
                if stamp(path, os.fstat(descriptor)) == before and size == before.size:
                    name = whole.hexdigest()
                    await self._upload.add(chunk_list(name, chunks))
                    return before, Entry("exec" if before.executable else "file", size, name)
        raise WorkspaceBusy(path)


def _whole(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 1024 * 1024):
        pieces.append(piece)
    return b"".join(pieces)

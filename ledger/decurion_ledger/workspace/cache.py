"""A cache of files and folders on the disk of a node: read-only files by hash, the least recently used go first."""

from __future__ import annotations

import os
from pathlib import Path

from decurion_ledger.workspace.pack import ObjectKind
from decurion_ledger.workspace.tree import file_name, tree_name

MAX_CACHED = 4 * 1024 * 1024 * 1024


class Cache:
    """Objects under `folder`, at most `limit` bytes. Nothing is given that does not have the hash that it is asked by:
    what a disk, or somebody, has changed is removed and counts as not there.
    """

    def __init__(self, folder: Path, *, limit: int = MAX_CACHED) -> None:
        self._folder = folder
        self._limit = limit
        self._held: int | None = None

    def path(self, name: str, kind: ObjectKind) -> Path:
        return self._folder / kind / name[:2] / name

    def get(self, name: str, kind: ObjectKind) -> bytes | None:
        path = self.path(name, kind)
        try:
            raw = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not fits(name, kind, raw):
            path.unlink(missing_ok=True)
            return None
        os.utime(path)
        return raw

    def put(self, name: str, kind: ObjectKind, raw: bytes) -> None:
        """Keep an object that has its hash; one that has not is not kept."""
        path = self.path(name, kind)
        if kind == "chunks" or not fits(name, kind, raw) or path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{os.getpid()}-{os.urandom(6).hex()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(raw)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._make_room(len(raw))

    def _make_room(self, added: int) -> None:
        if self._held is None:
            self._held = sum(status.st_size for _, status in self._files())
        else:
            self._held += added
        if self._held <= self._limit:
            return
        for path, status in sorted(self._files(), key=lambda one: one[1].st_mtime_ns):
            if self._held <= self._limit * 9 // 10:
                return
            path.unlink(missing_ok=True)
            self._held -= status.st_size

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self._folder.glob("*/*/*"):
            try:
                found.append((path, path.stat()))
            except FileNotFoundError:
                continue  # another process made room
        return found


def fits(name: str, kind: ObjectKind, raw: bytes) -> bool:
    """Whether these are the bytes of the object `name`. A list of chunks is not known by its own bytes."""
    if kind == "tree":
        return tree_name(raw) == name
    return kind == "chunks" or file_name(raw) == name

"""A workspace that is being changed in memory, within what a node may read and write."""

from __future__ import annotations

from decurion_crds.globs import Globs
from decurion_ledger.errors import OutOfScope, WorkspaceTooLarge
from decurion_ledger.workspace.edit import edited, entry_at, files_of
from decurion_ledger.workspace.names import check_path
from decurion_ledger.workspace.objects import Objects
from decurion_ledger.workspace.tree import Entry
from decurion_ledger.workspace.upload import Upload
from decurion_ledger.workspace.version import Limits, Version


class Draft:
    """Changes on `version`. Nothing of them is seen by others before `commit`.

    `read` and `write` are globs of the paths that may be read and changed; what may be written may be read, too.
    """

    def __init__(
        self, objects: Objects, version: Version, *, read: Globs, write: Globs, limits: Limits | None = None
    ) -> None:
        self._objects = objects
        self.version = version
        self._read = read
        self._write = write
        self._limits = limits or Limits()
        self._changes: dict[str, bytes | None] = {}
        self._modes: dict[str, bool] = {}
        self._written = 0

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    def readable(self, path: str) -> bool:
        return self._read.fits(path) or self._write.fits(path)

    async def read(self, path: str) -> bytes | None:
        """The content of a file, None where there is none. Raises `BadTree`, `OutOfScope`, `BlobCorrupt`."""
        check_path(path)
        if not self.readable(path):
            raise OutOfScope(path, f"this node may read {self._read.words}; add it to its workspace.read")
        if path in self._changes:
            return self._changes[path]
        await self._objects.learn(self.version)
        entry = await entry_at(self._objects, self.version.root, path)
        if entry is None or entry.kind not in ("file", "exec"):
            return None
        return await self._objects.read(entry)

    def write(self, path: str, content: bytes, *, executable: bool | None = None) -> None:
        """Put a file in place of what is at the path. Raises `BadTree`, `OutOfScope`, `WorkspaceTooLarge`."""
        self._check_write(path)
        self._written += len(content)
        if self._written > self._limits.bytes:
            raise WorkspaceTooLarge("bytes", self._written, self._limits.bytes)
        self._changes[path] = content
        if executable is not None:
            self._modes[path] = executable

    def remove(self, path: str) -> None:
        """Remove a file, if there is one. Raises `BadTree`, `OutOfScope`."""
        self._check_write(path)
        self._changes[path] = None

    async def files(self, pattern: Globs | None = None, *, most: int = 100_000) -> list[str]:
        """The paths of the files that may be read and fit `pattern`, sorted, at most `most`. Raises `BlobCorrupt`."""
        await self._objects.learn(self.version)
        found = set(await files_of(self._objects, self.version.root, limits=self._limits))
        found |= {path for path, content in self._changes.items() if content is not None}
        found -= {path for path, content in self._changes.items() if content is None}
        fits = (path for path in sorted(found) if self.readable(path) and (pattern is None or pattern.fits(path)))
        return list(fits)[:most]

    async def commit(self) -> Version:
        """The version with all changes, which the draft then stands on.

        Raises `BadTree` for files that cannot stand side by side, `WorkspaceTooLarge`, `BlobCorrupt`, or the store's
        error.
        """
        if self._changes:
            await self._objects.learn(self.version)
            upload = Upload(self._objects, self.version)
            entries = {path: await self._entry(upload, path) for path in sorted(self._changes)}
            root = await edited(upload, self.version.root, entries, limits=self._limits)
            self.version = await upload.version(root)
            self._changes, self._modes, self._written = {}, {}, 0
        return self.version

    async def _entry(self, upload: Upload, path: str) -> Entry | None:
        content = self._changes[path]
        if content is None:
            return None
        executable = self._modes.get(path)
        if executable is None:
            before = await entry_at(self._objects, self.version.root, path)
            executable = before is not None and before.kind == "exec"
        return Entry("exec" if executable else "file", len(content), await upload.add_file(content))

    def _check_write(self, path: str) -> None:
        check_path(path)
        if not self._write.fits(path):
            may = f"may write {self._write.words}" if self._write.patterns else "may write nothing"
            raise OutOfScope(path, f"this node {may}; add it to its workspace.write")

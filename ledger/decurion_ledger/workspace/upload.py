"""Objects on their way into a new version."""

from __future__ import annotations

from collections.abc import Iterable

from decurion_ledger.workspace.objects import CHUNK, LARGE, PACK_BYTES, Objects, chunk_list, inline_blobs
from decurion_ledger.workspace.pack import Blob, Place, make_pack
from decurion_ledger.workspace.tree import Entry, file_name
from decurion_ledger.workspace.version import INLINE, MAX_PACKS, Version


class Upload:
    """What a version that is made of `base` has besides. Objects are stored in packs as they come; the few of a small
    change stand in the version itself.
    """

    def __init__(self, objects: Objects, base: Version) -> None:
        self.objects = objects
        self._base = base
        self._packs = dict.fromkeys(base.packs)
        self._loose: dict[str, Blob] = {}
        self._bytes = 0

    async def add(self, blob: Blob) -> None:
        place = self.objects.place(blob.name)
        if place is not None:
            self._packs[place.pack] = None
        elif blob.name not in self._loose:
            self.objects.hold([blob])
            self._take(blob)
        if self._bytes >= PACK_BYTES:
            await self._flush()

    def _take(self, blob: Blob) -> None:
        if blob.name not in self._loose:
            self._loose[blob.name] = blob
            self._bytes += len(blob.raw)

    async def add_file(self, content: bytes) -> str:
        """Keep a file that is in memory; its hash."""
        name = file_name(content)
        if len(content) <= LARGE:
            await self.add(Blob(name, "file", content))
            return name
        chunks = []
        for start in range(0, len(content), CHUNK):
            piece = content[start : start + CHUNK]
            chunks.append((file_name(piece), len(piece)))
            await self.add(Blob(chunks[-1][0], "file", piece))
        await self.add(chunk_list(name, chunks))
        return name

    async def need(self, entries: Iterable[Entry | None]) -> None:
        """The version will name these files, which other versions that are known have."""
        for entry in entries:
            if entry is None or entry.kind in ("link", "dir"):
                continue
            held = self.objects.at_hand(entry.ref)
            if held is not None and held.kind == "file":
                self._take(held)
                if self._bytes >= PACK_BYTES:
                    await self._flush()
                continue
            names = [entry.ref]
            if self.objects.kind(entry.ref) == "chunks":
                names += [chunk for chunk, _ in await self.objects.chunks_of(entry.ref)]
            for name in names:
                place = self.objects.place(name)
                if place is not None:
                    self._packs[place.pack] = None
                else:
                    raw = (await self.objects.fetch([name]))[name]
                    await self.add(Blob(name, self.objects.kind(name), raw))

    async def version(self, root: str) -> Version:
        """The version with this root, all of whose objects were added, needed or are in the base."""
        for blob in inline_blobs(self._base.inline) if self._base.inline else ():
            await self.add(blob)
        inline = b""
        if self._loose:
            small = self._bytes <= 4 * INLINE
            inline = make_pack(self._loose.values())[1] if small else b""
            if not small or len(inline) > INLINE:
                inline = b""
                await self._flush()
        packs = tuple(self._packs)
        if len(packs) > MAX_PACKS:
            packs = (await self._one_index(root, packs),)
        return Version(root, packs, inline)

    async def _flush(self) -> None:
        blobs, self._loose, self._bytes = list(self._loose.values()), {}, 0
        self._packs.update(dict.fromkeys(await self.objects.write(blobs)))

    async def _one_index(self, root: str, packs: Iterable[str]) -> str:
        """One index of all that the version names, in place of many packs."""
        found: dict[str, Place] = {}
        for name in await reachable(self.objects, root):
            place = self.objects.place(name)
            if place is not None:
                found[name] = place
        return await self.objects.write_pack((), found)


async def reachable(objects: Objects, root: str) -> set[str]:
    """The names of all objects of the tree `root`."""
    found = {root}
    level = [root]
    while level:
        trees = await objects.trees(level)
        level = []
        for tree in trees.values():
            for entry in tree.values():
                if entry.kind == "link" or entry.ref in found:
                    continue
                found.add(entry.ref)
                if entry.kind == "dir":
                    level.append(entry.ref)
                elif objects.kind(entry.ref) == "chunks":
                    found.update(chunk for chunk, _ in await objects.chunks_of(entry.ref))
    return found

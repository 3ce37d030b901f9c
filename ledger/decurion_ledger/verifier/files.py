"""The files that records name: each version is there, from its root down to the bytes of every file."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import zstandard

from decurion_ledger.stores.port import Store
from decurion_ledger.verifier.blobs import UNREADABLE, optional
from decurion_ledger.verifier.form import sha

_END = struct.Struct(">Q8s")
_MAGIC = b"DCRNPCK0"
_MOST = 8 * 1024 * 1024
_BAD = (*UNREADABLE, zstandard.ZstdError, struct.error)


@dataclass(slots=True)
class Files:
    """`versions` were named and not checked yet: root → where, packs and inline pack. `objects` says of each object
    which pack, kind, offset, length and size it has; `sound` are those that were checked, with what they name.
    """

    tell: Callable[[str, str, str], None]
    versions: dict[str, tuple[str, tuple[str, ...], str]] = field(default_factory=dict)
    objects: dict[str, list[tuple[str, str, int, int, int]]] = field(default_factory=dict)
    packs: dict[str, bytes] = field(default_factory=dict)
    sound: set[str] = field(default_factory=set)

    def name(self, key: str, path: str, core: Mapping[str, Any], envelope: Mapping[str, Any]) -> None:
        """A record in the object `key` names the files as the node at `path` left them."""
        root, held = core.get("workspace"), envelope.get("workspace")
        if root is None and held is None:
            return
        if not isinstance(held, dict) or held.get("root") != root:
            self.tell("FILES", key, f"the record at {path} does not say where the files are whose root it names")
            return
        self.versions.setdefault(str(root), (key, tuple(held.get("packs", ())), held.get("inline", "")))

    async def check(self, store: Store, base: str) -> None:
        """Read all packs that versions name, and follow each version down to its files."""
        for root, (key, packs, inline) in self.versions.items():
            try:
                if inline:
                    self._open(f"{key}#{root}", base64.b64decode(inline))
                for pack in packs:
                    await self._load(store, base, pack)
            except _BAD as e:
                self.tell("FILES", key, f"a pack of the files with root {root} cannot be read ({e})")
                continue
            fault = self._follow(root, "tree")
            if fault:
                self.tell("FILES", key, f"the files with root {root} are not whole: {fault}")
        self.packs.clear()

    async def _load(self, store: Store, base: str, pack: str) -> None:
        if pack in self.packs:
            return
        data = await optional(store, f"{base}packs/{pack}")
        if data is None:
            raise ValueError(f"{base}packs/{pack} is missing")
        for other in self._open(pack, data):
            await self._load(store, base, other)

    def _open(self, pack: str, data: bytes) -> set[str]:
        """Take in a pack; the names of other packs that its index leads to."""
        if pack in self.packs:
            return set()
        self.packs[pack] = data
        length, magic = _END.unpack(data[-_END.size :])
        if magic != _MAGIC:
            raise ValueError("it is no pack")
        index = orjson.loads(_plain(data[-_END.size - length : -_END.size], 1 << 28))
        others = set()
        for name, kind, offset, stored, size, *elsewhere in index["objects"]:
            where = elsewhere[0] if elsewhere else pack
            others.add(where)
            self.objects.setdefault(name, []).append((where, kind, offset, stored, size))
        return others - {pack}

    def _follow(self, root: str, kind: str) -> str:
        """What is wrong with an object or with one that it leads to; empty where nothing is."""
        todo = [(root, kind)]
        while todo:
            name, kind = todo.pop()
            if name in self.sound or (kind == "tree" and name == _EMPTY):
                continue
            try:
                todo += self._one(name, kind)
            except _BAD as e:
                return f"{kind} {name}: {e}"
            self.sound.add(name)
        return ""

    def _one(self, name: str, kind: str) -> list[tuple[str, str]]:
        """Check one object; what it names."""
        found = [spot for spot in self.objects.get(name, ()) if (spot[1] == "tree") == (kind == "tree")]
        if not found:
            raise ValueError("no pack holds it")
        raw, stored_as = self._raw(found[0])
        if kind == "tree":
            if sha("tree/v0", raw).hex() != name:
                raise ValueError("it does not have its hash")
            rows = [row for row in orjson.loads(raw)["entries"] if row[1] != "link"]
            return [(row[3], "tree" if row[1] == "dir" else "file") for row in rows]
        if stored_as == "chunks":
            chunks = [chunk for chunk, _ in orjson.loads(raw)["chunks"]]
            whole = hashlib.sha256()
            for chunk in chunks:
                whole.update(self._raw(self.objects[chunk][0])[0])
            if whole.hexdigest() != name:
                raise ValueError("its parts are not those of a file of this hash")
            return []
        if hashlib.sha256(raw).hexdigest() != name:
            raise ValueError("it does not have its hash")
        return []

    def _raw(self, spot: tuple[str, str, int, int, int]) -> tuple[bytes, str]:
        pack, kind, offset, stored, size = spot
        frame = self.packs[pack][offset : offset + stored]
        raw = frame if stored == size else _plain(frame, min(size, _MOST))
        if len(raw) != size:
            raise ValueError("it does not have the size in the index")
        return raw, kind


def _plain(frame: bytes, most: int) -> bytes:
    size = zstandard.frame_content_size(frame)
    if not 0 <= size <= most:
        raise ValueError(f"a frame claims {size} bytes")
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=max(size, 1))


_EMPTY = sha("tree/v0", b'{"entries":[],"v":0}').hex()

"""The files that records name: each version is there, from its root down to the bytes of every file.

Each pack is read once: every object in it is checked then, and only what it is called and what it leads to is kept, so
that a run of any size is checked with one pack in memory. Of large files the chunks are read once more, one at a time,
for the hash of the whole.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import zstandard

from decurion_ledger.errors import NotFound
from decurion_ledger.stores.port import Store
from decurion_ledger.verifier.blobs import UNREADABLE
from decurion_ledger.verifier.form import sha

_END = struct.Struct(">Q8s")
_FORMAT = 1
_MAGIC = b"DCRNPCK1"
_MOST = 8 * 1024 * 1024
_BAD = (*UNREADABLE, zstandard.ZstdError, struct.error)


class _Spot(NamedTuple):
    """Where an object lies, as an index says."""

    pack: str
    kind: str
    offset: int
    stored: int
    size: int


class _Object(NamedTuple):
    """An object that was read: the names and kinds that it leads to, and what is wrong with it."""

    spot: _Spot
    leads: tuple[tuple[str, str], ...] = ()
    fault: str = ""


class _Version(NamedTuple):
    key: str
    root: str
    packs: tuple[str, ...]


@dataclass(slots=True)
class Files:
    """`versions` were named. `objects` are those that were read, by name; `sound` those whose all was found whole.

    `leads` says of each pack that was read to which others its index leads, and where in them things are; `faults` of
    those that could not be read why. Small packs that stand in records are kept where they hold parts of large files.
    """

    tell: Callable[[str, str, str], None]
    versions: dict[tuple[str, tuple[str, ...]], _Version] = field(default_factory=dict)
    objects: dict[str, list[_Object]] = field(default_factory=dict)
    leads: dict[str, list[tuple[str, _Spot]]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    inline: dict[str, bytes] = field(default_factory=dict)
    sound: set[str] = field(default_factory=set)

    def name(self, key: str, path: str, core: Mapping[str, Any], envelope: Mapping[str, Any]) -> None:
        """A record in the object `key` names the files as the node at `path` left them."""
        root, held = core.get("workspace"), envelope.get("workspace")
        if root is None and held is None:
            return
        if not isinstance(held, dict) or held.get("root") != root:
            self.tell("FILES", key, f"the record at {path} does not say where the files are whose root it names")
            return
        packs = tuple(map(str, held.get("packs", ())))
        if held.get("inline"):
            try:
                packs = (*packs, self._inline(base64.b64decode(held["inline"])))
            except _BAD as e:
                self.tell("FILES", key, f"the pack in the record at {path} cannot be read ({e})")
                return
        self.versions.setdefault((str(root), packs), _Version(key, str(root), packs))

    def _inline(self, raw: bytes) -> str:
        """Take in a pack that stands in a record; what it is called here."""
        own = f"#{hashlib.sha256(raw).hexdigest()}"
        if own not in self.leads:
            self.take(own, raw)
            if own not in self.faults and any(spot.kind == "chunks" for _, spot in self._index(own, raw)):
                self.inline[own] = raw
        return own

    def take(self, pack: str, data: bytes) -> None:
        """Check every object of a pack, whose bytes are not needed any more then."""
        self.leads[pack] = []
        try:
            for name, spot in self._index(pack, data):
                if spot.pack != pack:
                    self.leads[pack].append((name, spot))
                else:
                    self.objects.setdefault(name, []).append(_checked(name, spot, data))
        except _BAD as e:
            self.faults[pack] = str(e)

    async def check(self, store: Store, base: str) -> None:
        """Follow each version down to its files."""
        for pack, rows in self.leads.items():
            wrong = [name for name, spot in rows if not any(one.spot == spot for one in self.objects.get(name, ()))]
            if wrong:
                self.faults.setdefault(pack, f"its index leads to a place where {wrong[0]} is not")
        for key, root, packs in self.versions.values():
            fault = self._missing(packs, base)
            if fault:
                self.tell("FILES", key, f"a pack of the files with root {root} cannot be read ({fault})")
                continue
            fault = await self._follow(store, base, root)
            if fault:
                self.tell("FILES", key, f"the files with root {root} are not whole: {fault}")

    def _missing(self, packs: tuple[str, ...], base: str) -> str:
        """What is wrong with one of these packs, or with one that they lead to."""
        todo, seen = list(packs), set(packs)
        while todo:
            pack = todo.pop()
            if pack not in self.leads:
                return f"{base}packs/{pack} is missing"
            if pack in self.faults:
                return self.faults[pack]
            more = {spot.pack for _, spot in self.leads[pack]} - seen
            seen |= more
            todo += more
        return ""

    @staticmethod
    def _index(pack: str, data: bytes) -> list[tuple[str, _Spot]]:
        length, magic = _END.unpack(data[-_END.size :])
        if magic != _MAGIC:
            raise ValueError("it is no pack")
        index = orjson.loads(_plain(data[-_END.size - length : -_END.size], 1 << 28))
        if index["format"] != _FORMAT:
            raise ValueError(f"it has format {index['format']}")
        return [
            (str(name), _Spot(str(where[0]) if where else pack, str(kind), int(offset), int(stored), int(size)))
            for name, kind, offset, stored, size, *where in index["objects"]
        ]

    async def _follow(self, store: Store, base: str, root: str) -> str:
        """What is wrong with a folder or with what it leads to; empty where nothing is."""
        todo = [(root, "tree")]
        while todo:
            name, kind = todo.pop()
            if name in self.sound or (kind == "tree" and name == _EMPTY):
                continue
            found = [one for one in self.objects.get(name, ()) if (one.spot.kind == "tree") == (kind == "tree")]
            if not found:
                return f"{kind} {name}: no pack holds it"
            one = found[0]
            fault = one.fault
            if not fault and one.spot.kind == "chunks":
                fault = await self._whole(store, base, name, one)
            elif not fault:
                todo += one.leads
            if fault:
                return f"{kind} {name}: {fault}"
            self.sound.add(name)
        return ""

    async def _whole(self, store: Store, base: str, name: str, large: _Object) -> str:
        """What is wrong with a file that is kept in chunks."""
        whole = hashlib.sha256()
        for chunk, _ in large.leads:
            found = [one for one in self.objects.get(chunk, ()) if one.spot.kind == "file"]
            if not found or found[0].fault:
                return f"chunk {chunk}: {found[0].fault if found else 'no pack holds it'}"
            spot = found[0].spot
            span = (spot.offset, spot.offset + spot.stored)
            try:
                held = self.inline.get(spot.pack)
                frame = await store.get(f"{base}packs/{spot.pack}", span) if held is None else held[slice(*span)]
                whole.update(_raw(frame, spot))
            except (*_BAD, NotFound) as e:
                return f"chunk {chunk}: {e}"
        return "" if whole.hexdigest() == name else "its parts are not those of a file of this hash"


def _checked(name: str, spot: _Spot, data: bytes) -> _Object:
    try:
        raw = _raw(data[spot.offset : spot.offset + spot.stored], spot)
        if spot.kind == "tree":
            if sha("tree/v0", raw).hex() != name:
                raise ValueError("it does not have its hash")
            rows = [row for row in orjson.loads(raw)["entries"] if row[1] != "link"]
            return _Object(spot, tuple((str(row[3]), "tree" if row[1] == "dir" else "file") for row in rows))
        if spot.kind == "chunks":
            return _Object(spot, tuple((str(chunk), "part") for chunk, _ in orjson.loads(raw)["chunks"]))
        if hashlib.sha256(raw).hexdigest() != name:
            raise ValueError("it does not have its hash")
    except _BAD as e:
        return _Object(spot, fault=str(e))
    return _Object(spot)


def _raw(frame: bytes, spot: _Spot) -> bytes:
    raw = frame if spot.stored == spot.size else _plain(frame, min(spot.size, _MOST))
    if len(raw) != spot.size:
        raise ValueError("it does not have the size in the index")
    return raw


def _plain(frame: bytes, most: int) -> bytes:
    size = zstandard.frame_content_size(frame)
    if not 0 <= size <= most:
        raise ValueError(f"a frame claims {size} bytes")
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=max(size, 1))


_EMPTY = sha("tree/v0", b'{"entries":[],"v":0}').hex()

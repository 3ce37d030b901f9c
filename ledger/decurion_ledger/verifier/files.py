"""The files that records name: each version is there, from its root down to the bytes of every file.

A version is read through the packs that it names and through no other: what only the packs of other versions hold is
missing in it. Each pack is read once: every object in it is checked then, and only what it is called and what it leads
to is kept, so that a run of any size is checked with one pack in memory. Of large files the chunks are read once more,
one at a time, for the hash of the whole.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from decurion_ledger.errors import NotFound
from decurion_ledger.stores.port import Store
from decurion_ledger.verifier.folders import Lead, folder
from decurion_ledger.verifier.form import UNREADABLE, canonical, plain, sha

_END = struct.Struct(">Q8s")
_FORMAT = 1
_MAGIC = b"DCRNPCK1"
_MOST = 32 * 1024 * 1024
_MOST_INDEX = 256 * 1024 * 1024
_REMEMBERED = 8
_PACK = re.compile(r"[0-9a-f]{64}")
_KINDS = frozenset({"file", "tree", "chunks"})


class _Spot(NamedTuple):
    """Where an object lies, as an index says."""

    pack: str
    kind: str
    offset: int
    stored: int
    size: int


class _Object(NamedTuple):
    """An object that was read: what it leads to, the bytes and files that it holds, how many folders its links need
    above it, and what is wrong with it.
    """

    spot: _Spot
    leads: tuple[Lead, ...] = ()
    size: int = 0
    files: int = 1
    above: int = 0
    fault: str = ""


class _Version(NamedTuple):
    key: str
    root: str
    packs: tuple[str, ...]


@dataclass(slots=True)
class Files:
    """`versions` were named. `objects` are those that were read, by name. `sound` are those whose all was found whole,
    with the packs through which that was: they are so in each version that names these.

    `leads` says of each pack that was read what its index says of others: where in them things are; `faults` of
    those that could not be read why. Small packs that stand in records are kept where they hold parts of large files.
    `above` says of sound folders how many folders their links need above them.
    """

    tell: Callable[[str, str, str], None]
    versions: dict[tuple[str, tuple[str, ...]], _Version] = field(default_factory=dict)
    objects: dict[str, list[_Object]] = field(default_factory=dict)
    leads: dict[str, dict[str, _Spot]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    inline: dict[str, bytes] = field(default_factory=dict)
    sound: dict[str, list[frozenset[str]]] = field(default_factory=dict)
    above: dict[str, int] = field(default_factory=dict)
    _sets: dict[frozenset[str], frozenset[str]] = field(default_factory=dict)

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
            except UNREADABLE as e:
                self.tell("FILES", key, f"the pack in the record at {path} cannot be read ({e})")
                return
        self.versions.setdefault((str(root), packs), _Version(key, str(root), packs))

    def _inline(self, raw: bytes) -> str:
        """Take in a pack that stands in a record; what it is called here."""
        own = f"#{hashlib.sha256(raw).hexdigest()}"
        if own not in self.leads:
            self.take(own, raw)
            if self.leads[own]:
                self.faults[own] = "its index leads out of the record"
            if own not in self.faults and any(spot.kind == "chunks" for _, spot in _index(own, raw)):
                self.inline[own] = raw
        return own

    def take(self, pack: str, data: bytes) -> None:
        """Check every object of a pack, whose bytes are not needed any more then."""
        leads = self.leads[pack] = {}
        try:
            for name, spot in _index(pack, data):
                if spot.pack != pack:
                    leads[name] = spot
                else:
                    self.objects.setdefault(name, []).append(_checked(name, spot, data))
        except UNREADABLE as e:
            self.faults[pack] = str(e)

    async def check(self, store: Store, base: str) -> None:
        """Follow each version down to its files."""
        for pack, rows in self.leads.items():
            wrong = [name for name, spot in rows.items() if self._at(name, spot) is None]
            if wrong:
                self.faults.setdefault(pack, f"its index leads to a place where {wrong[0]} is not")
        for key, root, packs in self.versions.values():
            fault = self._missing(packs, base)
            if fault:
                self.tell("FILES", key, f"a pack of the files with root {root} cannot be read ({fault})")
                continue
            fault = await self._follow(store, base, root, packs)
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
            more = {spot.pack for spot in self.leads[pack].values()} - seen
            seen |= more
            todo += more
        return ""

    def _at(self, name: str, spot: _Spot) -> _Object | None:
        return next((one for one in self.objects.get(name, ()) if one.spot == spot), None)

    def _seen(self, name: str, tree: bool, packs: tuple[str, ...]) -> list[tuple[str, _Object]]:
        """What is called so in these packs, each with the pack through which it is found. A reader may take any."""
        found = []
        for one in self.objects.get(name, ()):
            if (one.spot.kind == "tree") == tree:
                if one.spot.pack in packs:
                    found.append((one.spot.pack, one))
                else:
                    found += [(pack, one) for pack in packs if self.leads[pack].get(name) == one.spot]
        return found

    def _sound(self, name: str, packs: frozenset[str]) -> frozenset[str] | None:
        """Packs through which all of it was found whole, if these are enough."""
        return next((needed for needed in self.sound.get(name, ()) if needed <= packs), None)

    async def _follow(self, store: Store, base: str, root: str, packs: tuple[str, ...]) -> str:
        """What is wrong with a folder or with what it leads to, read through these packs; empty where nothing is."""
        visible = frozenset(packs)
        todo: list[tuple[str, str, tuple[str, _Object] | None]] = [(root, "tree", None)]
        while todo:
            name, kind, one = todo.pop()
            if one is not None:
                fault = self._whole_by(name, one, visible)
                if fault:
                    return f"{kind} {name}: {fault}"
                continue
            if name == _EMPTY or self._sound(name, visible) is not None:
                continue
            found = self._seen(name, kind == "tree", packs)
            fault = next((one.fault for _, one in found if one.fault), "" if found else "no pack of these holds it")
            for _, each in found:
                if each.spot.kind == "chunks":
                    fault = fault or await self._whole(store, base, name, each, packs)
            if fault:
                return f"{kind} {name}: {fault}"
            todo.append((name, kind, found[0]))
            if kind == "tree":
                todo += [(lead.name, lead.kind, None) for lead in found[0][1].leads]
        return f"its links lead {self.above[root]} folders above it" if self.above.get(root) else ""

    def _whole_by(self, name: str, found: tuple[str, _Object], visible: frozenset[str]) -> str:
        """Keep that all of an object was found whole; what is wrong with what it says of what it leads to."""
        pack, one = found
        needed = {pack}
        above = one.above
        for lead in one.leads:
            needed |= self._sound(lead.name, visible) or frozenset()
            if lead.kind == "part":
                continue
            for _, held in self._seen(lead.name, lead.kind == "tree", tuple(visible)):
                if (held.size, held.files) != (lead.size, lead.files):
                    return f"it says that {lead.name} has {lead.size} bytes in {lead.files} files, which it has not"
            above = max(above, self.above.get(lead.name, 0) - 1)
        kept = frozenset(needed)
        known = self.sound.setdefault(name, [])
        known.insert(0, self._sets.setdefault(kept, kept))
        del known[_REMEMBERED:]
        if above:
            self.above[name] = above
        return ""

    async def _whole(self, store: Store, base: str, name: str, large: _Object, packs: tuple[str, ...]) -> str:
        """What is wrong with a file that is kept in chunks."""
        whole = hashlib.sha256()
        for chunk, _, size, _ in large.leads:
            found = [(pack, one) for pack, one in self._seen(chunk, False, packs) if one.spot.kind == "file"]
            fault = next((one.fault for _, one in found if one.fault), "" if found else "no pack of these holds it")
            if fault:
                return f"chunk {chunk}: {fault}"
            pack, (spot, *_) = found[0]
            kept = frozenset({pack})
            self.sound.setdefault(chunk, [self._sets.setdefault(kept, kept)])
            span = (spot.offset, spot.offset + spot.stored)
            try:
                held = self.inline.get(spot.pack)
                frame = await store.get(f"{base}packs/{spot.pack}", span) if held is None else held[slice(*span)]
                raw = _raw(frame, spot)
            except (*UNREADABLE, NotFound) as e:
                return f"chunk {chunk}: {e}"
            if len(raw) != size:
                return f"chunk {chunk}: it does not have the size in the list of chunks"
            whole.update(raw)
        return "" if whole.hexdigest() == name else "its parts are not those of a file of this hash"


def _index(pack: str, data: bytes) -> list[tuple[str, _Spot]]:
    """What the index of a pack says. Its own objects fill all of the pack that stands before the index."""
    length, magic = _END.unpack(data[-_END.size :])
    if magic != _MAGIC or length > len(data) - _END.size:
        raise ValueError("it is no pack")
    begin = len(data) - _END.size - length
    stored = plain(data[begin : -_END.size], _MOST_INDEX)
    index = orjson.loads(stored)
    if index["format"] != _FORMAT:
        raise ValueError(f"it has format {index['format']}")
    if index.keys() != {"format", "objects"} or canonical(index) != stored:
        raise ValueError("its index is not in canonical form")
    rows, end = [], 0
    for name, kind, offset, length, size, *where in index["objects"]:
        numbers = all(type(number) is int and number >= 0 for number in (offset, length, size))
        names = all(isinstance(one, str) and _PACK.fullmatch(one) for one in (name, *where))
        if not numbers or not names or kind not in _KINDS or length > size or len(where) > 1:
            raise ValueError(f"a row of its index is malformed: {name!r:.80}")
        if not where:
            if offset != end:
                raise ValueError(f"{name} does not begin where the object before it ends")
            end += length
        rows.append((name, _Spot(where[0] if where else pack, kind, offset, length, size)))
    if end != begin or len({name for name, _ in rows}) < len(rows):
        raise ValueError("its objects do not fill it, or one is named twice")
    return rows


def _checked(name: str, spot: _Spot, data: bytes) -> _Object:
    try:
        raw = _raw(data[spot.offset : spot.offset + spot.stored], spot)
        if spot.kind == "tree":
            if sha("tree/v0", raw).hex() != name:
                raise ValueError("it does not have its hash")
            held = folder(raw)
            return _Object(spot, held.leads, held.size, held.files, held.above)
        if spot.kind == "chunks":
            parts = tuple(Lead(str(chunk), "part", int(size), 1) for chunk, size in orjson.loads(raw)["chunks"])
            return _Object(spot, parts, sum(part.size for part in parts))
        if hashlib.sha256(raw).hexdigest() != name:
            raise ValueError("it does not have its hash")
    except UNREADABLE as e:
        return _Object(spot, fault=str(e))
    return _Object(spot, size=len(raw))


def _raw(frame: bytes, spot: _Spot) -> bytes:
    raw = frame if spot.stored == spot.size else plain(frame, min(spot.size, _MOST))
    if len(raw) != spot.size:
        raise ValueError("it does not have the size in the index")
    return raw


_EMPTY = sha("tree/v0", b'{"entries":[],"v":0}').hex()

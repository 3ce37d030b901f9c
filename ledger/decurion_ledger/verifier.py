"""The verifier: whether what is stored for a run is a log that a correct writer could have left.

It shares no code with the writer: segments are parsed, trees and value hashes computed here from the format's
description (see `segment`, `record`, `values`), so that a fault of the writer does not verify itself.

It finds every change of a stored byte, every object that is missing, moved or copied from another run, every breach
of the rules of ownership and of one result a path, and a log that ends before its `final` says. It cannot find that
the newest slots of an open run are missing, nor a log that was rewritten whole, `final` included.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import zstandard

from decurion_ledger.errors import BadPath, NotFound, RunNotFound
from decurion_ledger.path import LedgerPath
from decurion_ledger.stores.port import Store

_BLOBS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `code` is stable, `where` the key of the object, `message` one sentence."""

    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where} [{self.code}] {self.message}"


async def verify(store: Store, run: str) -> list[Problem]:
    """All problems of the run's log, `final` and blobs, in order of slots; an empty list is the proof.

    Raises `RunNotFound` when there is nothing of this run, or the store's error: then nothing is proved.
    """
    base = f"runs/{hashlib.sha256(run.encode()).hexdigest()[:2]}/{run}/"
    keys = sorted([info.key async for info in store.list(base)])
    if not keys:
        raise RunNotFound(run, store.uri)
    audit = _Audit(run, base)
    audit.names(keys)
    for slot in sorted(audit.slots):
        key = f"{base}log/{slot:012d}"
        audit.segment(slot, key, await store.get(key))
        await _check_blobs(store, audit)
    audit.end(await _optional(store, f"{base}final"))
    return audit.problems


@dataclass(slots=True)
class _Audit:
    """What has been seen so far. `head` is None after a segment that could not be read: then nothing is said of
    `previous`. `units` holds the results of the root and of each branch that has not ended, `arms` those that have, by
    map. `blobs` and `lists` were named and not fetched yet.
    """

    run: str
    base: str
    problems: list[Problem] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)
    head: bytes | None = None
    hashes: list[bytes] = field(default_factory=list)
    owner: tuple[int, str, str] | None = None
    epoch: int = 0
    closed_at: int | None = None
    results: dict[str, str] = field(default_factory=dict)
    units: dict[str, dict[str, str]] = field(default_factory=lambda: {"": {}})
    arms: dict[str, dict[str, str]] = field(default_factory=dict)
    blobs: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    lists: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)

    def names(self, keys: list[str]) -> None:
        """Check the keys under `log/`: twelve digits each, no gap from 0 on."""
        for key in keys:
            name = key.removeprefix(f"{self.base}log/")
            if name == key:
                continue
            if len(name) == 12 and name.isascii() and name.isdigit():
                self.slots.add(int(name))
            else:
                self._problem("FOREIGN-OBJECT", key, "no slot has such a name")
        for slot in range(max(self.slots, default=0)):
            if slot not in self.slots:
                self._problem("SLOT-MISSING", f"{self.base}log/{slot:012d}", "the slot is missing but later ones exist")
        if 0 not in self.slots and len(self.slots) == 0:
            self._problem("SLOT-MISSING", f"{self.base}log/{0:012d}", "the log is missing")

    def segment(self, slot: int, key: str, data: bytes) -> None:
        previous, self.head = self.head, None
        if slot == 0:
            previous = _sha("log/v0", self.run.encode())
        body, end = data[:-32], data[-32:]
        if _sha("segment/v0", body) != end:
            self._problem("SEGMENT-HASH", key, "the bytes do not have the hash at their end")
            return
        self.head = end
        self.hashes.append(end)
        try:
            header, lines, tables = _parsed(data)
        except (ValueError, KeyError, TypeError, struct.error, zstandard.ZstdError) as e:
            self._problem("SEGMENT-FORMAT", key, f"the segment cannot be read ({e})")
            return
        self._header(slot, key, header, previous)
        leaves = [_sha("record/v0", line) for line in lines]
        if header.get("count") != len(lines) or header.get("root") != _tree("records/v0", leaves).hex():
            self._problem("MERKLE-ROOT", key, "the records do not have the count and Merkle root in the header")
        self._records(slot, key, header, lines, leaves, tables)
        owner = (header.get("epoch"), header.get("driver"), header.get("nonce"))
        if owner != self.owner:
            self._problem("OWNER", key, f"driver {owner[1]} wrote with epoch {owner[0]}, which it did not own")

    def end(self, final: bytes | None) -> None:
        """Check `final` against the slots that were seen."""
        key = f"{self.base}final"
        last = max(self.slots, default=0)
        if final is None:
            if self.closed_at is not None:
                self._problem("FINAL-MISSING", key, "the log is closed but not final; opening the run completes it")
            return
        if self.closed_at is None:
            self._problem("TRUNCATED", key, f"the run is final but its log ends at slot {last} without a close record")
            return
        expected = {
            "format": 0,
            "run": self.run,
            "slot": last,
            "head": self.head.hex() if self.head else "",
            "root": _tree("final/v0", self.hashes).hex(),
        }
        if final != orjson.dumps(expected, option=orjson.OPT_SORT_KEYS):
            self._problem("FINAL", key, f"it does not name the log that ends at slot {last}")

    def _header(self, slot: int, key: str, header: Mapping[str, Any], previous: bytes | None) -> None:
        if header.get("format") != 0:
            self._problem("SEGMENT-FORMAT", key, f"format {header.get('format')} is not known")
        if (header.get("run"), header.get("slot")) != (self.run, slot):
            self._problem("WRONG-PLACE", key, f"it is slot {header.get('slot')} of run {header.get('run')}")
        if previous is not None and header.get("previous") != previous.hex():
            self._problem("CHAIN", key, "it does not follow the segment before it")
        if self.closed_at is not None:
            self._problem("BEYOND-CLOSE", key, f"the log was closed at slot {self.closed_at}")

    def _records(
        self,
        slot: int,
        key: str,
        header: Mapping[str, Any],
        lines: list[bytes],
        leaves: list[bytes],
        tables: list[tuple[bytes, int, int, int, bytes]],
    ) -> None:
        expected = []
        for number, (line, leaf) in enumerate(zip(lines, leaves, strict=True)):
            try:
                record = orjson.loads(line)
                fields = record.get("core", record)
                kind, path, envelope = fields["type"], fields["path"], record["envelope"]
                LedgerPath.parse(path)
                expected.append((hashlib.sha256(path.encode()).digest()[:16], len(line), leaf))
                self._record(key, record, line)
                self._place(slot, number, key, kind, envelope, header, last=number == len(lines) - 1)
                self._values(key, path, envelope.get("values", {}))
            except (ValueError, KeyError, TypeError, AttributeError, BadPath) as e:
                self._problem("RECORD-FORMAT", key, f"record {number} cannot be read ({e})")
        found = [(path, length, leaf) for path, _, _, length, leaf in tables]
        order = [entry[:3] for entry in tables]
        if sorted(expected) != sorted(found) or order != sorted(order):
            self._problem("INDEX", key, "the index does not name the records")

    def _record(self, key: str, record: Mapping[str, Any], line: bytes) -> None:
        if orjson.dumps(record, option=orjson.OPT_SORT_KEYS) != line:
            self._problem("NOT-CANONICAL", key, "a record is not in canonical form")
        core = record.get("core")
        if core is None:
            return
        path = core["path"]
        core_hash = _sha("core/v0", orjson.dumps(core, option=orjson.OPT_SORT_KEYS)).hex()
        if core_hash != record["core_hash"]:
            self._problem("CORE-HASH", key, f"the core at {path} does not have the hash stored beside it")
        if path in self.results:
            self._problem("DUPLICATE-PATH", key, f"{path} has a result already")
        for parent, expected in core["parents"]:
            if self.results.get(parent) != expected:
                self._problem("PARENT", key, f"{path} depends on another {parent} than the log holds before it")
        if core["parents"] != sorted(core["parents"]):
            self._problem("PARENT", key, f"the parents of {path} are not in order")
        self.results[path] = core_hash
        if path != "/":
            self._unit(key, core, path, core_hash)

    def _place(
        self,
        slot: int,
        number: int,
        key: str,
        kind: str,
        envelope: Mapping[str, Any],
        header: Mapping[str, Any],
        *,
        last: bool,
    ) -> None:
        """Check records whose place matters: genesis first and once, fences that raise the epoch, close last."""
        if (kind == "genesis") != (slot == 0 and number == 0):
            self._problem("GENESIS", key, "genesis is the first record of the log and no other")
        if kind == "fence":
            epoch = envelope["epoch"]
            if epoch <= self.epoch or epoch != header.get("epoch") or envelope["driver_id"] != header.get("driver"):
                self._problem("EPOCH", key, f"a fence of epoch {epoch} follows epoch {self.epoch}")
            self.epoch = max(self.epoch, epoch)
            self.owner = (header.get("epoch", 0), header.get("driver", ""), header.get("nonce", ""))
        if kind == "close":
            self.closed_at = slot
            if not last:
                self._problem("BEYOND-CLOSE", key, "records follow the close record")
            if "state" in envelope and envelope["state"] != self._state(envelope):
                self._problem("STATE", key, "the state hash in the close record is not that of the results before it")

    def _unit(self, key: str, core: Mapping[str, Any], path: str, core_hash: str) -> None:
        """Keep a result with those of its branch, end the branch, or check the arms of a map that is joined."""
        unit = path[: path.rfind("]") + 1]
        mine = self.units.setdefault(unit, {})
        mine[path] = core_hash
        failed = isinstance(core["outcome"], dict)
        ended = path.removesuffix("!output")
        if path == f"{unit}!output" and unit:
            kept = [[path, core_hash]] if failed else sorted([p, c] for p, c in mine.items())
            arm = _sha("arm/v0", orjson.dumps(kept)).hex()
            self.arms.setdefault(unit[: unit.rfind("[")], {})[unit] = arm
            del self.units[unit]
        elif path.endswith("!output") and failed:
            for inner in [inner for inner in mine if inner.startswith(f"{ended}/")]:
                del mine[inner]
        elif path.endswith("!join") and failed and "arms" not in core:
            # How many rounds a loop that failed had depends on time: its end stands for them.
            for inner in [inner for inner in mine if inner.startswith(f"{path.removesuffix('!join')}@")]:
                del mine[inner]
        elif "!" not in path and (failed or (core["type"] == "skip" and f"{path}!open" not in mine)):
            # What the calls did of an agent that failed, or was given up, depends on time: its end stands for them.
            for inner in [inner for inner in mine if inner.startswith(f"{path}#")]:
                del mine[inner]
        elif path.endswith("!join"):
            self._joined(key, core, path.removesuffix("!join"))
        elif core["type"] == "skip" and f"{path.partition('!')[0]}!open" in mine:
            self._given_up(mine, path)

    def _given_up(self, mine: dict[str, str], path: str) -> None:
        """A node that had opened something was given up: what it opened does not count."""
        under = tuple(f"{path.partition('!')[0]}{mark}" for mark in "[/!@#")
        for inner in [inner for inner in mine if inner.startswith(under) and inner != path]:
            del mine[inner]
        for unit in [unit for unit in self.units if unit.startswith(under)]:
            del self.units[unit]
        for at in [at for at in self.arms if at == under[0][:-1] or at.startswith(under)]:
            del self.arms[at]

    def _joined(self, key: str, core: Mapping[str, Any], path: str) -> None:
        arms = self.arms.pop(path, {})
        for unit in [unit for unit in self.units if unit.startswith(f"{path}[")]:
            del self.units[unit]
        named = (core.get("arms") or {}).get("root")
        if named is not None and named != _arms(arms):
            self._problem("ARMS", key, f"the join of {path} does not name the branches that ended before it")

    def _state(self, close: Mapping[str, Any]) -> str:
        """The final state hash of the results seen, under the channels and the output that the close record names."""
        cores = [(path, core) for unit in self.units.values() for path, core in unit.items()]
        cores += [(f"{path}!arms", _arms(arms)) for path, arms in self.arms.items()]
        root = _tree("cores/v0", [orjson.dumps([path, core]) for path, core in sorted(cores)]).hex()
        named = {"channels": close.get("channels", {}), "cores": root, "output": close.get("output")}
        return _sha("state/v0", orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hex()

    def _values(self, key: str, path: str, values: Mapping[str, Mapping[str, Any]]) -> None:
        for name, held in values.items():
            if "blob" in held:
                self.blobs[f"blobs/{held['blob'][:2]}/{held['blob']}"] = (name, held["bytes"], key)
                continue
            if "tree" in held:
                self._named_lists(held["tree"])
            found = _stored_hash(held["tree"]) if "tree" in held else _value_hash(held["inline"])
            if found != name:
                self._problem("VALUE-HASH", key, f"a value at {path} does not have its hash")

    def _named_lists(self, stored: Any) -> None:
        """Note the wide lists that a stored form refers to, for `_check_lists`."""
        if isinstance(stored, list):
            for item in stored:
                self._named_lists(item)
        elif isinstance(stored, dict):
            held = stored.get("$list")
            if len(stored) == 1 and isinstance(held, dict) and "index" in held:
                self.lists[held["index"]] = (held["count"], held["root"], held["bytes"])
            else:
                for member in stored.values():
                    self._named_lists(member)

    def blob(self, key: str, data: bytes | None, name: str, size: int, record: str) -> None:
        if data is None:
            self._problem("BLOB-MISSING", key, f"a record in {record} names it")
        elif len(data) != size or hashlib.sha256(data).hexdigest() != key.rpartition("/")[2]:
            self._problem("BLOB", key, "its bytes do not have the length and SHA-256 by which it is named")
        else:
            stored = orjson.loads(data)
            self._named_lists(stored)
            if _stored_hash(stored) != name:
                self._problem("VALUE-HASH", key, f"it does not hold the value that a record in {record} names")

    async def check_lists(self, store: Store) -> None:
        """Fetch and check the wide lists that were named since the last call, one after the other."""
        while self.lists:
            index, (count, root, size) = self.lists.popitem()
            if index not in self.checked:
                self.checked.add(index)
                await self._list(store, index, count, root, size)

    async def _list(self, store: Store, index: str, count: int, root: str, size: int) -> None:
        key = f"blobs/{index[:2]}/{index}"
        found = self._content(key, await _optional(store, key), None)
        if found is None:
            return
        if (found["count"], found["root"], found["bytes"]) != (count, root, size):
            self._problem("LIST", key, "it is not the index of the list that names it")
            return
        leaves: list[bytes] = []
        before = len(self.problems)
        for sha, length in found["chunks"]:
            leaves += await self._chunk(store, f"blobs/{sha[:2]}/{sha}", length)
        if len(self.problems) > before:
            return
        if len(leaves) != count or _tree("list/v1", leaves).hex() != root:
            self._problem("LIST", key, "its chunks do not hold the items whose count and root it names")

    async def _chunk(self, store: Store, key: str, length: int) -> list[bytes]:
        entries = self._content(key, await _optional(store, key), length) or []
        leaves: list[bytes] = []
        for entry in entries:
            if isinstance(entry, list):
                stored = entry[0]
            else:
                far = f"blobs/{entry['blob'][:2]}/{entry['blob']}"
                stored = self._content(far, await _optional(store, far), entry["bytes"])
            self._named_lists(stored)
            leaves.append(bytes.fromhex(_stored_hash(stored)))
        return leaves

    def _content(self, key: str, data: bytes | None, length: int | None) -> Any:
        """What a blob holds, None with a problem when it is missing or has other bytes."""
        if data is None:
            self._problem("BLOB-MISSING", key, "a wide list names it")
        elif (length is not None and len(data) != length) or hashlib.sha256(data).hexdigest() != key.rpartition("/")[2]:
            self._problem("BLOB", key, "its bytes do not have the length and SHA-256 by which it is named")
        else:
            return orjson.loads(data)
        return None

    def _problem(self, code: str, where: str, message: str) -> None:
        self.problems.append(Problem(code, where, message))


async def _check_blobs(store: Store, audit: _Audit) -> None:
    """Fetch and check the blobs that were named since the last call."""
    named = list(audit.blobs.items())
    audit.blobs.clear()
    for start in range(0, len(named), _BLOBS_AT_ONCE):
        some = named[start : start + _BLOBS_AT_ONCE]
        found = await asyncio.gather(*(_optional(store, key) for key, _ in some))
        for (key, (name, size, record)), data in zip(some, found, strict=True):
            audit.blob(key, data, name, size, record)
    await audit.check_lists(store)


async def _optional(store: Store, key: str) -> bytes | None:
    try:
        return await store.get(key)
    except NotFound:
        return None


def _parsed(
    data: bytes,
) -> tuple[dict[str, Any], list[bytes], list[tuple[bytes, int, int, int, bytes]]]:
    """Header, records and index entries (path hash, frame, offset, length, record hash) of a segment."""
    if data[:8] != b"decurion" or data[-40:-32] != b"decurion":
        raise ValueError("the magic is missing")
    (length,) = struct.unpack_from(">I", data, 8)
    header = orjson.loads(data[12 : 12 + length])
    at, frames, records = struct.unpack_from(">QII", data, len(data) - 56)
    if at + 16 * frames + 60 * records + 56 != len(data):
        raise ValueError("the tables do not fill the place behind the frames")
    raw = list(_frames(data, 12 + length, at, frames))
    lines = [line for frame in raw for line in frame[:-1].split(b"\n")]
    index = [struct.unpack_from(">16sIII32s", data, at + 16 * frames + 60 * i) for i in range(records)]
    for _, frame, offset, size, leaf in index:
        if _sha("record/v0", raw[frame][offset : offset + size]) != leaf:
            raise ValueError("an index entry does not lead to its record")
    return header, lines, index


def _frames(data: bytes, start: int, end: int, count: int) -> Iterator[bytes]:
    for i in range(count):
        offset, stored, raw = struct.unpack_from(">QII", data, end + 16 * i)
        if offset != start or raw > 4 * 1024 * 1024:
            raise ValueError("a frame is not where the one before it ends")
        frame = zstandard.ZstdDecompressor().decompress(data[offset : offset + stored], max_output_size=raw)
        if len(frame) != raw or not frame.endswith(b"\n"):
            raise ValueError("a frame has another length than the table says")
        start += stored
        yield frame
    if start != end:
        raise ValueError("the frames do not fill the place before the tables")


def _sha(domain: str, data: bytes) -> bytes:
    return hashlib.sha256(f"decurion/{domain}\0".encode() + data).digest()


def _tree(domain: str, leaves: list[bytes]) -> bytes:
    """The Merkle tree hash of RFC 6962, section 2.1, each hash behind the domain's prefix."""
    if not leaves:
        return _sha(domain, b"")
    if len(leaves) == 1:
        return _sha(domain, b"\0" + leaves[0])
    left = 1 << ((len(leaves) - 1).bit_length() - 1)
    return _sha(domain, b"\1" + _tree(domain, leaves[:left]) + _tree(domain, leaves[left:]))


def _arms(arms: Mapping[str, str]) -> str:
    return _tree("arms/v0", [orjson.dumps([path, arm]) for path, arm in sorted(arms.items())]).hex()


def _stored_hash(stored: Any) -> str:
    """The hash of a value in stored form: what a reference says of its list enters in place of it."""
    return _sha("value/v1", orjson.dumps(_as_hashed(stored), option=orjson.OPT_SORT_KEYS)).hex()


def _as_hashed(stored: Any) -> Any:
    if isinstance(stored, list):
        items = [_as_hashed(item) for item in stored]
        if len(orjson.dumps(items)) > 64 * 1024:
            return {"$list": "a list that should stand in chunks"}
        return items
    if isinstance(stored, dict):
        held = stored.get("$list")
        if len(stored) == 1 and isinstance(held, dict) and "index" in held:
            return {"$list": {"count": held["count"], "root": held["root"]}}
        return {name: _as_hashed(member) for name, member in stored.items()}
    return stored


def _value_hash(value: Any) -> str:
    return _sha("value/v1", orjson.dumps(_fold(value), option=orjson.OPT_SORT_KEYS)).hex()


def _fold(value: Any) -> Any:
    """`value` with its lists of more than 64 KiB replaced, deepest first, and its own `$list` objects marked."""
    if isinstance(value, list):
        items = [_fold(item) for item in value]
        if len(orjson.dumps(items)) <= 64 * 1024:
            return items
        leaves = [_sha("value/v1", orjson.dumps(item, option=orjson.OPT_SORT_KEYS)) for item in items]
        return {"$list": {"count": len(items), "root": _tree("list/v1", leaves).hex()}}
    if isinstance(value, dict):
        members = {name: _fold(member) for name, member in value.items()}
        return {"$list": {"value": members["$list"]}} if members.keys() == {"$list"} else members
    return value

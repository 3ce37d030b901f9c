"""The course of a verification: slot by slot, then `final`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from decurion_ledger.errors import BadPath, RunDeleted, RunNotFound
from decurion_ledger.path import LedgerPath
from decurion_ledger.stores.port import Store
from decurion_ledger.verifier.anchors import Anchors, Seen, check_anchors
from decurion_ledger.verifier.blobs import Blobs, optional
from decurion_ledger.verifier.derived import entries, index_fault, needs_fault, tail_fault
from decurion_ledger.verifier.files import Files
from decurion_ledger.verifier.form import FORMAT, UNREADABLE, OtherFormat, canonical, content, sealed, sha, tree
from decurion_ledger.verifier.hashes import stored_hash, value_hash
from decurion_ledger.verifier.problem import Problem, Report
from decurion_ledger.verifier.provenance import statement_fault
from decurion_ledger.verifier.results import Results
from decurion_ledger.verifier.signatures import certificate_fault, is_signed

_DERIVED = ("needs", "tail", "index/")
_BESIDE = ("final", "provenance", "packs/", "receipts/", *_DERIVED)
"""The objects of a run beside its log. Receipts are notes of runners, which have no keys: what a driver takes of one
stands in the log.
"""
_TYPES = frozenset(
    [
        "genesis",
        "fence",
        "commit",
        "skip",
        "attempt_failed",
        "turn",
        "effect_intended",
        "effect_settled",
        "scope_opened",
        "join",
        "lease_lost",
        "timer_set",
        "timer_fired",
        "approval_requested",
        "approval_given",
        "race_won",
        "budget",
        "conflict",
        "suspended",
        "resumed",
        "cancel",
        "close",
    ]
)
_MOST_SEGMENT = 64 * 1024 * 1024
_MOST_PACK = 512 * 1024 * 1024
"""Bytes of an object above which it is not read: nothing of its kind is half as large."""


async def verify(store: Store, run: str, *, roots: Sequence[str] = (), anchors: Anchors | None = None) -> list[Problem]:
    """All problems of the run's log, `final` and blobs, in order of slots; an empty list is the proof. With `roots`,
    public keys in hex, every segment must be signed by a driver that the holder of one of them had appointed; with
    `anchors` the log must be what they say that it was.

    Raises `RunNotFound` or `RunDeleted` when there is nothing of this run, or the store's error: then nothing is
    proved.
    """
    return (await examine(store, run, roots=roots, anchors=anchors)).problems


async def examine(store: Store, run: str, *, roots: Sequence[str] = (), anchors: Anchors | None = None) -> Report:
    """As `verify`, with who signed what."""
    base = f"runs/{hashlib.sha256(run.encode()).hexdigest()[:2]}/{run}/"
    sizes = {info.key: info.size async for info in store.list(base)}
    keys = sorted(sizes)
    audit = _Audit(run, base, tuple(roots))
    if not keys:
        if anchors is not None and await audit.anchored(anchors):
            return audit.report()
        if await optional(store, f"gc/runs/{run}") is not None:
            raise RunDeleted(run, store.uri)
        raise RunNotFound(run, store.uri)
    audit.names(keys)
    for slot in sorted(audit.slots):
        key = f"{base}log/{slot:012d}"
        audit.segment(slot, key, await store.get(key) if sizes[key] <= _MOST_SEGMENT else b"")
        await audit.blobs.check(store)
    final = await optional(store, f"{base}final")
    audit.end(final)
    audit.statement(await optional(store, f"{base}provenance"), final is not None)
    for key in keys:
        if key.startswith(f"{base}packs/"):
            audit.pack(key, await optional(store, key) if sizes[key] <= _MOST_PACK else b"")
    await audit.files.check(store, base)
    for key in keys:
        if key.removeprefix(base).startswith(_DERIVED):
            audit.derived(key, await optional(store, key), final)
    if anchors is not None:
        await audit.anchored(anchors)
    return audit.report()


@dataclass(slots=True)
class _Audit:
    """What has been seen so far. `head` is None after a segment that could not be read: then nothing is said of
    `previous`. `owner` is epoch, driver, nonce and key of the last fence.
    """

    run: str
    base: str
    roots: tuple[str, ...]
    problems: list[Problem] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)
    head: bytes | None = None
    hashes: dict[int, bytes] = field(default_factory=dict)
    genesis: dict[str, Any] = field(default_factory=dict)
    close: dict[str, Any] = field(default_factory=dict)
    closer: tuple[str, Any] = ("", None)
    certificate: Any = None
    anchors: int = 0
    entries: dict[int, list[bytes]] = field(default_factory=dict)
    owner: tuple[int, str, str, str] | None = None
    epoch: int = 0
    leader_epoch: int = 0
    closed_at: int | None = None
    results: Results = field(default_factory=Results)
    signed: int = 0
    issuers: list[str] = field(default_factory=list)
    blobs: Blobs = field(init=False)
    files: Files = field(init=False)

    def __post_init__(self) -> None:
        self.blobs = Blobs(self._problem)
        self.files = Files(self._problem)

    def names(self, keys: list[str]) -> None:
        """Check the names of the run's objects; under `log/` they are twelve digits each, no gap from 0 on."""
        for key in keys:
            name = key.removeprefix(f"{self.base}log/")
            if name == key:
                if not key.removeprefix(self.base).startswith(_BESIDE):
                    self._problem("FOREIGN-OBJECT", key, "a run has no such object")
                continue
            if len(name) == 12 and name.isascii() and name.isdigit():
                self.slots.add(int(name))
            else:
                self._problem("FOREIGN-OBJECT", key, "no slot has such a name")
        expected = 0
        for slot in sorted(self.slots):
            if slot > expected:
                many = f"{slot - expected} slots from here on are" if slot > expected + 1 else "the slot is"
                key = f"{self.base}log/{expected:012d}"
                self._problem("SLOT-MISSING", key, f"{many} missing but later ones exist")
            expected = slot + 1
        if 0 not in self.slots and len(self.slots) == 0:
            self._problem("SLOT-MISSING", f"{self.base}log/{0:012d}", "the log is missing")

    def segment(self, slot: int, key: str, data: bytes) -> None:
        previous, self.head = self.head, None
        if slot == 0:
            previous = sha("log/v0", self.run.encode())
        try:
            segment = sealed(data)
        except OtherFormat as e:
            self._problem("SEGMENT-FORMAT", key, str(e))
            return
        except UNREADABLE as e:
            self._problem("SEGMENT-HASH", key, f"the segment was changed, or is none ({e})")
            return
        self.head = segment.hash
        self.hashes[slot] = segment.hash
        header = segment.header
        self._header(slot, key, header, previous)
        if header["key"]:
            self.signed += 1
            if not is_signed(header["key"], "signature/v0", segment.stored, segment.signature):
                self._problem("SIGNATURE", key, f"it is not signed by the key {header['key']} that it names")
        try:
            lines, tables, frames = content(data, segment.start)
        except UNREADABLE as e:
            self._problem("SEGMENT-FORMAT", key, f"the segment cannot be read ({e})")
            return
        leaves = [sha("record/v0", line) for line in lines]
        if header["count"] != len(lines) or header["root"] != tree("records/v0", leaves).hex():
            self._problem("MERKLE-ROOT", key, "the records do not have the count and Merkle root in the header")
        self._records(slot, key, header, lines, leaves, tables)
        results = {leaf for line, leaf in zip(lines, leaves, strict=True) if line.startswith(b'{"core":')}
        self.entries[slot] = entries(slot, tables, frames, results)
        if _writer(header) != self.owner:
            driver, epoch = header["driver"], header["epoch"]
            self._problem("OWNER", key, f"driver {driver} wrote with epoch {epoch}, which it did not own")

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
            "format": FORMAT,
            "run": self.run,
            "slot": last,
            "head": self.head.hex() if self.head else "",
            "root": self._root(),
        }
        if final != canonical(expected):
            self._problem("FINAL", key, f"it does not name the log that ends at slot {last}")

    def statement(self, stored: bytes | None, final: bool) -> None:
        """Check the statement in the close record, and the copy of it beside `final`."""
        key = f"{self.base}provenance"
        if "provenance" not in self.close:
            if stored is not None:
                self._problem("PROVENANCE", key, "the log holds no such statement")
            return
        if stored is None:
            # Without `final` the close was cut off, which is told once.
            if final:
                self._problem("PROVENANCE-MISSING", key, "the close record holds a statement that is not beside it")
        elif stored != canonical(self.close["provenance"]):
            self._problem("PROVENANCE", key, "it is not the statement in the close record")
        by, certificate = self.closer
        fault = statement_fault(
            self.close["provenance"],
            genesis=self.genesis,
            close=self.close,
            run=self.run,
            key=by,
            certificate=certificate,
        )
        if fault is not None:
            self._problem("PROVENANCE", key, f"the statement in the close record does not hold: {fault}")

    def pack(self, key: str, data: bytes | None) -> None:
        if data is None or hashlib.sha256(data).hexdigest() != key.rpartition("/")[2]:
            self._problem("PACK", key, "its bytes do not have the SHA-256 by which it is named")
        if data is not None:
            self.files.take(key.rpartition("/")[2], data)

    def derived(self, key: str, data: bytes | None, final: bytes | None) -> None:
        """Check an object that is made from the log: it may be missing, and be stale only as `tail` is."""
        name = key.removeprefix(self.base)
        if data is None:
            return
        if name == "needs":
            fault = needs_fault(data, self.blobs.seen, final)
        elif name == "tail":
            fault = tail_fault(data, self.entries)
        else:
            fault = index_fault(name.removeprefix("index/"), data, self.entries)
        if fault is not None:
            self._problem("DERIVED", key, f"{fault}; delete it, and it is made anew")

    async def anchored(self, anchors: Anchors) -> int:
        """Compare with the anchors; how many there are."""
        seen = Seen(self.hashes, self.closed_at is not None)
        self.anchors = await check_anchors(anchors, self.run, seen, self._problem)
        return self.anchors

    def report(self) -> Report:
        return Report(
            self.problems,
            len(self.slots),
            self.head.hex() if self.head else "",
            self._root(),
            self.closed_at is not None,
            self.signed,
            tuple(self.issuers),
            self.anchors,
        )

    def _root(self) -> str:
        return tree("final/v0", [self.hashes[slot] for slot in sorted(self.hashes)]).hex()

    def _header(self, slot: int, key: str, header: Mapping[str, Any], previous: bytes | None) -> None:
        if (header["run"], header["slot"]) != (self.run, slot):
            self._problem("WRONG-PLACE", key, f"it is slot {header['slot']} of run {header['run']}")
        if previous is not None and header["previous"] != previous.hex():
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
                if kind not in _TYPES:
                    raise ValueError(f"no record has the type {kind!r:.40}")
                if canonical(record) != line:
                    self._problem("NOT-CANONICAL", key, "the record is not in canonical form", path)
                if "core" in record:
                    self.results.add(record["core"], record["core_hash"], self._teller(key))
                self._place(slot, number, key, kind, envelope, header, last=number == len(lines) - 1)
                self._values(key, path, envelope.get("values", {}))
                if "core" in record:
                    self._given(key, path, record["core"], envelope.get("values", {}))
                self.files.name(key, path, record.get("core", {}), envelope)
                if kind == "genesis":
                    self.genesis = record
                elif kind == "close":
                    self.close, self.closer = envelope, (header["key"], self.certificate)
            except (*UNREADABLE, BadPath) as e:
                self._problem("RECORD-FORMAT", key, f"record {number} cannot be read ({e})")
        found = [(path, length, leaf) for path, _, _, length, leaf in tables]
        order = [entry[:3] for entry in tables]
        if sorted(expected) != sorted(found) or order != sorted(order):
            self._problem("INDEX", key, "the index does not name the records")

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
            epoch, leader = envelope["epoch"], envelope["leader_epoch"]
            if epoch <= self.epoch or epoch != header["epoch"] or envelope["driver_id"] != header["driver"]:
                self._problem("EPOCH", key, f"a fence of epoch {epoch} follows epoch {self.epoch}")
            if leader < self.leader_epoch:
                self._problem("EPOCH", key, f"a fence of leader epoch {leader} follows {self.leader_epoch}")
            if number != (slot == 0):
                self._problem("OWNER", key, "records stand before the fence of the driver that wrote them")
            self.epoch, self.leader_epoch = max(self.epoch, epoch), max(self.leader_epoch, leader)
            self.owner = _writer(header)
            self._appointed(key, envelope, header)
        if kind == "close":
            self.closed_at = slot
            if not last:
                self._problem("BEYOND-CLOSE", key, "records follow the close record")
            if "state" in envelope and envelope["state"] != self.results.state(envelope):
                self._problem("STATE", key, "the state hash in the close record is not that of the results before it")

    def _appointed(self, key: str, envelope: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        """Check by whom the driver of a fence was appointed."""
        found = self.certificate = envelope.get("certificate")
        if found is None and not header["key"]:
            if self.roots:
                driver = header["driver"]
                self._problem("UNSIGNED", key, f"driver {driver} wrote from here on without a certificate of its key")
            return
        fault = certificate_fault(
            found, run=self.run, leader_epoch=envelope["leader_epoch"], key=header["key"], roots=self.roots
        )
        if fault is not None:
            self._problem("CERTIFICATE", key, f"the certificate in the fence does not appoint its driver: {fault}")
        elif found is not None and found["issuer"] not in self.issuers:
            self.issuers.append(found["issuer"])

    def _values(self, key: str, path: str, values: Mapping[str, Mapping[str, Any]]) -> None:
        for name, held in values.items():
            if "sealed" in held:
                if not self.blobs.name_sealed(held, key):
                    self._problem("VALUE-HASH", key, "an encrypted value is of another form", path)
                continue
            if "blob" in held:
                self.blobs.name(name, held["blob"], held["bytes"], key)
                continue
            if "tree" in held:
                self.blobs.name_lists(held["tree"])
            found = stored_hash(held["tree"]) if "tree" in held else value_hash(held["inline"])
            if found != name:
                self._problem("VALUE-HASH", key, "a value does not have its hash", path)

    def _given(self, key: str, path: str, core: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Check that a record holds, or says where to find, what its node gave and wrote."""
        named = [core["delta"], *(name for _, name in core["writes"])]
        if any(name is not None and name not in values for name in named):
            self._problem("VALUE-HASH", key, "a value that it gives is not with it", path)

    def _teller(self, key: str) -> Any:
        return lambda code, path, message: self._problem(code, key, message, path)

    def _problem(self, code: str, where: str, message: str, path: str = "") -> None:
        self.problems.append(Problem(code, where, message, path))


def _writer(header: Mapping[str, Any]) -> tuple[int, str, str, str]:
    return header["epoch"], header["driver"], header["nonce"], header["key"]

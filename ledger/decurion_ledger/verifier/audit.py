"""The course of a verification: slot by slot, then `final`."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import zstandard

from decurion_ledger.errors import BadPath, RunDeleted, RunNotFound
from decurion_ledger.path import LedgerPath
from decurion_ledger.stores.port import Store
from decurion_ledger.verifier.blobs import Blobs, optional
from decurion_ledger.verifier.form import FORMAT, OtherFormat, canonical, content, sealed, sha, tree
from decurion_ledger.verifier.hashes import stored_hash, value_hash
from decurion_ledger.verifier.problem import Problem, Report
from decurion_ledger.verifier.results import Results
from decurion_ledger.verifier.signatures import certificate_fault, is_signed

_UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error, zstandard.ZstdError)


async def verify(store: Store, run: str, *, roots: Sequence[str] = ()) -> list[Problem]:
    """All problems of the run's log, `final` and blobs, in order of slots; an empty list is the proof. With `roots`,
    public keys in hex, every segment must be signed by a driver that the holder of one of them had appointed.

    Raises `RunNotFound` or `RunDeleted` when there is nothing of this run, or the store's error: then nothing is
    proved.
    """
    return (await examine(store, run, roots=roots)).problems


async def examine(store: Store, run: str, *, roots: Sequence[str] = ()) -> Report:
    """As `verify`, with who signed what."""
    base = f"runs/{hashlib.sha256(run.encode()).hexdigest()[:2]}/{run}/"
    keys = sorted([info.key async for info in store.list(base)])
    if not keys:
        if await optional(store, f"gc/runs/{run}") is not None:
            raise RunDeleted(run, store.uri)
        raise RunNotFound(run, store.uri)
    audit = _Audit(run, base, tuple(roots))
    audit.names(keys)
    for slot in sorted(audit.slots):
        key = f"{base}log/{slot:012d}"
        audit.segment(slot, key, await store.get(key))
        await audit.blobs.check(store)
    audit.end(await optional(store, f"{base}final"))
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
    hashes: list[bytes] = field(default_factory=list)
    owner: tuple[int, str, str, str] | None = None
    epoch: int = 0
    closed_at: int | None = None
    results: Results = field(default_factory=Results)
    signed: int = 0
    issuers: list[str] = field(default_factory=list)
    blobs: Blobs = field(init=False)

    def __post_init__(self) -> None:
        self.blobs = Blobs(self._problem)

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
            previous = sha("log/v0", self.run.encode())
        try:
            segment = sealed(data)
        except OtherFormat as e:
            self._problem("SEGMENT-FORMAT", key, str(e))
            return
        except _UNREADABLE as e:
            self._problem("SEGMENT-HASH", key, f"the segment was changed, or is none ({e})")
            return
        self.head = segment.hash
        self.hashes.append(segment.hash)
        header = segment.header
        self._header(slot, key, header, previous)
        if header["key"]:
            self.signed += 1
            if not is_signed(header["key"], "signature/v0", segment.stored, segment.signature):
                self._problem("SIGNATURE", key, f"it is not signed by the key {header['key']} that it names")
        try:
            lines, tables = content(data, segment.start)
        except _UNREADABLE as e:
            self._problem("SEGMENT-FORMAT", key, f"the segment cannot be read ({e})")
            return
        leaves = [sha("record/v0", line) for line in lines]
        if header["count"] != len(lines) or header["root"] != tree("records/v0", leaves).hex():
            self._problem("MERKLE-ROOT", key, "the records do not have the count and Merkle root in the header")
        self._records(slot, key, header, lines, leaves, tables)
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
            "root": tree("final/v0", self.hashes).hex(),
        }
        if final != canonical(expected):
            self._problem("FINAL", key, f"it does not name the log that ends at slot {last}")

    def report(self) -> Report:
        return Report(
            self.problems,
            len(self.slots),
            self.head.hex() if self.head else "",
            self.closed_at is not None,
            self.signed,
            tuple(self.issuers),
        )

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
                if canonical(record) != line:
                    self._problem("NOT-CANONICAL", key, "the record is not in canonical form", path)
                if "core" in record:
                    self.results.add(record["core"], record["core_hash"], self._teller(key))
                self._place(slot, number, key, kind, envelope, header, last=number == len(lines) - 1)
                self._values(key, path, envelope.get("values", {}))
            except (*_UNREADABLE, BadPath) as e:
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
            epoch = envelope["epoch"]
            if epoch <= self.epoch or epoch != header["epoch"] or envelope["driver_id"] != header["driver"]:
                self._problem("EPOCH", key, f"a fence of epoch {epoch} follows epoch {self.epoch}")
            self.epoch = max(self.epoch, epoch)
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
        found = envelope.get("certificate")
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
            if "blob" in held:
                self.blobs.name(name, held["blob"], held["bytes"], key)
                continue
            if "tree" in held:
                self.blobs.name_lists(held["tree"])
            found = stored_hash(held["tree"]) if "tree" in held else value_hash(held["inline"])
            if found != name:
                self._problem("VALUE-HASH", key, "a value does not have its hash", path)

    def _teller(self, key: str) -> Any:
        return lambda code, path, message: self._problem(code, key, message, path)

    def _problem(self, code: str, where: str, message: str, path: str = "") -> None:
        self.problems.append(Problem(code, where, message, path))


def _writer(header: Mapping[str, Any]) -> tuple[int, str, str, str]:
    return header["epoch"], header["driver"], header["nonce"], header["key"]

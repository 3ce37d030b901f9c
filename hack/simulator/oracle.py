"""What must hold of every history, judged by what the world knows: who wrote what, when, and what was promised to whom.

It shares no code with the writer: segments are taken apart here. Invariants are numbered as in docs/faults.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import zstandard

from decurion_ledger import Record
from simulator.network import Change, Objects
from simulator.world import World

DRIFT = 1.03
"""Clocks of processes go up to one percent wrong, either way."""


@dataclass(frozen=True, slots=True)
class Slot:
    time: float
    by: str
    header: dict[str, Any]
    records: list[dict[str, Any]]
    end: str


class Oracle:
    """Hears everything. `violations` are sentences with the number of the invariant in front."""

    def __init__(self, world: World, objects: Objects, run: str, *, stall: float) -> None:
        self._world = world
        self._objects = objects
        self._stall = stall
        self._base = f"runs/{hashlib.sha256(run.encode()).hexdigest()[:2]}/{run}/"
        self._run = run
        self.violations: list[str] = []
        self.slots: list[Slot] = []
        self.effects: Counter[str] = Counter()
        self.appointed: dict[str, int] = {}
        """The leader epochs with which drivers were sent out."""
        self.alarms: list[str] = []
        self._makers: dict[str, str] = {}
        self._numbers: set[str] = set()
        self._results: dict[str, str] = {}
        self._owner = ""
        self._epoch = 0
        self._leader = 0
        self._lost: dict[str, float] = {}
        """When each former owner was fenced."""
        self._acknowledged: list[tuple[str, str, int]] = []
        self._since: dict[str, int] = {}
        """The slot of each result."""
        self._written: dict[str, bytes] = {}
        """What was first written under each key that nothing may overwrite."""
        self._views: dict[tuple[str, str], dict[str, str]] = {}
        """What the holder of a lease of a driver was given, and has made since: core hashes by path."""
        self._blobs: set[str] = set()
        self._cleared = False
        self._collected = False
        objects.watchers.append(self._changed)

    @property
    def results(self) -> dict[str, str]:
        return self._results

    @property
    def highest(self) -> int:
        return self._leader

    @property
    def final(self) -> bool:
        return f"{self._base}final" in self._objects.held

    @property
    def kept(self) -> bool:
        """Whether anything of the run is stored but what a driver wrote that slept."""
        return any(key.startswith(self._base) for key in self._objects.held) and not self._collected

    def violated(self, number: int, sentence: str) -> None:
        self._world.note("oracle", f"VIOLATED {number}: {sentence}")
        self.violations.append(f"{number}: at {self._world.now:.3f} s {sentence}")

    # ------------------------------------------------------------------ what the actors say

    def made(self, driver: str, record: Record) -> None:
        self._makers[record.envelope["number"]] = driver

    def acknowledged(self, driver: str, record: Record, slot: int) -> None:
        self._world.note(driver, f"acknowledges {record.envelope['number']} in {slot}")
        self._acknowledged.append((driver, record.envelope["number"], slot))
        if self._cleared:
            self.violated(12, f"{driver} acknowledges a record of a run that is collected")
        lost = self._lost.get(driver)
        if lost is not None and self._world.now - lost > self._stall * DRIFT:
            ago = self._world.now - lost
            self.violated(6, f"{driver} acknowledges a record {ago:.1f} s after another driver took the log")

    def opened(self, driver: str, found: list[tuple[int, Record]]) -> None:
        mine = [(s, r.envelope.get("number", r.type)) for s, r in found]
        through = found[-1][0] if found else -1
        held = [(s, _name(r)) for s in range(through + 1) for r in self.slots[s].records]
        if mine != held:
            self.violated(8, f"{driver} replayed another log than is stored")

    def stands(self, driver: str, slot: int, results: Mapping[str, str]) -> None:
        """What a driver holds for the state of the run after `slot` is what its log says up to there."""
        fold = {path: core for path, core in self._results.items() if self._since[path] <= slot}
        if results != fold:
            self.violated(8, f"{driver} holds another state than the log up to slot {slot} gives")

    def given(self, driver: str, lease: str, view: Mapping[str, str]) -> None:
        self._views[driver, lease] = dict(view)

    def gave(self, driver: str, lease: str, path: str, core: str) -> None:
        self._views[driver, lease][path] = core

    def viewed(self, driver: str, lease: str, branch: int, view: Mapping[str, str]) -> None:
        """What a node sees: what its lease was given, what was made under that, and nothing of another branch."""
        foreign = sorted(path for path in view if not path.startswith(f"/b{branch}/"))
        if foreign:
            self.violated(10, f"a node of branch {branch} sees {foreign[0]}")
        elif view != self._views[driver, lease]:
            self.violated(9, f"what a node under lease {lease} of {driver} sees has changed while it runs")

    def fenced(self, driver: str, slot: int) -> None:
        if slot >= len(self.slots) or self.slots[slot].by == driver:
            self.violated(5, f"{driver} says that it was fenced in slot {slot}, where nobody else wrote")

    def alarm(self, driver: str, sentence: str) -> None:
        self.alarms.append(f"{driver}: {sentence}")

    def carried_out(self, where: str, by: str) -> None:
        self.effects[where] += 1
        self._world.note(by, f"carries out {where}")
        if self.effects[where] > 1:
            self.violated(16, f"the effect at {where} was carried out twice, the second time for {by}")

    # ------------------------------------------------------------------ what the store sees

    def _changed(self, change: Change) -> None:
        self._once(change)
        if change.data is None and change.key in self._blobs and not self._collected:
            self.violated(11, f"{change.by} deleted a blob that the run names")
        if change.data is None and change.key == f"{self._base}final":
            self._collected = True
        name = change.key.removeprefix(f"{self._base}log/")
        if name == change.key or self._collected:
            return
        number = int(name)
        if change.data is None:
            if not self.final:
                self.violated(12, f"{change.by} deleted slot {number} of a run that has not ended")
            self._cleared = True
        elif self._cleared:
            return
        elif number < len(self.slots):
            self.violated(1, f"{change.by} wrote slot {number} again")
        elif number > len(self.slots):
            self.violated(1, f"{change.by} wrote slot {number} while {len(self.slots)} is free")
        else:
            self._taken(number, change.by, change.data)

    def _once(self, change: Change) -> None:
        """No object is ever overwritten but those that say so: hints and what is derived, which is made anew."""
        name = change.key.removeprefix(self._base)
        if change.key == name and not name.startswith("blobs/"):
            return
        if name in ("tail", "needs") or name.startswith(("index/", "log/")) or change.data is None:
            return
        if self._written.setdefault(change.key, change.data) != change.data:
            self.violated(1, f"{change.by} wrote other bytes over {name[:40]}")

    def _taken(self, number: int, by: str, data: bytes) -> None:
        header, records = _parsed(data)
        self._written[f"{self._base}log/{number:012d}"] = data
        slot = Slot(self._world.now, by, header, records, data[-32:].hex())
        if (header["run"], header["slot"]) != (self._run, number):
            self.violated(2, f"slot {number} holds slot {header['slot']} of run {header['run']}")
        if number and header["previous"] != self.slots[-1].end:
            self.violated(2, f"slot {number} does not follow the one before it")
        self.slots.append(slot)
        for record in records:
            if record.get("type") == "fence":
                self._fence(number, by, record["envelope"])
        if by != self._owner or header["nonce"] != by or header["epoch"] != self._epoch:
            self.violated(3, f"{by} wrote slot {number} with epoch {header['epoch']}; {self._owner} owned the log")
        for record in records:
            self._record(number, by, record)

    def _fence(self, number: int, by: str, fence: dict[str, Any]) -> None:
        if fence["epoch"] <= self._epoch:
            self.violated(3, f"{by} fenced slot {number} with epoch {fence['epoch']} after {self._epoch}")
        mine = self.appointed[by]
        if mine < self._leader:
            self.violated(3, f"{by}, appointed by leader {mine}, took the log after leader {self._leader} had")
        if self._owner and self._owner != by:
            self._lost.setdefault(self._owner, self._world.now)
        self._owner, self._epoch, self._leader = by, fence["epoch"], max(self._leader, mine)

    def _record(self, number: int, by: str, record: dict[str, Any]) -> None:
        name = record["envelope"].get("number")
        if name is not None:
            if name in self._numbers:
                self.violated(5, f"record {name} stands in the log twice, again in slot {number}")
            self._numbers.add(name)
            if self._makers.get(name) != by:
                self.violated(6, f"record {name} of {self._makers.get(name)} stands in slot {number} of {by}")
        core = record.get("core")
        if core is not None:
            if core["path"] in self._results:
                self.violated(4, f"{core['path']} has a second result in slot {number}")
            for parent, expected in core["parents"]:
                if self._results.get(parent) != expected:
                    self.violated(7, f"{core['path']} in slot {number} depends on another {parent} than stands before")
                if core["path"].startswith("/b") and parent.split("/")[1] != core["path"].split("/")[1]:
                    self.violated(10, f"{core['path']} in slot {number} depends on {parent}, of another branch")
            self._results[core["path"]] = record["core_hash"]
            self._since[core["path"]] = number
        for held in record["envelope"].get("values", {}).values():
            if "blob" in held:
                key = f"blobs/{held['blob'][:2]}/{held['blob']}"
                self._blobs.add(key)
                if key not in self._objects.held:
                    self.violated(11, f"slot {number} names a blob that is not stored")

    # ------------------------------------------------------------------ the end

    def judge(self, expected: dict[str, str], problems: Iterable[tuple[int, str]]) -> None:
        """At the end of a history in which everything was mended: what was promised, and what must have come of it."""
        stand = {name: slot for slot, one in enumerate(self.slots) for r in one.records if (name := _name(r))}
        for driver, name, slot in self._acknowledged:
            if stand.get(name) != slot:
                self.violated(5, f"{driver} acknowledged {name} in slot {slot}, and it stands in {stand.get(name)}")
        for key, data in self._written.items():
            if self._objects.held.get(key, data) != data or ("/log/" in key and key not in self._objects.held):
                self.violated(1, f"{key.removeprefix(self._base)} is not any more what was written")
        if not self.final:
            self.violated(13, "the run has not come to its end, though everything was mended")
        elif self._results != expected:
            self.violated(13, "the run ended in other results than an undisturbed one")
        elif any(self.effects[path] != 1 for path in expected if path.endswith("/tool")):
            self.violated(16, "the run ended, and an effect of it was not carried out")
        for number, problem in problems:
            self.violated(number, f"the verifier reports: {problem}")


def _name(record: dict[str, Any]) -> str:
    name = record["envelope"].get("number")
    return str(name if name is not None else record["type"])


def _parsed(data: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and records of a segment: the header lies behind magic and length, the frames where the table says."""
    (length,) = struct.unpack_from(">I", data, 8)
    at, frames, _ = struct.unpack_from(">QII", data, len(data) - 56)
    lines: list[bytes] = []
    for i in range(frames):
        start, stored, raw = struct.unpack_from(">QII", data, at + 16 * i)
        frame = zstandard.ZstdDecompressor().decompress(data[start : start + stored], max_output_size=raw)
        lines += frame.split(b"\n")[:-1]
    return orjson.loads(data[12 : 12 + length]), [orjson.loads(line) for line in lines]

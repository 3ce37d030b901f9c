"""The course of one run under blows, and what must hold when it has ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import orjson
from cases import Blow, Case
from parts import Parts

from decurion_crds.canonical import digest
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, read_log, verify
from decurion_ledger.errors import RunNotFound, StoreError
from decurion_worker.embedded import run_embedded
from decurion_worker.opening import OpenRequest
from model_server import ModelServer

ENDED = ("Succeeded", "Failed", "Cancelled")
AT = "2026-01-01T00:00:00+00:00"


class Calls:
    """Calls by idempotency key, read from the model server's log as it grows."""

    def __init__(self, model: ModelServer) -> None:
        self._model = model
        self._at = 0
        self._counts: Counter[str] = Counter()

    def counts(self) -> Counter[str]:
        with self._model.log.open("rb") as log:
            log.seek(self._at)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                self._counts[orjson.loads(line)["idempotency_key"]] += 1
        return self._counts


@dataclass
class Course:
    """One run: what was done to it, how it ended, and what is wrong with that."""

    case: Case
    graph: CompiledGraph
    begun: float = field(default_factory=time.monotonic)
    left: list[Blow] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    durable: list[dict[str, int]] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    cancelled: bool = False
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.left = list(self.case.blows)

    def open(self, parts: Parts) -> None:
        """Open it, or open it again. A pool that does not answer is asked again later."""
        try:
            parts.client.put_bundle(self.graph)
            answer = parts.client.open(self.graph, self.case.name, self.case.input, scheduledAt=AT)
            if answer.status_code == 200 and "projection" in answer.json():
                self.last = answer.json()["projection"]
            if self.cancelled:
                self._cancel(parts)
        except httpx.HTTPError:
            return

    def due(self) -> Blow | None:
        return self.left[0] if self.left and self.last.get("committed", 0) >= self.left[0].records else None

    def strike(self, parts: Parts, blow: Blow) -> bool:
        """Let a blow fall that is due; whether it fell. One that cannot fall now stays due while the run goes on."""
        fell = self._cancel(parts) if blow.kind == "cancel" else parts.strike(blow.kind)
        if fell or self.ended:
            self.left.remove(blow)
        if fell:
            self.struck.append(f"{blow.kind}@{self.last.get('committed', 0)}")
        return fell

    def _cancel(self, parts: Parts) -> bool:
        try:
            answer = parts.client.call("POST", f"/runs/{self.case.name}/control", {"cancel": "Cancel"})
        except httpx.HTTPError:
            return False
        self.cancelled = answer.status_code == 202
        return self.cancelled

    @property
    def ended(self) -> bool:
        return self.last.get("phase") in ENDED

    def note_durable(self, parts: Parts, calls: Calls) -> None:
        """Remember how often the model was asked for what is durable now; it must not be asked again."""
        try:
            log = asyncio.run(_log(parts, self.case.name))
        except RunNotFound:
            return
        counts = calls.counts()
        keys = [self._key(r) for r in log if r.envelope.get("usage")]
        self.durable.append({key: counts[key] for key in keys})

    def _key(self, record: Record) -> str:
        return digest("effect/v0", self.case.name.encode(), b"\0", record.path.encode(), b"\0", b"0")

    def violations(self, parts: Parts, counts: Counter[str]) -> list[str]:
        """What is wrong with a run that has ended. A store that is struck meanwhile is waited for."""
        deadline = time.monotonic() + 300
        while True:
            try:
                return asyncio.run(self._violations(parts, counts))
            except StoreError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)

    async def _violations(self, parts: Parts, counts: Counter[str]) -> list[str]:
        name, found = self.case.name, []
        log = await _log(parts, name)
        # a run may end before the cancel that was meant for it
        declared = {self.case.phase} if self.cancelled or self.case.phase != "Cancelled" else set(ENDED)
        if self.cancelled:
            declared.add("Succeeded")
        if self.last["phase"] not in declared:
            found.append(f"ended {self.last['phase']} ({self.last.get('message')}), declared {sorted(declared)}")
        twice = [p for p, n in Counter(r.path for r in log if r.core and r.type != "genesis").items() if n > 1]
        found += [f"committed twice: {path}" for path in twice]
        again = {key for seen in self.durable for key, count in seen.items() if counts[key] != count}
        found += [f"the model was asked again for {key}, which was durable" for key in sorted(again)]
        found += [f"verify: {problem}" for problem in await verify(parts.store(), name)]
        if log[-1].type != "close":
            found.append("the log has no close record")
        if self.last["phase"] != "Cancelled":
            quiet = await self._quiet()
            if (quiet["phase"], quiet["stateHash"]) != (self.last["phase"], self.last["stateHash"]):
                found.append(f"state {self.last['stateHash']}, undisturbed {quiet['stateHash']} ({quiet['phase']})")
        return found

    async def _quiet(self) -> dict[str, Any]:
        """The same run in this process, undisturbed. Its id differs, so that its calls have keys of their own."""
        request = OpenRequest(
            run=f"{self.case.name}-quiet", name="quiet", graph=self.graph, input=self.case.input, scheduled_at=AT
        )
        end = await run_embedded(request, ledger=f"memory://{self.case.name}", secrets=lambda graph: {})
        return end.projection

    def line(self, violations: list[str]) -> dict[str, Any]:
        """What is written of the run."""
        return {
            "run": self.case.name,
            "blows": [asdict(blow) for blow in self.case.blows],
            "struck": self.struck,
            "phase": self.last.get("phase"),
            "attempt": self.last.get("attempt"),
            "records": self.last.get("committed"),
            "seconds": round(self.seconds, 1),
            "violations": violations,
        }


async def _log(parts: Parts, run: str) -> list[Record]:
    return [record async for _, record in read_log(parts.store(), run)]

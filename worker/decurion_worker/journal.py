"""What an item writes beside its results: effects before and after they happen, and the turns of agents. Design 04,
"Effects" and "Agent loop".

These records are events, without a core: they say what happened on the way to a result, and a runner that goes on with
an item reads them to know what must not happen again. Each stands at the path of its effect: that of the node for a
tool node, `/node#turn-0003.02` for the second call of an agent's third turn, whose own record is `/node#turn-0003`.
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from decurion_crds.canonical import Json, digest
from decurion_ledger import Record, RecordType, Values
from decurion_ledger.patience import Clock, SystemClock
from decurion_worker.failure import HIDDEN
from decurion_worker.permits import Permit, Receipts, Terms

EVENTS = frozenset({RecordType.TURN, RecordType.EFFECT_INTENDED, RecordType.EFFECT_SETTLED})
"""The records that an item's journal is made of."""
LOOKS = 8
"""How often a receipt is looked for while an effect is in doubt."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The last that is known of an effect. `answer` is what came of one that was carried out."""

    state: Literal["intended", "done", "undone"]
    answer: Json = None


class Journal:
    """The journal of one item on one runner. `earlier` are its records that were durable when the item was given out.

    `durable` hands a record to the link and returns when it is durable. `receipts` are those of the runner.
    """

    def __init__(
        self,
        values: Values,
        run: str,
        *,
        earlier: Iterable[Record],
        durable: Callable[[Record], Awaitable[None]],
        envelope: Mapping[str, Json],
        receipts: Receipts,
        terms: Terms,
        clock: Clock | None = None,
    ) -> None:
        self._values = values
        self._run = run
        self._durable = durable
        self._receipts = receipts
        self._terms = terms
        self._clock = clock or SystemClock()
        self._begun = self._clock.now()
        self._envelope = dict(envelope)
        self._earlier: dict[str, list[Record]] = defaultdict(list)
        for record in earlier:
            self._earlier[record.path].append(record)

    def on(self, values: Values) -> Journal:
        """The same journal, whose records hold values as `values` writes them."""
        if values is self._values:
            return self
        found = copy.copy(self)
        found._values = values
        return found

    def key(self, path: str) -> str:
        """The idempotency key of the effect at `path`: the same for every try, by whichever process."""
        return digest("effect/v0", self._run.encode(), b"\0", path.encode())

    async def effect(self, path: str) -> Effect | None:
        """What was written of an effect before this item was given out."""
        found = [record for record in self._earlier.get(path, ()) if record.type != RecordType.TURN]
        if not found:
            return None
        last = found[-1]
        if last.type == RecordType.EFFECT_INTENDED:
            return Effect("intended")
        if "answer" not in last.envelope:
            return Effect("undone")
        return Effect("done", await self._values.unpack(last.envelope, last.envelope["answer"]))

    async def find_out(self, path: str, *, timeout: float) -> Effect:
        """What came of an effect that was intended before this item was given out, `timeout` being how long its call
        may take: `done` when its runner left a receipt, which is a settlement from now on; otherwise `intended`, once
        no call of that runner can go out or be on its way any more.
        """
        intent = [r for r in self._earlier[path] if r.type == RecordType.EFFECT_INTENDED][-1]
        lease = str(intent.envelope.get("lease", ""))
        over = self._begun + self._terms.doubt(timeout)
        while True:
            late = self._clock.now() >= over
            receipt = await self._receipts.find(self._run, lease, self.key(path)) if lease else None
            if receipt is not None:
                answer = await self._values.unpack(receipt.envelope, receipt.envelope["answer"])
                await self.settle(path, answer)
                return Effect("done", answer)
            if late:
                return Effect("intended")
            step = self._terms.doubt(timeout) / LOOKS
            await asyncio.sleep(min(step, max(over - self._clock.now(), 0.0)))

    async def intend(self, path: str, *, server: str, tool: str, arguments: Json) -> Permit | None:
        """Say that an effect is about to happen. The leave to let it happen, once that is durable; None when the
        saying took longer than it allows: the caller says that nothing happened, and asks anew. Each asking is a record
        of its own, so that leave is given only by a driver that owned the log after it was asked for.
        """
        permit = Permit(self._clock, self._clock.now() + self._terms.permit)
        told: dict[str, Json] = {"server": server, "tool": tool, "arguments": self._values.name(arguments)}
        await self._write(RecordType.EFFECT_INTENDED, path, told, arguments)
        return permit if permit.holds else None

    async def settle(self, path: str, answer: Json) -> None:
        """Say what came of an effect that was carried out. Cancelled before that is durable, it leaves a receipt."""
        told: dict[str, Json] = {"answer": self._values.name(answer)}
        try:
            await self._write(RecordType.EFFECT_SETTLED, path, told, answer)
        except asyncio.CancelledError:
            lease = self._envelope.get("lease")
            if isinstance(lease, str) and lease:
                settled = self._record(RecordType.EFFECT_SETTLED, path, told, answer)
                self._receipts.leave(self._run, lease, settled)
            raise

    async def undo(self, path: str, why: str) -> None:
        """Say that an effect that was intended did not happen."""
        message = HIDDEN if self._values.is_sealing else why
        await self._write(RecordType.EFFECT_SETTLED, path, {"message": message}, None)

    async def turn(self, path: str) -> Json:
        """The answer of a model in the turn at `path`, where it came before; None where it did not."""
        for record in self._earlier.get(path, ()):
            if record.type == RecordType.TURN:
                return await self._values.unpack(record.envelope, record.envelope["answer"])
        return None

    def usage(self, path: str) -> Mapping[str, int]:
        """What the turn at `path` used, once it was taken; nothing where it was not."""
        found = (record.envelope["usage"] for record in self._earlier.get(path, ()) if record.type == RecordType.TURN)
        return dict(next(found, None) or {})

    def fallback(self, path: str) -> str:
        """The LLM that answered in the turn at `path` in the place of the agent's own; empty where that did."""
        found = (r.envelope.get("fallback") for r in self._earlier.get(path, ()) if r.type == RecordType.TURN)
        return str(next(found, None) or "")

    async def take_turn(
        self, path: str, answer: Json, *, request: str, usage: Mapping[str, int], by: Mapping[str, Json]
    ) -> None:
        """Say what the model answered that `by` names; `request` is the digest of what it was asked."""
        told: dict[str, Json] = {
            "answer": self._values.name(answer),
            "request": request,
            "usage": dict(usage),
            **by,
        }
        await self._write(RecordType.TURN, path, told, answer)

    async def _write(self, type: RecordType, path: str, told: Mapping[str, Json], value: Json) -> None:
        record = await self._record(type, path, told, value)
        await self._durable(record)
        self._earlier[path].append(record)

    async def _record(self, type: RecordType, path: str, told: Mapping[str, Json], value: Json) -> Record:
        envelope: dict[str, Json] = {"run": self._run, **self._envelope, **told}
        if type != RecordType.TURN:
            envelope["effect"] = self.key(path)
        if value is not None:
            envelope["values"] = await self._values.pack([value])
        return Record.event(type, path, envelope)

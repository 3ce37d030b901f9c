"""What an item writes beside its results: effects before and after they happen, and the turns of agents. Design 04,
"Effects" and "Agent loop".

These records are events, without a core: they say what happened on the way to a result, and a runner that goes on with
an item reads them to know what must not happen again. Each stands at the path of its effect: that of the node for a
tool node, `/node#turn-0003.02` for the second call of an agent's third turn, whose own record is `/node#turn-0003`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from decurion_crds.canonical import Json, digest
from decurion_ledger import Record, RecordType, Values, vhash

EVENTS = frozenset({RecordType.TURN, RecordType.EFFECT_INTENDED, RecordType.EFFECT_SETTLED})
"""The records that an item's journal is made of."""
PERMIT_SECONDS = 15.0
"""How long after it was sent an intent allows its effect, once it is durable."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The last that is known of an effect. `answer` is what came of one that was carried out."""

    state: Literal["intended", "done", "undone"]
    answer: Json = None


class Journal:
    """The journal of one item on one runner. `earlier` are its records that were durable when the item was given out.

    `durable` hands a record to the link and returns when it is durable.
    """

    def __init__(
        self,
        values: Values,
        run: str,
        *,
        earlier: Iterable[Record],
        durable: Callable[[Record], Awaitable[None]],
        envelope: Mapping[str, Json],
    ) -> None:
        self._values = values
        self._run = run
        self._durable = durable
        self._envelope = dict(envelope)
        self._earlier: dict[str, list[Record]] = defaultdict(list)
        for record in earlier:
            self._earlier[record.path].append(record)

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

    async def intend(self, path: str, *, server: str, tool: str, arguments: Json) -> bool:
        """Say that an effect is about to happen. True when that is durable and the effect may happen now; False when
        the saying took longer than it allows.
        """
        clock = asyncio.get_running_loop().time
        sent = clock()
        told: dict[str, Json] = {"server": server, "tool": tool, "arguments": vhash(arguments)}
        await self._write(RecordType.EFFECT_INTENDED, path, told, arguments)
        return clock() - sent < PERMIT_SECONDS

    async def settle(self, path: str, answer: Json) -> None:
        """Say what came of an effect that was carried out."""
        await self._write(RecordType.EFFECT_SETTLED, path, {"answer": vhash(answer)}, answer)

    async def undo(self, path: str, why: str) -> None:
        """Say that an effect that was intended did not happen."""
        await self._write(RecordType.EFFECT_SETTLED, path, {"message": why}, None)

    async def turn(self, path: str) -> Json:
        """The answer of a model in the turn at `path`, where it came before; None where it did not."""
        for record in self._earlier.get(path, ()):
            if record.type == RecordType.TURN:
                return await self._values.unpack(record.envelope, record.envelope["answer"])
        return None

    async def take_turn(self, path: str, answer: Json, *, request: str, usage: Mapping[str, int], model: str) -> None:
        """Say what a model answered; `request` is the digest of what it was asked."""
        told: dict[str, Json] = {"answer": vhash(answer), "request": request, "usage": dict(usage), "model": model}
        await self._write(RecordType.TURN, path, told, answer)

    async def _write(self, type: RecordType, path: str, told: Mapping[str, Json], value: Json) -> None:
        envelope: dict[str, Json] = {"run": self._run, **self._envelope, **told}
        if type != RecordType.TURN:
            envelope["effect"] = self.key(path)
        if value is not None:
            envelope["values"] = await self._values.pack([value])
        record = Record.event(type, path, envelope)
        await self._durable(record)
        self._earlier[path].append(record)

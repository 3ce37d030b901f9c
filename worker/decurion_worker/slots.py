"""What models bear on one runner: even shares of their limits, which move as runners come and go."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import TracebackType

from decurion_crds.canonical import Json, canonical
from decurion_worker.models import ChatModel, ChatRequest, ChatResponse
from decurion_worker.rates import Rates

UNLIMITED = 4096
"""Calls at a time to a model without a limit of its own."""


class Slots:
    """Slots of which at most `share` are held; who waits is served in order. A smaller share takes none away."""

    def __init__(self, share: int) -> None:
        self._share = share
        self._held = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def resize(self, share: int) -> None:
        self._share = share
        self._serve()

    async def __aenter__(self) -> None:
        if self._held < self._share and not self._waiting:
            self._held += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release()  # served and cancelled at once
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        self._held -= 1
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._held < self._share:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._held += 1
                waiter.set_result(None)


class SharedSlots:
    """Sets of slots on one runner, shared by all its runs. Each of `runners` runners may use an even share of a limit,
    one call at least.
    """

    def __init__(self) -> None:
        self._runners = 1
        self._slots: dict[bytes, tuple[int, Slots]] = {}

    def share(self, runners: int) -> None:
        """There are `runners` runners now."""
        self._runners = max(1, runners)
        for limit, slots in self._slots.values():
            slots.resize(self._share(limit))

    def at(self, place: Json, limit: int) -> Slots:
        """The slots of what `place` names, under this limit."""
        key = canonical([place, limit])
        if key not in self._slots:
            self._slots[key] = (limit, Slots(self._share(limit)))
        return self._slots[key][1]

    def _share(self, limit: int) -> int:
        return max(1, limit // self._runners)


class ModelSlots(SharedSlots):
    """The slots and rates of all models: one set for each model and limit."""

    def __init__(self) -> None:
        super().__init__()
        self._rates: dict[bytes, Rates] = {}

    def share(self, runners: int) -> None:
        super().share(runners)
        for rates in self._rates.values():
            rates.resize(1 / self._runners)

    def of(self, spec: Mapping[str, Json]) -> Slots:
        return self.at(_place(spec), (spec.get("limits") or {}).get("concurrency") or UNLIMITED)

    def rates(self, spec: Mapping[str, Json]) -> Rates:
        limits = {name: most for name, most in (spec.get("limits") or {}).items() if name != "concurrency"}
        key = canonical([*_place(spec), limits])
        if key not in self._rates:
            self._rates[key] = Rates(limits, 1 / self._runners)
        return self._rates[key]


def _place(spec: Mapping[str, Json]) -> list[Json]:
    """What tells apart models that share no limits."""
    return [spec.get("endpoint"), spec.get("model"), spec.get("auth"), spec.get("scripted")]


class SlottedModel:
    """A model whose calls wait for a slot, and with it until their rates allow them: none of that is the call's time,
    nor a try of it. A pause between two tries holds no slot.
    """

    def __init__(self, chat: ChatModel, slots: Slots, rates: Rates) -> None:
        self._chat = chat
        self._slots = slots
        self._rates = rates

    async def chat(self, request: ChatRequest) -> ChatResponse:
        async with self._slots:
            guess = await self._rates.begin(request)
            response = await self._chat.chat(request)
            self._rates.end(guess, response.usage)
            return response

    async def aclose(self) -> None:
        await self._chat.aclose()

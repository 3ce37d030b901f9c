"""A store behind a network that does all that networks and stores do, and remembers every change for the oracle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decurion_ledger.errors import ClockSkewed, Conflict, CredentialsExpired, NotFound, StoreError, Unavailable
from decurion_ledger.stores import ObjectInfo, Put, Range
from simulator.world import Process, World

FATES = (
    "lost request", "lost answer", "late", "silence", "conflict", "busy", "failed behind the write", "cut body",
    "cut answer", "slow", "gone",
)  # fmt: skip
"""F1 to F10 and F14 of the list of faults; F15 is `Client.list`, the others are states of a process or of the store."""


READ_SECONDS = 30.0
"""After which a client gives up a request by itself, as that of the S3 store does."""


class Change(NamedTuple):
    """One change of the store. `data` is None for a deletion."""

    time: float
    by: str
    key: str
    data: bytes | None


class Objects:
    """What is stored. `history` has every change, `watchers` hear of each at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held: dict[str, bytes] = {}
        self.modified: dict[str, float] = {}
        self.history: list[Change] = []
        self.watchers: list[Callable[[Change], None]] = []

    def put_new(self, by: str, key: str, data: bytes) -> Put:
        if key in self.held:
            return Put.EXISTS
        self.put(by, key, data)
        return Put.CREATED

    def put(self, by: str, key: str, data: bytes) -> None:
        self.held[key] = data
        self.modified[key] = self.world.now
        self._changed(by, key, data)

    def delete(self, by: str, key: str) -> None:
        if self.held.pop(key, None) is not None:
            self._changed(by, key, None)

    def _changed(self, by: str, key: str, data: bytes | None) -> None:
        change = Change(self.world.now, by, key, data)
        self.history.append(change)
        # some objects of a collection have random names
        shown = "/".join(key.split("/")[:2]) if key.startswith("gc/") else key[-24:]
        self.world.note(by, f"{'DELETE' if data is None else f'{len(data)} bytes to'} {shown}")
        for watcher in self.watchers:
            watcher(change)


@dataclass
class Weather:
    """What goes wrong. `rate` is the part of requests that meets a fate, until `calm` is set.

    `storms` are times in which the store asks to wait (F5). Of a process: `cut` from the store until then (F16), its
    `clock` refused (F11) or its `credentials` (F12).
    """

    rate: float
    calm: bool = False
    storms: list[tuple[float, float]] = field(default_factory=list)
    cut: dict[str, float] = field(default_factory=dict)
    clock: dict[str, float] = field(default_factory=dict)
    credentials: dict[str, float] = field(default_factory=dict)
    met: dict[str, int] = field(default_factory=dict)


class Client:
    """The store as one process sees it."""

    def __init__(self, process: Process, objects: Objects, weather: Weather) -> None:
        self.uri = "sim://store"
        self._process = process
        self._world = process.world
        self._objects = objects
        self._weather = weather
        self._taken: set[str] = set()
        """Keys that were answered to be taken, and not read since."""
        self.resets = 0
        """Raised at a fail-over to another gateway (F17): what is on its way then gets no answer."""

    async def put_new(self, key: str, data: bytes) -> Put:
        found = await self._ask("PUT", key, lambda: self._objects.put_new(self._process.name, key, data))
        if found is Put.EXISTS:
            self._taken.add(key)
        return found  # type: ignore[no-any-return]

    async def put(self, key: str, data: bytes) -> None:
        await self._ask("PUT", key, lambda: self._objects.put(self._process.name, key, data))

    async def get(self, key: str, range: Range | None = None) -> bytes:
        data: bytes | None = await self._ask("GET", key, lambda: self._objects.held.get(key))
        if data is None:
            raise NotFound(f"GET {key}", "no such object")
        return data if range is None else data[slice(*range)]

    async def head(self, key: str) -> ObjectInfo:
        data = await self.get(key)
        return ObjectInfo(key, len(data), modified=self._objects.modified[key])

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """In no order (F15), and it may break off."""
        found = await self._ask("LIST", prefix, lambda: dict(self._objects.held))
        ages = self._objects.modified
        infos = [
            ObjectInfo(key, len(data), modified=ages[key])
            for key, data in found.items()
            if key.startswith(prefix) and key > after
        ]
        self._world.rng.shuffle(infos)
        breaks = len(infos) // 2 if self._draw("LIST", prefix) is not None else None
        for number, info in enumerate(infos):
            if number == breaks:
                raise Unavailable(f"LIST {prefix}", "the answer broke off")
            yield info

    async def delete(self, key: str) -> None:
        await self._ask("DELETE", key, lambda: self._objects.delete(self._process.name, key))

    async def aclose(self) -> None:
        """Nothing to release."""

    # ------------------------------------------------------------------ one request

    async def _ask(self, verb: str, key: str, carry_out: Callable[[], Any]) -> Any:
        world, reply = self._world, self._process.create_future()
        if world.closing:
            return await reply
        refused = self._refused(verb, key)
        fate = None if refused is not None else self._draw(verb, key)
        there, back = world.rng.uniform(0.005, 0.08), world.rng.uniform(0.005, 0.08)
        resets = self.resets

        def answer(value: Any) -> None:
            if self._cut() or resets != self.resets:
                silence()
            else:
                self._process.call_soon(_resolve, reply, value)

        def silence() -> None:
            late = Unavailable(f"{verb} {key}", "read timed out")
            world.after(READ_SECONDS, lambda: self._process.call_soon(_resolve, reply, late) and None)

        def fail(error: StoreError, after: float) -> None:
            world.after(after, lambda: answer(error))

        def arrive() -> None:
            if self._cut():
                silence()
            else:
                value = carry_out()
                if fate in ("lost answer", "failed behind the write", "cut answer"):
                    status = "500" if fate == "failed behind the write" else "connection reset"
                    fail(Unavailable(f"{verb} {key}", status), back)
                elif fate == "silence":
                    silence()
                else:
                    world.after(back * (200 if fate == "slow" else 1), lambda: answer(value))

        request = f"{verb} {key}"
        if refused is not None:
            fail(refused, there)
        elif fate in ("lost request", "cut body"):
            fail(Unavailable(request, "connection reset"), world.rng.uniform(0.01, 8.0))
        elif fate == "late":
            world.after(world.rng.uniform(1.0, 90.0), lambda: None if world.closing else _discarded(carry_out))
            fail(Unavailable(request, "connection reset"), there)
        elif fate == "conflict":
            fail(Conflict(request, "ConditionalRequestConflict (409)"), there + back)
        elif fate == "busy":
            fail(Unavailable(request, "SlowDown (503)"), there + back)
        elif fate == "gone":
            fail(NotFound(request, "no such object"), there + back)
        elif fate == "silence" and world.rng.random() < 0.5:
            silence()
        else:
            world.after(there * (200 if fate == "slow" else 1), arrive)
        value = await reply
        if isinstance(value, StoreError):
            raise value
        return value

    def _cut(self) -> bool:
        return self._weather.cut.get(self._process.name, 0.0) > self._world.now

    def _refused(self, verb: str, key: str) -> StoreError | None:
        name, now = self._process.name, self._world.now
        if self._weather.clock.get(name, 0.0) > now:
            return ClockSkewed(f"{verb} {key}", "RequestTimeTooSkewed (403)")
        if self._weather.credentials.get(name, 0.0) > now:
            return CredentialsExpired(f"{verb} {key}", "ExpiredToken (400)")
        return None

    def _draw(self, verb: str, key: str) -> str | None:
        weather, rng = self._weather, self._world.rng
        taken = key in self._taken
        if verb == "GET":
            self._taken.discard(key)
        if weather.calm:
            return None
        if any(begin <= self._world.now < end for begin, end in weather.storms) and rng.random() < 0.7:
            fate = "busy"
        elif rng.random() >= weather.rate:
            return None
        else:
            fate = FATES[int(rng.random() * len(FATES))]
        writes = verb in ("PUT", "DELETE")
        if (fate in ("conflict", "cut body", "late") and not writes) or (fate == "cut answer" and writes):
            return None
        if fate == "gone" and not (verb == "GET" and taken and rng.random() < 0.1):
            return None
        weather.met[fate] = weather.met.get(fate, 0) + 1
        return fate


def _resolve(reply: asyncio.Future[Any], value: Any) -> None:
    if not reply.done():
        reply.set_result(value)


def _discarded(carry_out: Callable[[], Any]) -> None:
    carry_out()

"""The link to one pool: who its drivers are, what their runs do, and calls that wait for nobody else.

A pool has its own client, its own tasks and its own limit of calls in flight. Nothing that a reconcile awaits is here:
a reconcile reads `view` and `projections` and starts calls that report back later. So a pool that hangs costs its own
runs their news, and no other run anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decurion_operator.errors import PoolError
from decurion_operator.ingress import Driver, Ingress
from decurion_operator.queue import Backoff, Key
from decurion_operator.settings import OperatorSettings
from decurion_operator.tasks import forever

logger = logging.getLogger(__name__)

COALESCE_SECONDS = 0.1
"""Pause between two polls of one driver: what changes meanwhile comes in one answer, and an empty one cannot spin."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """What is known of a pool. `asked_at` and `answered_at` are loop times: of the call that gave `drivers`, and of its
    answer. `available` is None before the first answer or failure."""

    available: bool | None = None
    problem: str = ""
    asked_at: float = float("-inf")
    answered_at: float = float("-inf")
    drivers: Mapping[str, Driver] = field(default_factory=dict)
    listed: frozenset[str] = frozenset()

    @property
    def seen(self) -> bool:
        """The drivers have said at least once what they run."""
        return self.asked_at > float("-inf")

    @property
    def keys(self) -> tuple[str, ...]:
        """The public keys of the drivers."""
        return tuple(driver.key for driver in self.drivers.values() if driver.key)

    def driver_of(self, uid: str) -> Driver | None:
        return next((d for d in self.drivers.values() if uid in d.runs), None)


class PoolLink:
    """One pool, from `start` to `aclose`. `on_view(key)` is called after each look at the drivers, `on_run(uid)` when a
    projection of that run came; it says whether the run is one of ours that has not ended, else it is not kept."""

    def __init__(
        self,
        key: Key,
        ingress: Ingress,
        settings: OperatorSettings,
        *,
        on_view: Callable[[Key], None],
        on_run: Callable[[str], bool],
    ) -> None:
        self.key = key
        self.ingress = ingress
        self.view = PoolView()
        self.projections: dict[str, dict[str, Any]] = {}
        self.stored: set[str] = set()
        """Digests of the bundles that this pool has acknowledged."""
        self._settings = settings
        self._on_view = on_view
        self._on_run = on_run
        self._calls = asyncio.Semaphore(settings.pool_calls)
        self._backoff = Backoff(base=settings.backoff_seconds, cap=15.0)
        self._watch: asyncio.Task[None] | None = None
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._followed: dict[str, tuple[str, int]] = {}
        """By driver, the incarnation and cursor of the last changes that came."""
        self._storing: dict[str, asyncio.Lock] = {}
        self._wanted = asyncio.Event()

    def start(self) -> None:
        name = f"the watch of {self.key.namespace}/{self.key.name}"
        self._watch = asyncio.ensure_future(forever(name, self._watch_drivers, backoff=self._backoff))

    async def aclose(self) -> None:
        tasks = [t for t in (self._watch, *self._followers.values()) if t is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.ingress.aclose()

    async def call(self, work: Callable[[Ingress], Awaitable[Any]]) -> Any:
        """Make one short call when the pool's limit allows it."""
        async with self._calls:
            return await work(self.ingress)

    async def store(self, digest: str, bundle: bytes) -> None:
        """Store a compiled graph. Many runs of one graph come at once: it is sent for the first of them."""
        lock = self._storing.setdefault(digest, asyncio.Lock())
        try:
            async with lock:
                if digest not in self.stored:
                    await self.call(lambda ingress: ingress.put_bundle(digest, bundle))
                    self.stored.add(digest)
        finally:
            if not lock.locked():
                self._storing.pop(digest, None)

    async def tell_live(self, uids: Sequence[str], *, cluster: str, leader_epoch: int) -> None:
        """Tell every driver which runs are wanted. A driver that gives no answer is told again next time."""
        for driver in tuple(self.view.drivers):
            try:
                async with self._calls:
                    await self.ingress.live(driver, uids=uids, cluster=cluster, leader_epoch=leader_epoch)
            except PoolError as error:
                logger.warning("driver %s of %s/%s was not told the live runs: %s", driver, *self.key[1:], error)

    @property
    def caught_up(self) -> bool:
        """Whether all that had changed when the drivers were looked at has come: a run that was on no list by then
        may have ended, which is on its way, and is not lost.
        """
        return not any(self._behind(driver) for driver in self.view.drivers.values())

    def _behind(self, driver: Driver) -> bool:
        incarnation, cursor = self._followed.get(driver.id, ("", 0))
        return incarnation == driver.incarnation and cursor < driver.cursor

    def forget(self, uid: str) -> None:
        self.projections.pop(uid, None)

    def look(self) -> None:
        """Ask for the drivers now: something has happened to one of them."""
        self._wanted.set()

    async def _watch_drivers(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            try:
                drivers = await self.ingress.drivers()
            except PoolError as error:
                failures += 1
                self._saw_nothing(str(error))
                await self._pause(self._backoff.delay(failures))
                continue
            failures = 0
            self._saw(drivers, asked)
            await self._pause(self._settings.drivers_seconds)

    async def _pause(self, seconds: float) -> None:
        """Wait for the next look: until somebody wants one, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            return
        self._wanted.clear()

    def _saw(self, drivers: Sequence[Driver], asked: float) -> None:
        before = self.view.listed
        self.view = PoolView(
            available=True,
            asked_at=asked,
            answered_at=asyncio.get_running_loop().time(),
            drivers={d.id: d for d in drivers},
            listed=frozenset().union(*(d.runs for d in drivers)),
        )
        for uid in before ^ self.view.listed:
            self._on_run(uid)
        for gone in self._followers.keys() - self.view.drivers.keys():
            self._followers.pop(gone).cancel()
            self._followed.pop(gone, None)
        for new in self.view.drivers.keys() - self._followers.keys():
            name = f"the poll of {new} of {self.key.namespace}/{self.key.name}"
            self._followers[new] = asyncio.ensure_future(
                forever(name, lambda driver=new: self._follow(driver), backoff=self._backoff)  # type: ignore[misc]
            )
        self._on_view(self.key)

    def _saw_nothing(self, problem: str) -> None:
        # What was known stays known: a pool that is silent for a moment has not lost its runs.
        self.view = PoolView(
            available=False,
            problem=problem,
            asked_at=self.view.asked_at,
            answered_at=self.view.answered_at,
            drivers=self.view.drivers,
            listed=self.view.listed,
        )
        self._on_view(self.key)

    async def _follow(self, driver: str) -> None:
        cursor, incarnation, failures = 0, "", 0
        while True:
            try:
                changes = await self.ingress.changes(
                    driver, since=cursor, incarnation=incarnation, wait=self._settings.poll_seconds
                )
            except PoolError:
                failures += 1
                if failures == 1:
                    self.look()
                await asyncio.sleep(self._backoff.delay(failures))
                continue
            if incarnation and changes.incarnation != incarnation:
                # Another process: it has none of the runs that the last one had, and says so when it is asked.
                self.look()
            failures, cursor, incarnation = 0, changes.cursor, changes.incarnation
            behind = not self.caught_up
            self._followed[driver] = incarnation, cursor
            for uid, projection in changes.runs.items():
                self.projections[uid] = projection
                if not self._on_run(uid):
                    del self.projections[uid]
            if behind and self.caught_up:
                self._on_view(self.key)
            await asyncio.sleep(COALESCE_SECONDS)

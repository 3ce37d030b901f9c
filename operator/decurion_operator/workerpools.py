"""Reconciling WorkerPools: the link to each, which runs may start there, and which its drivers are told are live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from decurion_operator.cache import Cache, Resource
from decurion_operator.connecting import Connection, Connector
from decurion_operator.definitions import Parser, secret_problem
from decurion_operator.gateway import Gateway
from decurion_operator.leader import Leader
from decurion_operator.metrics import Meter
from decurion_operator.plan.pool import Place, Waiting, plan_admission, plan_pool, shown_anew
from decurion_operator.plan.run import PoolFacts
from decurion_operator.pools import PoolLink
from decurion_operator.queue import Key
from decurion_operator.secret_use import secret_refs
from decurion_operator.settings import OperatorSettings
from decurion_operator.writes import StatusWriter

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pool:
    """One WorkerPool. `problem` says what is wrong with its spec or its Secret, or is empty. `shown` is what its runs
    were last told of the pool's availability, and `listed_at` the loop time of the drivers' list that they were last
    compared with. `rested` are those that wait for people, or went on since and have no place yet."""

    connection: Connection = field(default_factory=Connection)
    problem: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)
    admitted: frozenset[str] = frozenset()
    rested: frozenset[str] = frozenset()
    shown: tuple[bool | None, str] | None = None
    listed_at: float = float("-inf")
    telling: asyncio.Task[None] | None = None

    @property
    def link(self) -> PoolLink | None:
        return self.connection.link


class WorkerPools:
    """The reconciler of WorkerPools. `may_start(run)` says whether nothing but a slot keeps a Queued run waiting."""

    def __init__(
        self,
        cache: Cache,
        gateway: Gateway,
        statuses: StatusWriter,
        parser: Parser,
        leader: Leader,
        settings: OperatorSettings,
        meter: Meter,
        *,
        cluster: str,
        add: Callable[[Key], None],
        now: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._statuses = statuses
        self._parser = parser
        self._leader = leader
        self._cluster = cluster
        self._add = add
        self._now = now
        self._connector = Connector(cache, gateway, settings, meter, on_view=add, on_run=self._on_run)
        self._pools: dict[Key, _Pool] = {}
        self.may_start: Callable[[Resource], bool] = lambda run: True

    def link(self, key: Key) -> PoolLink | None:
        known = self._pools.get(key)
        return known.link if known else None

    def place(self, key: Key, uid: str) -> Place | None:
        """The place of a run in the queue of its pool; None before the queue was looked at with that run in it."""
        known = self._pools.get(key)
        return known.places.get(uid) if known else None

    async def reconcile(self, key: Key) -> float | None:
        pool = self._cache.get(key)
        runs = [r for r in self._cache.referrers(key, "TaskGraphRun") if not r.finished]
        if pool is None:
            await self._close(key)
            for run in runs:
                self._add(run.key)
            return None
        known = self._pools.setdefault(key, _Pool())
        findings = () if pool.too_large else self._parser.findings(pool)
        secret = secret_problem(self._cache, key.namespace, secret_refs(pool.spec))
        if pool.too_large or any(f.severity == "error" for f in findings):
            known.problem = f'WorkerPool "{key.name}" cannot be used as it is written.'
        else:
            secret = known.problem = secret or await self._connector.connect(pool, known.connection)
        self._admit(pool, known, runs)
        self._nudge(known, runs)
        status = plan_pool(
            pool,
            findings=findings,
            secret=secret,
            reach=known.connection.reach,
            running=sum(r.phase == "Running" for r in runs),
            queued=sum(r.phase == "Queued" for r in runs),
            now=self._now(),
        )
        return await self._statuses.pool(pool, status) if status is not None else None

    def facts(self, key: Key) -> PoolFacts:
        """What a run has to know of its pool."""
        if self._cache.get(key) is None:
            return PoolFacts(exists=False)
        known = self._pools.get(key)
        if known is None:
            return PoolFacts(True, None, silent=float("inf"))
        reach = known.connection.reach
        if known.link is None:
            problem = known.problem or reach.problem
            return PoolFacts(True, False if problem else None, problem, silent=float("inf"))
        silent = asyncio.get_running_loop().time() - known.link.view.answered_at
        return PoolFacts(True, reach.available, reach.problem, silent)

    def tell_live(self) -> None:
        """Tell the drivers of every pool which runs are wanted."""
        for known in self._pools.values():
            self._tell(known)

    def forget(self, run: Resource) -> None:
        """A run has ended or is gone."""
        if link := self.link(run.pool):
            link.forget(run.uid)

    async def aclose(self) -> None:
        for key in tuple(self._pools):
            await self._close(key)

    def _admit(self, pool: Resource, known: _Pool, runs: list[Resource]) -> None:
        if known.link is None or not known.link.view.seen:
            # Who holds a slot is not known before the drivers have said what they run.
            return
        listed = known.link.view.listed
        holding = {r.uid for r in runs if (r.phase == "Running" or r.uid in listed) and not r.parked}
        holding |= known.admitted & {r.uid for r in runs if not r.parked or r.resuming}
        # One that waited for people gave its place away, and goes on only when it has one again.
        rested = known.rested | {r.uid for r in runs if r.parked and r.phase == "Running"}
        back = {r.uid for r in runs if r.uid in rested and r.phase == "Running" and not r.parked} - known.admitted
        holding -= back
        waiting = [r for r in runs if r.phase == "Queued" or r.resuming or r.uid in back]
        queued = [r for r in waiting if r.uid in holding or r.uid in back or self.may_start(r)]
        limit = pool.spec.get("maxRunning")
        places = plan_admission(
            [Waiting(r.uid, int(r.spec.get("priority") or 0), r.created, r.key.name) for r in queued],
            holding=frozenset(holding),
            limit=limit if isinstance(limit, int) else None,
        )
        before = known.places
        known.places = places
        known.admitted = frozenset(holding) | {uid for uid, place in places.items() if place.admitted}
        known.rested = (rested & {r.uid for r in runs}) - known.admitted
        moved = shown_anew(before, places)
        for run in queued:
            if run.uid in moved:
                self._add(run.key)

    def _nudge(self, known: _Pool, runs: list[Resource]) -> None:
        """Look at the runs that this look at the pool may mean something for."""
        view = known.link.view if known.link else None
        shown = (view.available if view else None, "" if view else known.problem or known.connection.reach.problem)
        flipped, known.shown = known.shown != shown, shown
        if flipped:
            self._tell(known)
        # A list that the runs were compared with says nothing new: of what changed since, the drivers tell.
        listed = view.listed if view is not None and view.asked_at > known.listed_at else None
        known.listed_at = view.asked_at if view is not None else float("-inf")
        for run in runs:
            lost = listed is not None and run.phase == "Running" and run.uid not in listed
            if flipped or lost:
                self._add(run.key)

    def _on_run(self, uid: str) -> bool:
        run = self._cache.by_uid(uid)
        if run is None or run.finished:
            return False
        self._add(run.key)
        return True

    def _tell(self, known: _Pool) -> None:
        link = known.link
        if link is None or not link.view.available or (known.telling and not known.telling.done()):
            return
        # All runs of ours that have not ended, whatever their pool: two WorkerPools may be the same drivers.
        uids = [run.uid for run in self._cache.all("TaskGraphRun") if not run.finished]
        known.telling = asyncio.ensure_future(
            link.tell_live(uids, cluster=self._cluster, leader_epoch=self._leader.epoch)
        )

    async def _close(self, key: Key) -> None:
        known = self._pools.pop(key, None)
        if known is None:
            return
        if known.telling is not None:
            known.telling.cancel()
        await known.connection.aclose()

"""Reconciling WorkerPools: the link to each, which runs may start there, and which its drivers are told are live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from decurion_operator.cache import Cache, Resource
from decurion_operator.definitions import Parser, secret_problem
from decurion_operator.errors import SecretNotUsable
from decurion_operator.gateway import Gateway
from decurion_operator.ingress import Ingress
from decurion_operator.leader import Leader
from decurion_operator.metrics import Meter
from decurion_operator.plan.pool import Place, Reach, Waiting, plan_admission, plan_pool
from decurion_operator.plan.run import PoolFacts
from decurion_operator.pools import PoolLink
from decurion_operator.queue import Key
from decurion_operator.secret_use import not_usable, secret_refs
from decurion_operator.settings import OperatorSettings
from decurion_operator.writes import StatusWriter

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pool:
    """One WorkerPool. `made_of` is what the link was made of; of something else another link is made. `problem` says
    why there is none, or is empty. `shown` is what its runs were last told of the pool's availability."""

    link: PoolLink | None = None
    made_of: tuple[str, ...] = ()
    problem: str = ""
    places: Mapping[str, Place] = field(default_factory=dict)
    admitted: frozenset[str] = frozenset()
    shown: tuple[bool | None, str] | None = None
    telling: asyncio.Task[None] | None = None


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
        self._gateway = gateway
        self._statuses = statuses
        self._parser = parser
        self._leader = leader
        self._settings = settings
        self._meter = meter
        self._cluster = cluster
        self._add = add
        self._now = now
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
            secret = known.problem = await self._connect(pool, known, secret)
        self._admit(pool, known, runs)
        view = known.link.view if known.link else None
        self._nudge(known, runs)
        status = plan_pool(
            pool,
            findings=findings,
            secret=secret,
            reach=Reach(view.available, view.problem) if view else Reach(None),
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
        if known is None or known.link is None:
            problem = known.problem if known else ""
            return PoolFacts(True, False if problem else None, problem, silent=float("inf"))
        silent = asyncio.get_running_loop().time() - known.link.view.answered_at
        return PoolFacts(True, known.link.view.available, known.link.view.problem, silent)

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

    async def _connect(self, pool: Resource, known: _Pool, secret: str) -> str:
        """Make the link anew where it was made of something else; returns what is wrong with its Secret."""
        refs = sorted(secret_refs(pool.spec))
        if secret:
            return secret
        versions = [found.version for name, _ in refs if (found := self._secret(pool, name))]
        url, seconds = str(pool.spec["url"]), self._settings.pool_seconds
        made_of = (pool.uid, url, *(part for ref in refs for part in ref), *versions)
        if known.made_of == made_of:
            return ""
        try:
            token = await self._token(pool, *refs[0]) if refs else None
        except SecretNotUsable as error:
            return str(error)
        if known.link is not None:
            await known.link.aclose()
        ingress = Ingress(url, token=token, seconds=seconds, observer=self._meter)
        known.link = PoolLink(pool.key, ingress, self._settings, on_view=self._add, on_run=self._on_run)
        known.made_of = made_of
        known.link.start()
        return ""

    async def _token(self, pool: Resource, name: str, key: str) -> str:
        values = await self._gateway.read_secret(pool.key.namespace, name)
        if key not in values:
            raise SecretNotUsable(not_usable(name, key))
        return values[key].strip()

    def _secret(self, pool: Resource, name: str) -> Resource | None:
        return self._cache.get(Key("Secret", pool.key.namespace, name))

    def _admit(self, pool: Resource, known: _Pool, runs: list[Resource]) -> None:
        if known.link is None or not known.link.view.seen:
            # Who holds a slot is not known before the drivers have said what they run.
            return
        listed = known.link.view.listed
        uids = {r.uid for r in runs}
        holding = {r.uid for r in runs if r.phase == "Running" or r.uid in listed} | (known.admitted & uids)
        queued = [r for r in runs if r.phase == "Queued" and (r.uid in holding or self.may_start(r))]
        limit = pool.spec.get("maxRunning")
        places = plan_admission(
            [Waiting(r.uid, int(r.spec.get("priority") or 0), r.created, r.key.name) for r in queued],
            holding=frozenset(holding),
            limit=limit if isinstance(limit, int) else None,
        )
        before = known.places
        known.places = places
        known.admitted = frozenset(holding) | {uid for uid, place in places.items() if place.admitted}
        for run in queued:
            if before.get(run.uid) != places[run.uid]:
                self._add(run.key)

    def _nudge(self, known: _Pool, runs: list[Resource]) -> None:
        """Look at the runs that this look at the pool may mean something for."""
        view = known.link.view if known.link else None
        shown = (view.available if view else None, "" if view else known.problem)
        flipped, known.shown = known.shown != shown, shown
        if flipped:
            self._tell(known)
        for run in runs:
            lost = view is not None and run.phase == "Running" and run.uid not in view.listed
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
        if known.link is not None:
            await known.link.aclose()

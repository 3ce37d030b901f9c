"""Reconciling TaskGraphRuns: observe, plan, act, write.

What a run needs of a pool happens in actions of their own, beside the reconcile; they report back by making the run due
again. All that is remembered here can be found again from the status, the pool and the compiler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from decurion_crds.secrets import Entry
from decurion_crds.uses import swaps_of
from decurion_ledger import SealKey
from decurion_operator.appointing import Appointer
from decurion_operator.cache import Cache, Resource
from decurion_operator.closures import Reach, unused_swap
from decurion_operator.compiling import Compiling
from decurion_operator.conditions import Reason, timestamp
from decurion_operator.definitions import Definitions, graph_verdict, secret_problem
from decurion_operator.errors import BundleMissing, NotCertified, NotFound, SecretNotUsable, StaleLeader
from decurion_operator.gateway import Gateway
from decurion_operator.ingress import Ingress, Opened, OpenRequest
from decurion_operator.leader import Leader
from decurion_operator.plan.definitions import Verdict
from decurion_operator.plan.run import Action, Closure, Happening, RunFacts, RunPlan, plan_run
from decurion_operator.pools import PoolLink
from decurion_operator.queue import Backoff, Key
from decurion_operator.secret_use import not_usable, secret_refs
from decurion_operator.settings import OperatorSettings
from decurion_operator.tasks import Deeds
from decurion_operator.workerpools import WorkerPools
from decurion_operator.writes import Recorder, StatusWriter

logger = logging.getLogger(__name__)

CANCEL_AGAIN_SECONDS: Final = 30.0
"""A cancel that has not ended its run by then is said again: the driver may be another one."""
STEADY_SECONDS: Final = 60.0
"""A run that a driver still has so long after its opening is not one that is lost again and again."""


@dataclass(slots=True)
class _Memory:
    """What this process has done for one run. `opened_at` is a loop time; `secrets_sent` says which versions were sent,
    to which incarnation of a driver (empty while that is not known). `losses` counts openings after which no driver had
    the run for long; it is not opened again before `reopen_at`."""

    opened_at: float | None = None
    losses: int = 0
    reopen_at: float = 0.0
    needs: frozenset[Entry] | None = None
    secrets_sent: tuple[str, tuple[str, ...]] | None = None
    cancel_sent_at: float = float("-inf")
    cancel_sent: str = ""


class Runs:
    """The reconciler of TaskGraphRuns."""

    def __init__(
        self,
        cache: Cache,
        gateway: Gateway,
        definitions: Definitions,
        compiling: Compiling,
        pools: WorkerPools,
        appointer: Appointer,
        deeds: Deeds,
        statuses: StatusWriter,
        recorder: Recorder,
        leader: Leader,
        settings: OperatorSettings,
        *,
        cluster: str,
        now: Callable[[], float],
        seal_key: SealKey,
    ) -> None:
        self._seal_key = seal_key
        self._cache = cache
        self._gateway = gateway
        self._definitions = definitions
        self._compiling = compiling
        self._pools = pools
        self._appointer = appointer
        self._deeds = deeds
        self._statuses = statuses
        self._recorder = recorder
        self._leader = leader
        self._settings = settings
        self._cluster = cluster
        self._now = now
        self._backoff = Backoff(base=settings.backoff_seconds, cap=settings.backoff_cap_seconds)
        self._memory: dict[str, _Memory] = {}
        pools.may_start = lambda run: not self._secret_problem(run)

    async def reconcile(self, key: Key) -> float | None:
        run = self._cache.get(key)
        if run is None:
            return None
        memory = self._memory.setdefault(run.uid, _Memory())
        link = self._pools.link(run.pool)
        plan = plan_run(self._observe(run, memory, link))
        for action in plan.actions:
            self._start(run, memory, link, action)
        wait = await self._statuses.run(run, plan.status) if plan.status is not None else None
        if wait is None:
            for happening in plan.happenings:
                await self._recorder.tell(run, happening)
        if run.finished:
            self._memory.pop(run.uid, None)
            self._pools.forget(run)
        return _earliest(wait, plan.wake, self._cancel_again(run, plan))

    def gone(self, run: Resource) -> None:
        """The run was deleted: end it where it runs, and forget it."""
        self._deeds.forget(run.uid)
        self._memory.pop(run.uid, None)
        link = self._pools.link(run.pool)
        if not run.finished and link is not None and link.view.available:
            self._deeds.start(run.key, run.uid, Action.CANCEL, lambda: self._cancel(run, _Memory(), link))
        self._pools.forget(run)
        self._recorder.forget(run.uid)
        self._statuses.forget(run.key, run.uid)

    def prune(self) -> None:
        """Forget actions of runs that are no longer there."""
        self._deeds.keep(lambda uid: self._cache.by_uid(uid) is not None)

    def _observe(self, run: Resource, memory: _Memory, link: PoolLink | None) -> RunFacts:
        if run.finished:
            return RunFacts(run=run, now=self._now(), closure=None, pool=self._pools.facts(run.pool))
        pinned = bool((run.status or {}).get("graphDigest"))
        secrets = self._secret_problem(run) if pinned else ""
        now = asyncio.get_running_loop().time()
        return RunFacts(
            run=run,
            now=self._now(),
            closure=None if pinned else self._closure(run, link),
            pool=self._pools.facts(run.pool),
            place=self._pools.place(run.pool, run.uid),
            listed=_listed(run, memory, link),
            opened=memory.opened_at is not None,
            opening=self._deeds.in_flight(run.uid, Action.OPEN),
            reopen_in=max(0.0, memory.reopen_at - now),
            projection=link.projections.get(run.uid) if link else None,
            secrets=secrets,
            secrets_due=pinned and self._secrets_due(run, memory, link),
            cancel_due=memory.cancel_sent != _how(run) or now - memory.cancel_sent_at >= CANCEL_AGAIN_SECONDS,
            trouble=self._deeds.trouble(run.uid),
            grace=self._settings.pool_grace_seconds,
        )

    def _closure(self, run: Resource, link: PoolLink | None) -> Closure | None:
        graph = self._cache.get(run.graph)
        if (refused := graph_verdict(graph, run.graph.name)) is not None or graph is None:
            return Closure(refused) if refused else None
        swaps = swaps_of(run.spec)
        if swaps and (text := unused_swap(swaps, self._definitions.reach(graph, swaps), graph.key.name)):
            return Closure(Verdict(False, Reason.GRAPH_NOT_READY, text))
        found = self._definitions.assess(graph, swaps, asker=run.key)
        verdict = found.verdict
        if verdict is None or found.answer is None:
            return None
        digest = found.answer.compiled.digest
        return Closure(verdict, digest, stored=link is not None and digest in link.stored)

    def _secret_problem(self, run: Resource) -> str:
        return secret_problem(self._cache, run.key.namespace, self._needs(run))

    def _needs(self, run: Resource) -> frozenset[Entry]:
        """The Secret entries that the pinned closure of a run names.

        The pool says so, else the compiler; after a start of this process they are those of the resources as they are
        now, which differ only where definitions were edited.
        """
        memory = self._memory.get(run.uid)
        if memory is not None and memory.needs is not None:
            return memory.needs
        answer = self._compiling.known(str((run.status or {}).get("graphDigest")))
        if answer is not None:
            return answer.secrets
        graph = self._cache.get(run.graph)
        swaps = swaps_of(run.spec)
        named = self._definitions.reach(graph, swaps) if graph else Reach()
        used = [("LLM", ref) for ref in named.llms] + [("MCPServer", ref) for ref in named.servers]
        names = {(kind, swaps.get((kind, ref), ref)) for kind, ref in used}
        names |= {(kind, name) for (kind, _), name in swaps.items()}
        found = (self._cache.get(Key(kind, run.key.namespace, name)) for kind, name in names)
        return secret_refs(*(one.spec for one in found if one is not None))

    def _secrets_due(self, run: Resource, memory: _Memory, link: PoolLink | None) -> bool:
        needs = self._needs(run)
        if not needs or link is None:
            return False
        incarnation, versions = self._secrets_mark(run, needs, link)
        if memory.secrets_sent is None:
            return True
        sent_to, sent = memory.secrets_sent
        if not sent_to and incarnation:
            # Sent right after the opening, when the driver's incarnation was not known yet: it was this one.
            memory.secrets_sent = (incarnation, sent)
            sent_to = incarnation
        return sent != versions or (bool(incarnation) and sent_to != incarnation)

    def _secrets_mark(self, run: Resource, needs: frozenset[Entry], link: PoolLink) -> tuple[str, tuple[str, ...]]:
        driver = link.view.driver_of(run.uid)
        secrets = (self._cache.get(Key("Secret", run.key.namespace, name)) for name in sorted({n for n, _ in needs}))
        return driver.incarnation if driver else "", tuple(s.version if s else "" for s in secrets)

    def _cancel_again(self, run: Resource, plan: RunPlan) -> float | None:
        wanted = run.phase in ("Running", "Suspended") and (run.deleting or bool(run.spec.get("cancel")))
        return CANCEL_AGAIN_SECONDS if wanted and plan.status is not None else None

    def _start(self, run: Resource, memory: _Memory, link: PoolLink | None, action: Action) -> None:
        if action is Action.DELETE:
            self._deeds.start(run.key, run.uid, action, lambda: self._gateway.delete(run.key, uid=run.uid))
            return
        if link is None:
            return
        works = {
            Action.STORE_BUNDLE: lambda: self._store_bundle(run, link),
            Action.OPEN: lambda: self._open(run, memory, link),
            Action.SEND_SECRETS: lambda: self._send_secrets(run, memory, link),
            Action.CANCEL: lambda: self._cancel(run, memory, link),
            Action.SUSPEND: lambda: self._suspend(run, link, wanted=True),
            Action.RESUME: lambda: self._suspend(run, link, wanted=False),
        }
        self._deeds.start(run.key, run.uid, action, works[action])

    async def _store_bundle(self, run: Resource, link: PoolLink) -> None:
        graph = self._cache.get(run.graph)
        answer = self._definitions.assess(graph, swaps_of(run.spec), asker=run.key).answer if graph else None
        if answer is None or answer.compiled.digest is None:
            return
        await link.store(answer.compiled.digest, answer.bundle)

    async def _open(self, run: Resource, memory: _Memory, link: PoolLink) -> None:
        raw = await self._gateway.get(run.key)
        if raw["metadata"]["uid"] != run.uid:
            raise NotFound(f"Run {run.key.namespace}/{run.key.name} was deleted and created again.")
        digest = str((run.status or {}).get("graphDigest"))
        spec = await self._with_uids(run, raw["spec"])
        await self._warn_of_input(run, spec)
        opened: Opened = await link.call(lambda ingress: self._open_at(ingress, run, spec, digest, link.view.keys))
        now = asyncio.get_running_loop().time()
        steady = memory.opened_at is not None and now - memory.opened_at > STEADY_SECONDS
        memory.losses = 1 if steady else memory.losses + 1
        memory.reopen_at = now + self._backoff.delay(memory.losses)
        memory.opened_at = now
        memory.secrets_sent = None
        answer = self._compiling.known(digest)
        memory.needs = opened.secrets if opened.secrets is not None else answer.secrets if answer else None
        if opened.projection is not None:
            link.projections[run.uid] = opened.projection

    async def _warn_of_input(self, run: Resource, spec: Mapping[str, Any]) -> None:
        """Tell once when something sensitive stands in the resource, where all who may read it do."""
        graph = self._cache.get(run.graph)
        named = graph.spec.get("sensitive") or () if graph is not None else ()
        if names := [name for name in named if name in (spec.get("input") or {})]:
            message = (
                f"input.{names[0]} is sensitive, and in this resource it is in clear for all who may read it: put the "
                "input into a file of the pool's store and name it by inputFrom."
            )
            await self._recorder.tell(run, Happening("Warning", "SensitiveInput", message))

    async def _with_uids(self, run: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec of a run with the earlier run that it names given by uid.

        Of one that is not there the name stands for it: a driver that has to begin with it says that it is missing, and
        one that goes on with what it took does not ask.
        """
        found = dict(spec)
        for field in ("retryFrom", "forkFrom"):
            if name := (spec.get(field) or {}).get("run"):
                try:
                    uid = (await self._gateway.get(Key("TaskGraphRun", run.key.namespace, name)))["metadata"]["uid"]
                except NotFound:
                    uid = name
                found[field] = {**spec[field], "uid": uid}
        return found

    async def _open_at(
        self, ingress: Ingress, run: Resource, spec: Mapping[str, Any], digest: str, keys: tuple[str, ...]
    ) -> Opened:
        try:
            return await self._open_as_leader(ingress, run, spec, digest, keys)
        except BundleMissing:
            answer = self._compiling.known(digest)
            if answer is None:
                raise
            await ingress.put_bundle(digest, answer.bundle)
            return await self._open_as_leader(ingress, run, spec, digest, keys)

    async def _open_as_leader(
        self, ingress: Ingress, run: Resource, spec: Mapping[str, Any], digest: str, keys: tuple[str, ...]
    ) -> Opened:
        def request() -> OpenRequest:
            return OpenRequest(
                uid=run.uid,
                name=run.key.name,
                namespace=run.key.namespace,
                digest=digest,
                leader_epoch=self._leader.epoch,
                scheduled_at=timestamp(run.created),
                cluster=self._cluster,
                input=spec.get("input"),
                input_from=spec.get("inputFrom"),
                retry_from=(spec.get("retryFrom") or {}).get("uid", ""),
                fork_from=_fork(spec.get("forkFrom") or {}),
                retention=spec.get("retentionSeconds"),
                certificates=self._appointer.certificates(keys, run=run.uid, leader_epoch=self._leader.epoch),
                seal_key=self._seal_key,
            )

        for _ in range(2):
            try:
                return await ingress.open(request())
            except StaleLeader as error:
                logger.warning("a run's log has seen leader epoch %d, above ours %d", error.highest, self._leader.epoch)
                self._leader.raise_above(error.highest)
            except NotCertified as error:
                # A driver that has started since its pool was last looked at.
                keys = (*keys, error.key)
        return await ingress.open(request())

    async def _send_secrets(self, run: Resource, memory: _Memory, link: PoolLink) -> None:
        needs = self._needs(run)
        # Marked before reading: what changes in between is sent again.
        mark = self._secrets_mark(run, needs, link)
        values: dict[Entry, str] = {}
        for name in sorted({name for name, _ in needs}):
            found = await self._gateway.read_secret(run.key.namespace, name)
            for key in (key for owner, key in needs if owner == name):
                if key not in found:
                    raise SecretNotUsable(not_usable(name, key))
                values[name, key] = found[key].strip()
        await link.call(lambda ingress: ingress.put_secrets(run.uid, values))
        memory.secrets_sent = mark

    async def _suspend(self, run: Resource, link: PoolLink, *, wanted: bool) -> None:
        await link.call(lambda ingress: ingress.suspend(run.uid, wanted=wanted, leader_epoch=self._leader.epoch))

    async def _cancel(self, run: Resource, memory: _Memory, link: PoolLink) -> None:
        how = _how(run)
        await link.call(lambda ingress: ingress.cancel(run.uid, how=how, leader_epoch=self._leader.epoch))
        memory.cancel_sent_at, memory.cancel_sent = asyncio.get_running_loop().time(), how


def _listed(run: Resource, memory: _Memory, link: PoolLink | None) -> bool | None:
    if link is None or not link.view.available:
        return None
    if run.uid in link.view.listed:
        return True
    opened = memory.opened_at if memory.opened_at is not None else float("-inf")
    return False if link.view.asked_at > opened and link.caught_up else None


def _how(run: Resource) -> str:
    """The form in which a run is cancelled. Of one that is deleted nothing is to go on."""
    return "Stop" if run.deleting else str(run.spec.get("cancel") or "Stop")


def _fork(spec: Mapping[str, Any]) -> tuple[str, str]:
    return str(spec.get("uid", "")), str(spec.get("path", ""))


def _earliest(*waits: float | None) -> float | None:
    return min((w for w in waits if w is not None), default=None)

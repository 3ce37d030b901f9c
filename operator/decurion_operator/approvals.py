"""Reconciling Approvals: each is handed to the driver of its run, and its status says what became of it.

The driver judges, since it knows what is asked, and records; an Approval is known by its uid, so that handing it over
twice, by whichever operator, is once. A decision that is refused stays refused: whoever meant it makes another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from decurion_crds.v1alpha1 import API_VERSION
from decurion_operator.cache import Cache, Resource
from decurion_operator.conditions import RECONCILING, Condition, JsonObject, Reason, merge
from decurion_operator.errors import RunUnknown
from decurion_operator.gateway import Gateway
from decurion_operator.plan.run import SETTLE_SECONDS, Action
from decurion_operator.queue import Key
from decurion_operator.tasks import Deeds
from decurion_operator.workerpools import WorkerPools
from decurion_operator.writes import StatusWriter

ACCEPTED: Final = "Accepted"
LOOK_AGAIN_SECONDS: Final = 2.0
"""A pool that is not there yet is looked at again after so long."""


class Approvals:
    """The reconciler of Approvals."""

    def __init__(
        self,
        cache: Cache,
        gateway: Gateway,
        pools: WorkerPools,
        deeds: Deeds,
        statuses: StatusWriter,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._gateway = gateway
        self._pools = pools
        self._deeds = deeds
        self._statuses = statuses
        self._now = now
        self._said: dict[str, str] = {}
        """What drivers said of Approvals whose status is not written yet, by uid: why they are refused, or nothing."""

    async def reconcile(self, key: Key) -> float | None:
        approval = self._cache.get(key)
        if approval is None or approval.phase in ("Accepted", "Refused"):
            return None
        if approval.uid in self._said:
            await self._statuses.definition(approval, _ended(approval, self._said[approval.uid], self._now()))
            del self._said[approval.uid]
            return None
        run = self._run(approval)
        if run is None:
            age = self._now() - approval.created
            if age < SETTLE_SECONDS:
                return SETTLE_SECONDS - age
            name = (approval.spec.get("run") or {}).get("name")
            why = f'there is no TaskGraphRun "{name}" with that uid in this namespace; see its status.approvals'
            await self._statuses.definition(approval, _ended(approval, why, self._now()))
            return None
        return await self._hand_over(key, approval, run)

    def gone(self, approval: Resource) -> None:
        self._deeds.forget(approval.uid)
        self._said.pop(approval.uid, None)
        self._statuses.forget(approval.key, approval.uid)

    def _run(self, approval: Resource) -> Resource | None:
        ref = approval.spec.get("run") or {}
        run = self._cache.get(Key("TaskGraphRun", approval.key.namespace, str(ref.get("name"))))
        return run if run is not None and run.uid == ref.get("uid") else None

    async def _hand_over(self, key: Key, approval: Resource, run: Resource) -> float | None:
        link = self._pools.link(run.pool)
        trouble = self._deeds.trouble(approval.uid).get(Action.ANSWER)
        if link is None or not link.view.available:
            problem = f'WorkerPool "{run.pool.name}" does not answer; the decision is handed over once it does.'
            await self._statuses.definition(approval, _pending(approval, problem, self._now()))
            return LOOK_AGAIN_SECONDS
        if trouble is not None:
            await self._statuses.definition(approval, _pending(approval, trouble.message, self._now()))

        async def work() -> None:
            try:
                said = await link.call(lambda ingress: ingress.answer(run.uid, _answer(approval)))
            except RunUnknown:
                if not run.finished:
                    raise
                said = "the run has ended; nothing more is to decide"
            await self._gateway.own(key, uid=approval.uid, owner=_owner(run))
            self._said[approval.uid] = said

        self._deeds.start(key, approval.uid, Action.ANSWER, work)
        return None


def _answer(approval: Resource) -> JsonObject:
    spec: dict[str, Any] = {name: value for name, value in approval.spec.items() if name != "run"}
    return spec | {"id": approval.uid, "name": approval.key.name}


def _owner(run: Resource) -> JsonObject:
    """The Approval goes with its run; what was decided stays in the ledger."""
    return {"apiVersion": API_VERSION, "kind": run.key.kind, "name": run.key.name, "uid": run.uid}


def _pending(approval: Resource, message: str, now: float) -> JsonObject:
    wanted = [
        Condition(ACCEPTED, "Unknown", Reason.POOL_UNAVAILABLE, message),
        Condition(RECONCILING, "True", Reason.POOL_UNAVAILABLE, message),
    ]
    return _status(approval, "Pending", message, wanted, now)


def _ended(approval: Resource, why: str, now: float) -> JsonObject:
    """The status of an Approval that was accepted, or refused for `why`."""
    reason, message = (Reason.REFUSED, f"{why}.") if why else (Reason.ACCEPTED, "")
    wanted = [
        Condition(ACCEPTED, "False" if why else "True", reason, message),
        Condition(RECONCILING, "False", reason),
    ]
    return _status(approval, "Refused" if why else "Accepted", message, wanted, now)


def _status(approval: Resource, phase: str, message: str, wanted: list[Condition], now: float) -> JsonObject:
    live = (approval.status or {}).get("conditions") or ()
    return {
        "observedGeneration": approval.generation,
        "phase": phase,
        "message": message,
        "conditions": merge(live, wanted, generation=approval.generation, now=now),
    }

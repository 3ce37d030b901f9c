"""Planners of WorkerPools: their status, and which of the waiting runs may start. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from decurion_crds.findings import Finding
from decurion_operator.cache import Resource
from decurion_operator.conditions import (
    READY,
    REFERENCES_RESOLVED,
    STALLED,
    Condition,
    JsonObject,
    Reason,
    merge,
)
from decurion_operator.plan.definitions import summary, too_large


@dataclass(frozen=True, slots=True)
class Reach:
    """How a pool answers. `available` is None until the first answer or failure; `problem` says what failed, `reason`
    in one word."""

    available: bool | None
    problem: str = ""
    reason: str = Reason.POOL_UNREACHABLE


def plan_pool(
    pool: Resource,
    *,
    findings: tuple[Finding, ...],
    secret: str,
    reach: Reach,
    running: int,
    queued: int,
    now: float,
) -> JsonObject | None:
    """The status of a pool; None while it is not known whether it answers.

    `secret` is what is wrong with the Secret of its token, or empty.
    """
    errors = [f for f in findings if f.severity == "error"]
    if pool.too_large or errors:
        reason, message = (
            (Reason.SPEC_TOO_LARGE, too_large(pool)) if pool.too_large else (Reason.SPEC_INVALID, summary(errors))
        )
        return _status(
            pool,
            [
                Condition(READY, "False", reason, message),
                Condition(REFERENCES_RESOLVED, "Unknown", reason, message),
                Condition(STALLED, "True", reason, message),
            ],
            now=now,
        )
    if reach.available is None and not secret:
        return None
    reason = Reason.SECRET_NOT_USABLE if secret else "" if reach.available else reach.reason
    message = secret or reach.problem
    status = _status(
        pool,
        [
            Condition(READY, "False" if reason else "True", reason or Reason.READY, message if reason else ""),
            Condition(
                REFERENCES_RESOLVED,
                "False" if secret else "True",
                Reason.SECRET_NOT_USABLE if secret else Reason.RESOLVED,
                secret,
            ),
            Condition(STALLED, "False", Reason.HEALTHY),
        ],
        now=now,
    )
    return status | {"running": running, "queued": queued}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that could start: its graph is pinned at the pool and its Secrets are there."""

    uid: str
    priority: int
    created: float
    name: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run stands. `position` counts from 1; 0 means that it may start or has started."""

    position: int
    limit: int | None

    @property
    def admitted(self) -> bool:
        return self.position == 0

    @property
    def message(self) -> str:
        """What a waiting run shows. Far from the front the position is rounded: every change is a write."""
        rounded = round(self.position, 1 - len(str(self.position)))
        shown = self.position if self.position <= 10 else f"about {rounded}"
        return f"Position {shown} in the queue of its pool, which runs {self.limit} at a time."


def plan_admission(waiting: Iterable[Waiting], *, holding: frozenset[str], limit: int | None) -> dict[str, Place]:
    """The place of each waiting run, by uid.

    `holding` are the uids that have a slot: running, or admitted before and not ended. They keep it, and are given
    place 0 when they are among the waiting. Higher priority goes first, then the older, then by name.
    """
    rows = sorted(waiting, key=lambda w: (-w.priority, w.created, w.name, w.uid))
    free = float("inf") if limit is None else limit - len(holding)
    places: dict[str, Place] = {}
    queue = [w for w in rows if w.uid not in holding]
    admitted = int(min(len(queue), max(0, free)))
    for w in rows:
        if w.uid in holding:
            places[w.uid] = Place(0, limit)
    for index, w in enumerate(queue):
        places[w.uid] = Place(max(0, index + 1 - admitted), limit)
    return places


def shown_anew(before: Mapping[str, Place], after: Mapping[str, Place]) -> set[str]:
    """The uids of the runs that were admitted, or show another position, since. Nearly every place changes whenever a
    run ends: to look at each of them would be n looks for each of n runs.
    """
    was = {uid: (place.admitted, place.message) for uid, place in before.items()}
    return {uid for uid, place in after.items() if was.get(uid) != (place.admitted, place.message)}


def _status(pool: Resource, conditions: list[Condition], *, now: float) -> JsonObject:
    live = (pool.status or {}).get("conditions") or ()
    return {
        "observedGeneration": pool.generation,
        "conditions": merge(live, conditions, generation=pool.generation, now=now),
    }

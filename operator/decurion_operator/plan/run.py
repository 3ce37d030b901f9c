"""The planner of runs: from what is observed to the status, the next actions and the next look. Pure.

A run goes Pending → Queued → Running → Succeeded, Failed or Cancelled, and never back. Each reconcile compares all that
is wanted with all that is observed, so any step may be repeated, and an operator that starts again goes on from the
status and the pool alone:

    Pending   the graph is compiled with the LLMs as they are now and its closure is stored at the pool (StoreBundle);
              the digest is recorded in the same write that shows Queued. From then on the graph may change or go.
    Queued    waits for a slot of the pool, then is opened (Open) with that digest, whatever the graph says now.
    Running   shows the driver's projection. A run that no driver lists is opened again, which attaches or takes over.
    ended     every new generation is still observed; after the TTL the object is deleted (Delete).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from decurion_crds.v1alpha1 import TERMINAL_PHASES
from decurion_operator.cache import Resource
from decurion_operator.conditions import (
    COMPLETED,
    RECONCILING,
    STALLED,
    STATUS_TRUNCATED,
    SUCCEEDED,
    Condition,
    JsonObject,
    Reason,
    cut,
    merge,
    seconds_of,
    timestamp,
)
from decurion_operator.plan.definitions import Verdict, too_large
from decurion_operator.plan.pool import Place
from decurion_operator.status import PROJECTED, ended_phase, progress_fields, reason_of, text_of

SETTLE_SECONDS: Final = 2.0
"""A folder is applied in no order: what a new object lacks is not complained about at once."""


class Action(StrEnum):
    """What a run may need done. Each is idempotent; the runtime holds at most one of a kind in flight per run."""

    STORE_BUNDLE = "store-bundle"
    OPEN = "open"
    SEND_SECRETS = "send-secrets"
    CANCEL = "cancel"
    SUSPEND = "suspend"
    RESUME = "resume"
    ANSWER = "answer"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Trouble:
    """The last failure of an action that is to be tried again. `final`: the same request will be refused again."""

    code: str
    message: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Closure:
    """The graph as it would be pinned now: the digest when it may run, whether the pool has stored it, else why not."""

    verdict: Verdict
    digest: str | None = None
    stored: bool = False


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The run's pool. `available` is None until it is known; `silent` counts seconds since it last answered."""

    exists: bool
    available: bool | None = None
    problem: str = ""
    silent: float = 0.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything that is observed of one run. `now` is in Unix seconds.

    `closure` is None while the compiler works. `place` is None until the pool's queue was looked at. `listed`: a driver
    of the pool has the run; None when that is not known from an answer younger than the last opening.
    `opened`: the pool has accepted the run in the life of this process. `reopen_in`: seconds for which a run that was
    lost again and again is not opened again. `secrets`: what is wrong with the Secrets that
    the closure names, or empty. `secrets_due` and `cancel_due`: have not been delivered to the driver that has the run.
    `trouble`: failures by action. `grace`: seconds for which a silent pool is not shown.
    """

    run: Resource
    now: float
    closure: Closure | None
    pool: PoolFacts
    place: Place | None = None
    listed: bool | None = None
    opened: bool = False
    opening: bool = False
    reopen_in: float = 0.0
    projection: Mapping[str, Any] | None = None
    secrets: str = ""
    secrets_due: bool = False
    cancel_due: bool = False
    trouble: Mapping[Action, Trouble] = field(default_factory=dict)
    grace: float = 30.0


@dataclass(frozen=True, slots=True)
class Happening:
    """An event to tell about a run, at most once for each reason."""

    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RunPlan:
    """`status` is the whole status to have, None to leave it. `wake`: seconds until the next look, beside events."""

    status: JsonObject | None
    actions: tuple[Action, ...] = ()
    wake: float | None = None
    happenings: tuple[Happening, ...] = ()


def plan_run(f: RunFacts) -> RunPlan:
    """What to do about one run."""
    phase = f.run.phase
    if f.run.finished:
        return _after_end(f)
    if f.projection is not None and ended_phase(f.projection) and _pinned(f):
        return _ended_by_driver(f, f.projection)
    if f.run.too_large and phase == "Pending":
        return _end(f, "Failed", Reason.SPEC_TOO_LARGE, too_large(f.run))
    known = bool(f.projection is not None or f.listed or f.opened or f.opening)
    if _cancelled(f) and phase != "Running" and not _started(f) and not known:
        return _end(f, "Cancelled", Reason.CANCELLED, "Cancelled before it started.")
    if phase == "Running" or _started(f) or (_pinned(f) and (f.projection is not None or f.listed or f.opened)):
        return _running(f)
    return _queued(f) if _pinned(f) else _pending(f)


def is_phase_change(live: Mapping[str, Any] | None, desired: Mapping[str, Any]) -> bool:
    """Whether the difference is more than progress: in phase, reason, generation or a condition."""
    live = live or {}
    quick = ("phase", "reason", "observedGeneration", "graphDigest")
    if any(live.get(name) != desired.get(name) for name in quick):
        return True
    said = {c["type"]: c["status"] for c in live.get("conditions") or ()}
    return said != {c["type"]: c["status"] for c in desired.get("conditions") or ()}


def _pinned(f: RunFacts) -> bool:
    return bool((f.run.status or {}).get("graphDigest"))


def _started(f: RunFacts) -> bool:
    """Whether a run that is suspended was opened before."""
    return f.run.phase == "Suspended" and bool((f.run.status or {}).get("startedAt"))


def _cancelled(f: RunFacts) -> bool:
    return bool(f.run.spec.get("cancel")) or f.run.deleting


def _pending(f: RunFacts) -> RunPlan:
    lacks_something = not f.pool.exists or (f.closure is not None and not f.closure.verdict.ready)
    age = f.now - f.run.created
    if lacks_something and age < SETTLE_SECONDS and not (f.run.status or {}).get("phase"):
        return RunPlan(None, wake=SETTLE_SECONDS - age)
    if not f.pool.exists:
        return _wait(f, "Pending", Reason.POOL_UNAVAILABLE, f'WorkerPool "{f.run.pool.name}" does not exist: apply it.')
    if f.closure is None:
        return RunPlan(None)
    if not f.closure.verdict.ready:
        return _wait(f, "Pending", Reason.GRAPH_NOT_READY, f.closure.verdict.message)
    if f.closure.stored:
        pinned = {"graphDigest": f.closure.digest, "queuedAt": timestamp(f.now)}
        told = f'Queued at pool "{f.run.pool.name}" with graph {str(f.closure.digest)[:12]}.'
        plan = _wait(f, "Queued", Reason.QUEUED, told, extra=pinned)
        return RunPlan(plan.status, happenings=(Happening("Normal", "Queued", told),))
    if f.pool.available is None:
        return RunPlan(None)
    if not f.pool.available:
        return _wait(f, "Pending", Reason.POOL_UNAVAILABLE, f.pool.problem)
    trouble = f.trouble.get(Action.STORE_BUNDLE)
    if trouble is None:
        return RunPlan(None, (Action.STORE_BUNDLE,))
    if trouble.final:
        return _end(f, "Failed", trouble.code, trouble.message)
    return _wait(f, "Pending", trouble.code, trouble.message, actions=(Action.STORE_BUNDLE,))


def _queued(f: RunFacts) -> RunPlan:
    if f.run.spec.get("suspend"):
        text = "It is suspended before it starts: set spec.suspend to false."
        return _wait(f, "Suspended", Reason.SUSPENDED, text)
    if f.secrets:
        return _wait(f, "Queued", Reason.SECRET_NOT_USABLE, f.secrets)
    if not f.pool.exists or f.pool.available is False:
        problem = f.pool.problem if f.pool.exists else f'WorkerPool "{f.run.pool.name}" does not exist: apply it.'
        if f.pool.exists and f.pool.silent < f.grace:
            return RunPlan(None, wake=f.grace - f.pool.silent)
        return _wait(f, "Queued", Reason.POOL_UNAVAILABLE, problem)
    if f.place is None or f.pool.available is None:
        return RunPlan(None)
    if not f.place.admitted:
        return _wait(f, "Queued", Reason.QUEUED, f.place.message)
    trouble = f.trouble.get(Action.OPEN)
    if trouble is None:
        return RunPlan(None, (Action.OPEN,))
    if trouble.final:
        return _end(f, "Failed", trouble.code, trouble.message)
    return _wait(f, "Queued", trouble.code, trouble.message, actions=(Action.OPEN,))


def _running(f: RunFacts) -> RunPlan:
    known = progress_fields(f.projection) if f.projection is not None else {}
    reason, message = _of_running(f)
    rests = (f.projection or f.run.status or {}).get("phase") == "Suspended"
    wanted, resume = _suspension(f)
    if resume is not None and not resume.admitted:
        reason, message = Reason.QUEUED, resume.message
    phase = "Suspended" if rests else "Running"
    status = _base(f) | known | {"phase": phase, "reason": reason, "message": message}
    status.setdefault("startedAt", timestamp(f.now))
    status.pop("finishedAt", None)
    actions: list[Action] = []
    wake = f.grace - f.pool.silent if f.pool.available is False and f.pool.silent < f.grace else None
    if f.listed is False and not f.opening:
        if f.reopen_in > 0:
            wake = f.reopen_in
        else:
            actions.append(Action.OPEN)
    else:
        if f.secrets_due and not f.secrets:
            actions.append(Action.SEND_SECRETS)
        if f.cancel_due and _cancelled(f):
            actions.append(Action.CANCEL)
        elif wanted is not None:
            actions.append(wanted)
    told = Happening("Normal", "Started", f'Running on pool "{f.run.pool.name}".')
    return RunPlan(
        _with_conditions(f, status, reason, message),
        tuple(actions),
        wake=wake,
        happenings=(told,) if f.run.phase not in ("Running", "Suspended") else (),
    )


def _suspension(f: RunFacts) -> tuple[Action | None, Place | None]:
    """What to do about `suspend`, and where a run stands that is to go on: it waits for a slot as others do. One that
    went on by itself when people had decided, and has no slot, is suspended until it has one.
    """
    said = f.projection or {}
    suspended = said.get("phase") == "Suspended" or said.get("reason") == Reason.SUSPENDING
    if f.run.spec.get("suspend"):
        return (None if suspended or f.projection is None else Action.SUSPEND), None
    if not suspended:
        waits = f.place is not None and not f.place.admitted and f.projection is not None
        return (Action.SUSPEND, f.place) if waits else (None, None)
    return (Action.RESUME if f.place is not None and f.place.admitted else None), f.place


def _of_running(f: RunFacts) -> tuple[str, str]:
    """Reason and message of a running run: the most telling of what is wrong, else what the driver says."""
    if not f.pool.exists or (f.pool.available is False and f.pool.silent >= f.grace):
        problem = f.pool.problem or f'WorkerPool "{f.run.pool.name}" does not exist.'
        return Reason.DRIVER_UNAVAILABLE, f"The state shown is the last one known. {problem}"
    if f.secrets and f.secrets_due:
        return Reason.SECRET_NOT_USABLE, f.secrets
    if f.listed is False and (trouble := f.trouble.get(Action.OPEN)):
        return trouble.code, trouble.message
    said = f.projection or {}
    return reason_of(said.get("reason")) or Reason.RUNNING, text_of(said.get("message"))


def _ended_by_driver(f: RunFacts, projection: Mapping[str, Any]) -> RunPlan:
    phase = ended_phase(projection)
    fields = progress_fields(projection)
    return _end(
        f,
        phase,
        reason_of(projection.get("reason")) or phase,
        text_of(projection.get("message")),
        fields={"finishedAt": timestamp(f.now)} | fields,
    )


def _end(f: RunFacts, phase: str, reason: str, message: str, *, fields: JsonObject | None = None) -> RunPlan:
    status = _base(f) | (fields or {"finishedAt": timestamp(f.now)})
    status |= {"phase": phase, "reason": reason, "message": message}
    kind = "Normal" if phase in ("Succeeded", "Cancelled") else "Warning"
    told = Happening(kind, phase, message or f"The run has ended: {phase}.")
    return RunPlan(_with_conditions(f, status, reason, message), wake=_ttl(f, status), happenings=(told,))


def _after_end(f: RunFacts) -> RunPlan:
    """Of an ended run only the generation is written, and its TTL is kept, from the end and not from a later start."""
    live = dict(f.run.status or {})
    generation = f.run.generation
    status = live | {
        "observedGeneration": generation,
        "conditions": [dict(c) | {"observedGeneration": generation} for c in live.get("conditions") or ()],
    }
    wait = _ttl(f, live)
    if wait is None or wait > 0:
        return RunPlan(status, wake=wait)
    if f.run.managed:
        text = "The TTL is ignored: a GitOps tool tracks this run and would create and run it again."
        return RunPlan(status, happenings=(Happening("Warning", Reason.TTL_IGNORED, text),))
    return RunPlan(None if f.run.deleting else status, () if f.run.deleting else (Action.DELETE,))


def _ttl(f: RunFacts, status: Mapping[str, Any]) -> float | None:
    """Seconds until the run is to be deleted; None when it is kept."""
    ttl = f.run.spec.get("ttlSecondsAfterFinished")
    ended = seconds_of(status.get("finishedAt"))
    if not isinstance(ttl, int) or ended is None:
        return None
    return max(0.0, ended + ttl - f.now)


def _wait(
    f: RunFacts,
    phase: str,
    reason: str,
    message: str,
    *,
    actions: tuple[Action, ...] = (),
    extra: JsonObject | None = None,
) -> RunPlan:
    status = _base(f) | (extra or {}) | {"phase": phase, "reason": reason, "message": message}
    news = reason != Reason.QUEUED and (f.run.status or {}).get("reason") != reason
    told = (Happening("Warning", reason, message),) if news else ()
    return RunPlan(_with_conditions(f, status, reason, message), actions, happenings=told)


def _base(f: RunFacts) -> JsonObject:
    """What stays of the live status. A projection is the whole state: what it no longer says is no longer so."""
    live = dict(f.run.status or {})
    if f.projection is not None:
        live = {name: value for name, value in live.items() if name not in PROJECTED or name == "startedAt"}
    return live | {"observedGeneration": f.run.generation}


def _with_conditions(f: RunFacts, status: JsonObject, reason: str, message: str) -> JsonObject:
    phase = status["phase"]
    ended = phase in TERMINAL_PHASES
    outcome: Any = "Unknown" if not ended else "True" if phase == "Succeeded" else "False"
    # A fixed reason while nothing is wrong keeps conditions quiet: progress must not rewrite them.
    said = reason if ended or reason not in (Reason.QUEUED, Reason.RUNNING) else phase
    text = message if ended or reason != Reason.QUEUED else ""
    stalled = phase == "Failed"
    wanted = [
        Condition(COMPLETED, "True" if ended else "False", said, text),
        Condition(SUCCEEDED, outcome, said, text),
        Condition(RECONCILING, "False" if ended else "True", said, text),
        Condition(STALLED, "True", said, text) if stalled else Condition(STALLED, "False", Reason.HEALTHY),
    ]
    # Whether the status is whole is decided where its size is known, not here.
    live = [c for c in (f.run.status or {}).get("conditions") or () if c.get("type") != STATUS_TRUNCATED]
    conditions = merge(live, wanted, generation=f.run.generation, now=f.now)
    return status | {"message": cut(status["message"], 1024), "conditions": conditions}

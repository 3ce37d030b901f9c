"""What is shown of a run: a summary bounded by the number of its root nodes, whatever its width.

A projection is derived from the engine and never the truth. Sizes: at most 10 failures of 256 bytes each, the output
only up to 4 KiB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from decurion_crds.canonical import Json, canonical
from decurion_crds.v1alpha1.limits import dollars
from decurion_crds.wide import has_refs
from decurion_ledger import Record
from decurion_worker.engine import Engine, Failure, NodeStatus, Opened, ScopeState, failure_of
from decurion_worker.errors import BudgetExceeded, WorkspaceConflict, WorkspaceRefused

MAX_FAILURES = 10
MAX_MESSAGE = 256
MAX_OUTPUT = 4096
MAX_APPROVALS = 20


@dataclass(slots=True)
class RunFacts:
    """What a projection says beside the engine's state. Times are RFC 3339 in UTC."""

    graph_digest: str
    ledger_uri: str
    started_at: str
    attempt: int = 0
    slot: int = 0
    head: str = ""
    committed: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None
    state_hash: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def add_usage(self, usage: dict[str, int]) -> None:
        for name, amount in usage.items():
            self.usage[name] = self.usage.get(name, 0) + amount

    def add_failure(self, failure: Failure) -> None:
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(failure)


def shown_failure(record: Record) -> Failure | None:
    """What a record adds to the failures of its run: each is shown once, where it happened, and not again at the end of
    what it is in.
    """
    if "#" in record.path:
        return None  # an agent was told, and goes on
    failure = failure_of(record)
    if failure is None:
        return None
    ended = record.path.removesuffix("!output")
    own = failure.code in (WorkspaceConflict.code, WorkspaceRefused.code) or failure.klass == BudgetExceeded.klass
    if record.core is not None and ("arms" not in record.core or own):
        ended = ended.removesuffix("!join")
    inside = record.path.endswith(("!output", "!join"))
    return failure if not inside or failure.path == ended else None


def project(engine: Engine, facts: RunFacts) -> dict[str, Json]:
    """The projection of a run, as the ingress answers it."""
    over = engine.final is not None or facts.state_hash is not None
    nodes = [_node(engine.root, name, over=over, cut=engine.cut) for name in engine.root.status]
    nodes += _final_nodes(engine, over=facts.state_hash is not None)
    shown: dict[str, Json] = {
        "phase": _phase(engine, facts),
        "reason": facts.reason,
        "message": facts.message,
        "attempt": facts.attempt,
        "graphDigest": facts.graph_digest,
        "startedAt": facts.started_at,
        "progress": _progress(engine),
        "usage": _usage(facts.usage),
        "nodes": nodes,
        "failures": [_failure(f) for f in facts.failures],
        "ledger": {"uri": facts.ledger_uri, "slot": facts.slot, "head": facts.head},
        "committed": facts.committed,
    }
    if limits := _limits(engine):
        shown["limits"] = limits
    if engine.closed is None:
        shown |= _waits(engine)
        if not facts.reason:
            shown["reason"], shown["message"] = _why_quiet(engine)
    if facts.finished_at is not None:
        shown["finishedAt"] = facts.finished_at
    if facts.state_hash is not None:
        shown["stateHash"] = facts.state_hash
    sealed = engine.graph.root.sealed_output
    if (
        engine.output is not None
        and not sealed
        and not has_refs(engine.output)
        and len(canonical(engine.output)) <= MAX_OUTPUT
    ):
        shown["output"] = engine.output
    return shown


def _usage(usage: dict[str, int]) -> dict[str, Json]:
    """What was used, costs in dollars."""
    shown: dict[str, Json] = {name: amount for name, amount in usage.items() if name != "nanoUSD"}
    return shown | ({"costUSD": dollars(usage["nanoUSD"])} if "nanoUSD" in usage else {})


def _limits(engine: Engine) -> dict[str, Json]:
    """What the run may use."""
    limits = engine.graph.limits
    shown: dict[str, Json] = limits.to_json()
    nano = shown.pop("nanoUSD", None)
    return shown if nano is None else {**shown, "costUSD": dollars(nano)}


def _waits(engine: Engine) -> dict[str, Json]:
    """The first requests to people with how many there are, and when something happens by itself next."""
    pending = list(engine.approvals.pending())
    dues = sorted(timed.due for timed in engine.timed() if timed.due is not None)
    shown: dict[str, Json] = {"nextWakeAt": dues[0]} if dues else {}
    if pending:
        shown["approvals"] = [
            {
                "node": asked.path,
                "request": asked.request,
                "digest": asked.digest,
                "message": _clip(asked.message),
                **({"due": asked.due} if asked.due is not None else {}),
            }
            for asked in pending[:MAX_APPROVALS]
        ]
        shown["pendingApprovals"] = len(pending)
    return shown


def _why_quiet(engine: Engine) -> tuple[str, str]:
    """Reason and message of a run of which nothing is executed, or soon will not be; empty for any other."""
    if engine.suspended:
        rest = f"{len(engine.out)} that began before end first" if engine.out else "nothing of it is executed"
        return ("Suspending" if engine.out else "Suspended"), f"The run is suspended: {rest}."
    if not engine.awaiting:
        return "", ""
    paths = [asked.path for asked in engine.approvals.pending()]
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return "AwaitingApproval", f"It waits for people at {paths[0]}{more}: decurion approve"


def _phase(engine: Engine, facts: RunFacts) -> str:
    if facts.state_hash is None:
        return "Suspended" if engine.suspended and not engine.out and engine.closed is None else "Running"
    return (engine.closed or "running").capitalize()


def _final_nodes(engine: Engine, *, over: bool) -> list[dict[str, Json]]:
    """Rows of the nodes of `finally`, whether it has begun or not."""
    final = engine.final
    if final is not None:
        return [_node(final, name, over=over, cut=over) for name in final.status]
    nodes = engine.graph.final.nodes if engine.graph.final is not None else ()
    phase = "NotRun" if over else "Pending"
    return [{"name": node.name, "kind": node.kind, "phase": phase} for node in nodes]


def _node(scope: ScopeState, name: str, *, over: bool, cut: bool) -> dict[str, Json]:
    """The row of a node. `over`: nothing of its scope goes on; `cut`: since it was broken off."""
    node = scope.scope.by_name[name]
    status = scope.status[name]
    phase = _last_phase(status, cut=cut) if over and not status.terminal else _node_phase(scope, name, status)
    row: dict[str, Any] = {"name": name, "kind": node.kind, "phase": phase}
    opened = scope.opened.get(name)
    if opened is not None and opened.node.loop is not None:
        row.update(_rounds(opened, opened.node.loop.max_iterations))
    elif opened is not None and not opened.single:
        counts = {
            "total": opened.total,
            "running": 0 if opened.joined or over else opened.running - opened.parked,
            "waiting": 0 if opened.joined or over else opened.parked,
            "succeeded": opened.ok,
            "failed": len(opened.failures),
        }
        row.update({k: v for k, v in counts.items() if v})
    return row


def _rounds(opened: Opened, most: int) -> dict[str, int]:
    """The rounds of a loop: those that ended well, of at most how many, and when it has ended of how many."""
    counts = {
        "total": opened.rounds if opened.joined else most,
        "running": 0 if opened.joined else 1,
        "succeeded": opened.rounds,
    }
    return {name: count for name, count in counts.items() if count}


def _node_phase(scope: ScopeState, name: str, status: NodeStatus) -> str:
    match status:
        case NodeStatus.OK:
            return "Succeeded"
        case NodeStatus.SKIPPED:
            return "Skipped"
        case NodeStatus.FAILED:
            return "Failed"
        case NodeStatus.NOT_RUN:
            return "NotRun"
        case NodeStatus.OPEN:
            return "Waiting" if scope.waits_for_people(name) else "Running"
        case NodeStatus.READY if not scope.halts(name) and not scope.ended:
            return "Running"
        case _:
            return "Pending"


def _last_phase(status: NodeStatus, *, cut: bool) -> str:
    """Of a node that never ended: whether it was at work, or due, when its scope was broken off."""
    if status is NodeStatus.OPEN:
        return "Cancelled"
    return "Cancelled" if cut and status is NodeStatus.READY else "NotRun"


def _progress(engine: Engine) -> str:
    """Finished units of all known units: branches of the run's own maps, and its other nodes, `finally` included."""
    done, total = _counted(engine.root)
    if engine.final is not None:
        also, more = _counted(engine.final)
        done, total = done + also, total + more
    elif engine.graph.final is not None:
        total += len(engine.graph.final.nodes)
    return f"{done}/{total}"


def _counted(scope: ScopeState) -> tuple[int, int]:
    done = total = 0
    for name, status in scope.status.items():
        opened: Opened | None = scope.opened.get(name)
        fans = opened is not None and not opened.single
        done += opened.ended if opened is not None and fans else int(status.terminal)
        total += opened.total if opened is not None and fans else 1
    return done, total


def _failure(failure: Failure) -> dict[str, Json]:
    return {"path": failure.path, "class": failure.code, "message": _clip(failure.message)}


def _clip(text: str) -> str:
    raw = text.encode()
    return text if len(raw) <= MAX_MESSAGE else raw[: MAX_MESSAGE - 3].decode(errors="ignore") + "…"

"""The records that a driver writes of what its engine decides."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import FINALLY, CompiledGraph, Scope
from decurion_ledger import Record, Values
from decurion_ledger.workspace import Version
from decurion_worker.context import schema_hash
from decurion_worker.engine import (
    Decide,
    EndScope,
    GiveUp,
    Join,
    OpenFinally,
    Overspent,
    RaceLost,
    RaceWon,
    Spent,
    Step,
)
from decurion_worker.engine.finals import FINAL_MARK
from decurion_worker.engine.opened import Opened, timed_out
from decurion_worker.engine.races import losers, why_lost
from decurion_worker.engine.scopes import ABANDONED
from decurion_worker.engine.tasks import counts
from decurion_worker.failure import Failure
from decurion_worker.records import build, loop_failed, node_failed
from decurion_worker.stops import agent_overspent, limit_used_up


async def record_of(
    decision: Step, *, run: str, graph: CompiledGraph, values: Values, envelope: Mapping[str, Json]
) -> Record:
    """The record of a decision that is not the end of the run."""
    match decision:
        case Decide():
            return await _decided(values, run, decision, envelope=envelope)
        case Join(map=joined):
            return await _join_record(values, run, joined, envelope=envelope)
        case RaceWon():
            return _race_won(run, decision, envelope=envelope)
        case Spent():
            return limit_used_up(run, decision, envelope=envelope)
        case Overspent():
            return await agent_overspent(values, run, decision, envelope=envelope)
        case RaceLost():
            return await _race_lost(values, run, decision, envelope=envelope)
        case GiveUp():
            return await _skipped(values, run, decision, envelope=envelope)
        case OpenFinally():
            final = graph.templates[decision.scope.scope.final or FINALLY]
            return await _finally_opened(values, run, final, decision, envelope=envelope)
        case EndScope():
            return await _scope_ended(values, run, decision, envelope=envelope)


async def _join_record(values: Values, run: str, joined: Opened, *, envelope: Mapping[str, Json]) -> Record:
    """The end of a narrow map, or of a map or loop that failed. Arms of a map are named by count and Merkle root; the
    value is the node's output. How far a map came before it failed depends on time: that is in the envelope.
    """
    failure = _join_failure(joined)
    if joined.node.loop is not None and failure is not None:
        start = ((f"{joined.path}!open", joined.core),)
        built = await loop_failed(values, run, joined.node, failure, parents=start, path=joined.path, envelope=envelope)
        return built.record
    arms = counts(joined)
    built = await build(
        values.sealing(joined.node.sealed == "all"),
        run,
        type="join",
        path=f"{joined.path}!join",
        node=joined.node.digest,
        parents=((f"{joined.path}!open", joined.core),),
        input=None,
        value=joined.result() if failure is None else None,
        failure=failure,
        schema=schema_hash(joined.node.output),
        envelope=envelope if failure is None else {**envelope, "arms": arms},
        extra={"arms": arms if failure is None else {"count": joined.total}},
    )
    return built.record


def _join_failure(joined: Opened) -> Failure | None:
    if joined.spent is not None:
        return joined.spent
    if joined.node.loop is not None and joined.failures:
        return joined.failures[0]
    own = {index: failure for index, failure in joined.failures.items() if failure.code != ABANDONED}
    if joined.fails_with(len(own)):
        first = own[min(own)]
        message = (
            f"{len(own)} of {joined.total} items failed, more than the map tolerates; the first, "
            f"{first.path}, with {first.code}: {first.message}"
        )
        return Failure(joined.path, "Terminal", "ItemsFailed", message)
    if joined.timed_out:
        return timed_out(joined)
    if joined.over_tolerance or joined.ended < joined.total or joined.outputs is None:
        return Failure(joined.path, "Terminal", ABANDONED, "the run failed elsewhere before all items had run")
    return None


async def _finally_opened(
    values: Values, run: str, scope: Scope, begun: OpenFinally, *, envelope: Mapping[str, Json]
) -> Record:
    """The beginning of `finally`: how the nodes ended. The text of a failure is in the envelope."""
    failure = begun.failure
    failed: Json = failure and {"path": failure.path, "class": failure.klass, "code": failure.code}
    built = await build(
        values,
        run,
        type="scope_opened",
        path=f"{begun.scope.path}{FINAL_MARK}",
        node=scope.digest,
        parents=begun.parents,
        input=None,
        value={"outcome": begun.outcome, "failure": failed},
        envelope=envelope if failure is None else {**envelope, "message": failure.message},
    )
    return built.record


async def _scope_ended(values: Values, run: str, ended: EndScope, *, envelope: Mapping[str, Json]) -> Record:
    """The end of a branch, graph or round that failed, or whose `finally` has ended."""
    scope = ended.scope
    well = scope.result if ended.failure is None else None
    ends = scope.final.ends(node.name for node in scope.final.scope.nodes) if well and scope.final else ()
    parents = (*ends, (f"{scope.path}!result", well.core)) if well is not None else scope.start()
    built = await build(
        values.sealing(scope.scope.sealed_output),
        run,
        type="commit",
        path=f"{scope.path}!output",
        node=scope.scope.digest,
        parents=tuple(sorted(parents)),
        input=None if well is not None else await values.near(scope.input),
        value=well.output if well is not None else None,
        files=Version.from_json(well.files) if well is not None and well.files is not None else None,
        failure=ended.failure,
        schema=schema_hash(scope.scope.output_schema),
        envelope=envelope,
        inputs=values.sealing(scope.scope.sealed_input),
    )
    return built.record


async def _decided(values: Values, run: str, decision: Decide, *, envelope: Mapping[str, Json]) -> Record:
    """The result of a node whose people have decided, or whose time is over."""
    asked = decision.asked
    outcome = asked.outcome
    built = await build(
        values,
        run,
        type="commit",
        path=asked.path,
        node=asked.node.digest,
        parents=((f"{asked.path}!open", asked.core),),
        input=None,
        value=outcome.output if outcome is not None else None,
        failure=outcome.failure if outcome is not None else None,
        schema=schema_hash(asked.node.output),
        envelope=envelope,
    )
    return built.record


def _race_won(run: str, race: RaceWon, *, envelope: Mapping[str, Json]) -> Record:
    """Enough of the nodes that race for another have ended well: which, and who is given up now. This depends on time,
    so replay follows it.
    """
    scope, name = race.scope, race.name
    said: dict[str, Json] = {"winners": list(scope.races[name].winners), "lost": list(losers(scope, name))}
    return Record.event("race_won", f"{scope.path}/{name}", {"run": run, **envelope, **said})


async def _race_lost(values: Values, run: str, race: RaceLost, *, envelope: Mapping[str, Json]) -> Record:
    """The failure of a node for which too few others ended well."""
    return await node_failed(values, run, race.scope, race.name, why_lost(race.scope, race.name), envelope=envelope)


async def _skipped(values: Values, run: str, given: GiveUp, *, envelope: Mapping[str, Json]) -> Record:
    """The end of a node that was given up: how far it came depends on time."""
    scope, node = given.scope, given.scope.scope.by_name[given.name]
    built = await build(
        values,
        run,
        type="skip",
        path=given.path,
        node=node.digest,
        parents=scope.start(),
        input=None,
        value=None,
        schema=schema_hash(node.output),
        envelope=envelope,
        has_value=False,
    )
    return built.record

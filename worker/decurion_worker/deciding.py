"""The records that a driver writes of what its engine decides."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import FINALLY, CompiledGraph
from decurion_ledger import Record, Values
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
from decurion_worker.records import (
    decided,
    finally_opened,
    join_record,
    race_lost,
    race_won,
    scope_ended,
    skipped,
)
from decurion_worker.stops import agent_overspent, limit_used_up


async def record_of(
    decision: Step, *, run: str, graph: CompiledGraph, values: Values, envelope: Mapping[str, Json]
) -> Record:
    """The record of a decision that is not the end of the run."""
    match decision:
        case Decide():
            return await decided(values, run, decision, envelope=envelope)
        case Join(map=joined):
            return await join_record(values, run, joined, envelope=envelope)
        case RaceWon():
            return race_won(run, decision, envelope=envelope)
        case Spent():
            return limit_used_up(run, decision, envelope=envelope)
        case Overspent():
            return await agent_overspent(values, run, decision, envelope=envelope)
        case RaceLost():
            return await race_lost(values, run, decision, envelope=envelope)
        case GiveUp():
            return await skipped(values, run, decision, envelope=envelope)
        case OpenFinally():
            final = graph.templates[decision.scope.scope.final or FINALLY]
            return await finally_opened(values, run, final, decision, envelope=envelope)
        case EndScope():
            return await scope_ended(values, run, decision, envelope=envelope)

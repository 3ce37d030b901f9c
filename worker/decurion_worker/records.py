"""Making ledger records out of what runners and drivers did. Core and envelope are as on the ledger page.

The core says what was computed from what and is the same wherever a deterministic node runs; the envelope says who
did it, when, at what cost, and carries the values (inline, or as blobs that were stored before).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decurion_crds.canonical import Json, merkle_root
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, Values, make_core, vhash
from decurion_ledger import core_hash as hash_core
from decurion_worker.context import Execution, schema_hash
from decurion_worker.engine.scopes import MapState
from decurion_worker.failure import Failure
from decurion_worker.nodes import NodeResult

Parents = Sequence[tuple[str, str]]


def outcome_of(failure: Failure | None, *, skipped: bool = False) -> Json:
    if failure is not None:
        return {"failed": {"class": failure.klass, "code": failure.code}}
    return "skipped" if skipped else "ok"


async def build(
    values: Values,
    run: str,
    *,
    type: str,
    path: str,
    node: str,
    parents: Parents,
    input: Json,
    value: Json,
    failure: Failure | None = None,
    schema: str | None = None,
    writes: Mapping[str, Json] | None = None,
    envelope: Mapping[str, Json] | None = None,
    has_value: bool = True,
    extra: Mapping[str, Json] | None = None,
) -> Record:
    """A record with a core. Every blob that it names is stored when this returns."""
    channels = sorted(writes or {})
    given = [] if input is None else [input]
    returned = [value] if has_value and failure is None else []
    kept = await values.keep([*given, *returned, *((writes or {})[name] for name in channels)])
    hashes = iter(kept.names)
    core = make_core(
        type=type,
        path=path,
        node=node,
        parents=sorted(parents),
        input=next(hashes) if given else None,
        outcome=outcome_of(failure, skipped=type == "skip"),
        delta=next(hashes) if returned else None,
        schema=schema,
        writes=list(zip(channels, hashes, strict=True)),
    )
    if extra:
        core.update(extra)
    full: dict[str, Any] = {"run": run, **(envelope or {}), "values": kept.packed}
    if failure is not None:
        full["message"] = failure.message
        full["failed_at"] = failure.path
    return Record(type=type, path=path, core=core, envelope=full, core_hash=hash_core(core))


async def node_record(
    execution: Execution, result: NodeResult, *, parents: Parents, envelope: Mapping[str, Json]
) -> Record:
    """The record of one executed node: `commit`, `skip`, or `scope_opened` for a map."""
    context, node = execution.context, execution.node
    seen: dict[str, Json] = {**envelope}
    if execution.usage:
        seen["usage"] = dict(execution.usage)
    if execution.model:
        seen["model"] = execution.model
    opened = result.status == "opened"
    return await build(
        context.values,
        context.run,
        type="scope_opened" if opened else "skip" if result.status == "skipped" else "commit",
        path=f"{execution.path}!open" if opened else execution.path,
        node=node.digest,
        parents=parents,
        input=result.input,
        value=result.output,
        has_value=result.status != "skipped" or result.output is not None,
        failure=result.failure,
        schema=context.schema_hash(node.output),
        writes=result.writes,
        envelope=seen,
    )


def attempt_records(execution: Execution, *, lease: str, worker: str) -> list[Record]:
    """One record for each failed try, so that nothing of what was tried is lost. They have no core."""
    return [
        Record(
            type="attempt_failed",
            path=execution.path,
            core=None,
            envelope={"run": execution.context.run, "lease": lease, "worker": worker, "try": i + 1, **failed},
            core_hash="",
        )
        for i, failed in enumerate(execution.failed_attempts)
    ]


async def genesis_record(
    values: Values,
    *,
    run: str,
    graph: CompiledGraph,
    input: Json,
    seed: str,
    facts: Mapping[str, Json],
    envelope: Mapping[str, Json],
) -> Record:
    """The first record of a run: what it is a run of. Graph and input are its values, by hash."""
    closure = graph.to_json()
    core = make_core(
        type="genesis",
        path="/",
        node=graph.digest,
        parents=[],
        input=vhash(input),
        outcome="ok",
        delta=None,
        schema=None,
    )
    core["seed"] = seed
    full = {
        "run": run,
        **envelope,
        "facts": dict(facts),
        "closure": vhash(closure),
        "values": await values.pack([closure, input]),
    }
    return Record(type="genesis", path="/", core=core, envelope=full, core_hash=hash_core(core))


async def join_record(values: Values, run: str, joined: MapState, *, envelope: Mapping[str, Json]) -> Record:
    """The end of a map. Its arms are named by count and Merkle root; the value is the node's output."""
    failure = _join_failure(joined)
    arms = [bytes.fromhex(arm) for arm in joined.arms if arm]
    counts = {
        "count": joined.total,
        "ok": joined.ok,
        "failed": len(joined.failures),
        "root": merkle_root("arms/v0", arms),
    }
    return await build(
        values,
        run,
        type="join",
        path=f"{joined.path}!join",
        node=joined.node.digest,
        parents=((f"{joined.path}!open", joined.opened),),
        input=None,
        value=joined.result(),
        failure=failure,
        schema=schema_hash(joined.node.output),
        envelope=envelope,
        extra={"arms": counts},
    )


def _join_failure(joined: MapState) -> Failure | None:
    if joined.over_tolerance:
        first = joined.failures[min(joined.failures)]
        message = (
            f"{len(joined.failures)} of {joined.total} items failed, more than the map tolerates; the first, "
            f"{first.path}, with {first.code}: {first.message}"
        )
        return Failure(joined.path, first.klass, first.code, message)
    if joined.ended < joined.total:
        return Failure(joined.path, "Terminal", "Abandoned", "the run failed elsewhere before all items had run")
    return None

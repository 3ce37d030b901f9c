"""Making ledger records out of what runners and drivers did. Core and envelope are as on the ledger page.

The core says what was computed from what and is the same wherever a deterministic node runs; the envelope says who
did it, when, at what cost, and carries the values (inline, or as blobs that were stored before).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph, Node
from decurion_ledger import Record, Values, make_core, vhash
from decurion_ledger import core_hash as hash_core
from decurion_ledger.workspace import Version
from decurion_worker.context import Execution, schema_hash
from decurion_worker.engine.actions import Task
from decurion_worker.engine.rounds import Round
from decurion_worker.engine.scopes import ScopeState
from decurion_worker.failure import Failure
from decurion_worker.files import version_of
from decurion_worker.nodes import NodeResult
from decurion_worker.nodes.approval import nonce
from decurion_worker.nodes.loop import After

Parents = Sequence[tuple[str, str]]


def outcome_of(failure: Failure | None, *, skipped: bool = False) -> Json:
    if failure is not None:
        return {"failed": {"class": failure.klass, "code": failure.code}}
    return "skipped" if skipped else "ok"


class Built(NamedTuple):
    """A record, and its values as whoever reads it will have them: wide lists by reference."""

    record: Record
    value: Json
    writes: dict[str, Json]


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
    has_value: bool | None = None,
    extra: Mapping[str, Json] | None = None,
    files: Version | None = None,
    inputs: Values | None = None,
) -> Built:
    """A record with a core. Every blob that it names is stored when this returns. `files` is the version that it names.
    `inputs` writes the input, where `values` does not.

    A failure has a value only where `has_value` says so.
    """
    channels = sorted(writes or {})
    given = [] if input is None else [input]
    returned = [value] if (failure is None if has_value is None else has_value) else []
    inputs = values if inputs is None else inputs
    alone = inputs.is_sealing is not values.is_sealing
    apart = await inputs.keep(given) if alone else None
    kept = await values.keep([*(() if alone else given), *returned, *((writes or {})[name] for name in channels)])
    hashes = iter((*(apart.names if apart else ()), *kept.names))
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
    full: dict[str, Any] = {
        "run": run,
        **(envelope or {}),
        "values": {**(apart.packed if apart else {}), **kept.packed},
    }
    if files is not None:
        core["workspace"], full["workspace"] = files.root, files.to_json()
    if failure is not None:
        full["message"] = failure.message
        full["failed_at"] = failure.path
        if failure.said and inputs.is_sealing:
            told = await inputs.keep([failure.said])
            full["said"], full["values"] = told.names[0], {**full["values"], **told.packed}
    record = Record(type=type, path=path, core=core, envelope=full, core_hash=hash_core(core))
    seen = kept.values if alone else kept.values[len(given) :]
    return Built(record, seen[0] if returned else None, dict(zip(channels, seen[len(returned) :], strict=True)))


async def node_record(
    execution: Execution, result: NodeResult, *, parents: Parents, envelope: Mapping[str, Json], mark: str = ""
) -> Built:
    """The record of one executed node: `commit`, `skip`, `scope_opened` for a map or graph, or `approval_requested`."""
    context, node = execution.context, execution.node
    if execution.calls is not None and result.status == "ok":
        parents = [*parents, *execution.calls.ends()]
    seen: dict[str, Json] = {**envelope}
    if execution.usage:
        seen["usage"] = dict(execution.usage)
    seen |= execution.asked()
    opened = result.status in ("opened", "asked")
    if result.status == "asked":
        seen["request"] = nonce()
    whole = node.sealed == "all" or (result.status == "opened" and node.sealed is not None)
    return await build(
        context.values.sealing(whole),
        context.run,
        type=_TYPES.get(result.status, "commit"),
        path=f"{execution.path}!open" if opened else f"{execution.path}{mark}",
        node=node.digest,
        parents=parents,
        input=result.input,
        value=result.output,
        has_value=_has_value(result),
        failure=result.failure,
        schema=context.schema_hash(node.output) if result.status != "asked" else None,
        writes=result.writes,
        envelope=seen,
        files=result.files,
        inputs=context.values,
    )


_TYPES = {"opened": "scope_opened", "asked": "approval_requested", "skipped": "skip"}


def _has_value(result: NodeResult) -> bool:
    if result.status == "failed":
        return result.instead
    return result.status != "skipped" or result.output is not None


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
    files: Version | None = None,
) -> Record:
    """The first record of a run: what it is a run of. Graph and input are its values, by hash; `files` are those that
    it begins with.
    """
    closure = graph.to_json()
    inputs = values.sealing(graph.root.sealed_input)
    core = make_core(
        type="genesis",
        path="/",
        node=graph.digest,
        parents=[],
        input=inputs.name(input),
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
        "values": {**await values.pack([closure]), **await inputs.pack([input])},
    }
    if files is not None:
        core["workspace"], full["workspace"] = files.root, files.to_json()
    return Record(type="genesis", path="/", core=core, envelope=full, core_hash=hash_core(core))


async def round_record(
    execution: Execution, after: After, last: Round, *, start: Parents, envelope: Mapping[str, Json]
) -> Built:
    """What comes after a round: the `scope_opened` of the next one, or the `join` of the loop, which depends on the
    round whose output it has, too. `start` is the end of the round.
    """
    context, node = execution.context, execution.node
    parents = list(start)
    seen = dict(envelope)
    if after.best is not None:
        seen["best"] = after.best.round
        if after.best.round != last.number and after.failure is None and after.input is None:
            parents.append((f"{execution.path}@{after.best.round:03d}!output", after.best.core))
    opens = after.input is not None
    sealed = node.sealed == "all" or (opens and node.sealed is not None)
    return await build(
        context.values.sealing(sealed),
        context.run,
        type="scope_opened" if opens else "join",
        path=f"{execution.path}@{last.number + 1:03d}!open" if opens else f"{execution.path}!join",
        node=node.digest,
        parents=parents,
        input=None,
        value=after.opening if opens else after.output,
        failure=after.failure,
        schema=None if opens else context.schema_hash(node.output),
        envelope=seen,
        files=_round_files(node, after, last),
        inputs=context.values,
    )


def _round_files(node: Node, after: After, last: Round) -> Version | None:
    """The files that the next round begins with, or that the loop leaves: those of the round whose output it has."""
    if node.workspace is None or after.failure is not None:
        return None
    keeps = node.loop is not None and node.loop.keep == "best" and after.input is None
    return version_of(after.best.files if keeps and after.best is not None else last.files)


async def loop_failed(
    values: Values, run: str, node: Node, failure: Failure, *, parents: Parents, path: str, envelope: Mapping[str, Json]
) -> Built:
    """The end of a loop at `path` that failed between its rounds, in one, or from outside. It depends on the opening
    of the loop alone: how far it came may depend on time.
    """
    return await build(
        values,
        run,
        type="join",
        path=f"{path}!join",
        node=node.digest,
        parents=parents,
        input=None,
        value=None,
        failure=failure,
        schema=schema_hash(node.output),
        envelope=envelope,
    )


async def node_failed(
    values: Values, run: str, scope: ScopeState, name: str, failure: Failure, *, envelope: Mapping[str, Json]
) -> Record:
    """The failure of a node that the driver itself decides."""
    node = scope.scope.by_name[name]
    built = await build(
        values,
        run,
        type="commit",
        path=f"{scope.path}/{name}",
        node=node.digest,
        parents=scope.start(),
        input=None,
        value=None,
        failure=failure,
        schema=schema_hash(node.output),
        envelope=envelope,
    )
    return built.record


async def given_up(
    values: Values, run: str, graph: CompiledGraph, task: Task, failure: Failure, *, envelope: Mapping[str, Json]
) -> Record:
    """The failure of a task that no runner brings to an end."""
    scope = graph.templates[task.template] if task.template else graph.root
    loops = task.kind in ("loop", "round")
    joins = task.kind == "join" or loops
    built = await build(
        values,
        run,
        type="join" if joins else "commit",
        path=_end_of(task),
        node=scope.by_name[task.node].digest if task.node else scope.digest,
        parents=task.parents,
        input=None,
        value=None,
        failure=failure,
        envelope=envelope,
        extra={"arms": {"count": task.env["arms"]["count"]}} if joins and not loops else None,
    )
    return built.record


def _end_of(task: Task) -> str:
    """The path of the record that ends the task, or with a loop's round the loop, in failure."""
    match task.kind:
        case "branch":
            return f"{task.scope}!output"
        case "loop":
            return f"{task.scope}!join"
        case "round":
            return f"{task.scope}/{task.node}!join"
        case _:
            return task.key.removesuffix("!writes")

"""The work of one item: a branch or a loop that runs whole here, or one step of a scope that several runners share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from decurion_crds.canonical import Json
from decurion_ledger import Record, SlotReader
from decurion_worker.branch import LeafScope, leaf_scope
from decurion_worker.calls import with_calls
from decurion_worker.context import CallsOpen, Execution, RunContext, executing
from decurion_worker.engine.rounds import Round
from decurion_worker.failure import Failure
from decurion_worker.joining import join_files
from decurion_worker.journal import Journal
from decurion_worker.leaf_loop import LeafLoop
from decurion_worker.link import HISTORY, WorkItem
from decurion_worker.nodes import NodeResult, execute
from decurion_worker.nodes.join import joined_output
from decurion_worker.nodes.loop import after_round
from decurion_worker.nodes.node import instead_of, writes_result
from decurion_worker.records import attempt_records, build, node_record, round_record
from decurion_worker.scope_ends import scope_files, scope_output

Emit = Callable[[Record, bool], Awaitable[None]]
"""Hands one record to the link; the flag marks the last of the item. Waits while the item's window is full."""
EmitInside = Callable[[Record], Awaitable[None]]
"""The same for a record that is not the last."""


async def work_on(context: RunContext, item: WorkItem, *, worker: str, emit: Emit, journal: Journal) -> None:
    """Do what is left of an item and emit its records, that of its end last.

    Raises `CallsOpen` for an agent that waits for others, after all that says so was emitted.
    """
    envelope: dict[str, Json] = {"lease": item.lease, "worker": worker}

    async def inside(record: Record) -> None:
        await emit(record, False)

    match item.kind:
        case "loop":
            end = await _loop(context, item, envelope, inside, journal)
        case "branch":
            end = await _branch(context, item, envelope, inside, journal)
        case "output" | "result":
            end = await _output(context, item, envelope)
        case _:
            end = await _node(context, item, envelope, inside, journal)
    await emit(end, True)


async def _loop(
    context: RunContext, item: WorkItem, envelope: dict[str, Json], emit: EmitInside, journal: Journal
) -> Record:
    node = context.scope(item.template).by_name[item.node]
    loop = LeafLoop(
        executing(context, item.scope, node, journal, template=item.template),
        item.env["env"],
        opening=item.env["opening"],
        core=item.parents[0][1],
        done=item.done,
        make=partial(leaf_scope, context, node.template or "", envelope=envelope, emit=emit, journal=journal),
        emit=emit,
        envelope=envelope,
        files=item.files["base"] if item.files is not None else None,
    )
    return (await loop.run()).built.record


async def _branch(
    context: RunContext, item: WorkItem, envelope: dict[str, Json], emit: EmitInside, journal: Journal
) -> Record:
    leaf = LeafScope(
        context,
        context.scope(item.template),
        template=item.template,
        files=item.files["base"] if item.files is not None else None,
        path=item.scope,
        input=item.env["input"],
        start=item.parents,
        done=item.done,
        envelope=envelope,
        emit=emit,
        journal=journal,
    )
    return (await leaf.run()).record


async def _node(
    context: RunContext, item: WorkItem, envelope: dict[str, Json], emit: EmitInside, journal: Journal
) -> Record:
    node = context.scope(item.template).by_name[item.node]
    execution = executing(context, f"{item.scope}/{item.node}", node, journal, template=item.template)
    execution.files = item.files
    execution.history = [one for name, one in sorted(item.done.items()) if name.startswith(HISTORY)]
    make = partial(leaf_scope, context, envelope=envelope, emit=emit, journal=journal)
    with_calls(execution, parents=item.parents, done=item.done, make=make, emit=emit, envelope=envelope)
    if item.kind == "round":
        return await _after_round(execution, item, envelope)
    if item.kind == "join":
        return await _join(execution, item, envelope, emit)
    mark = "!otherwise" if item.kind == "otherwise" else ""
    try:
        result = await _result(execution, item)
    except CallsOpen:
        await _emit_attempts(execution, envelope, emit)
        raise
    await _emit_attempts(execution, envelope, emit)
    return (await node_record(execution, result, parents=item.parents, envelope=envelope, mark=mark)).record


async def _result(execution: Execution, item: WorkItem) -> NodeResult:
    if item.kind == "writes":
        return await writes_result(execution, item.env, item.env["output"])
    if item.kind == "otherwise":
        failed = NodeResult("failed", failure=Failure(execution.path, "Terminal", "Failed", ""))
        result = await instead_of(execution, item.env, failed)
        return NodeResult("ok", output=result.output) if result.instead else result
    return await execute(execution, item.env, skip=item.skip)


async def _emit_attempts(execution: Execution, envelope: dict[str, Json], emit: EmitInside) -> None:
    for record in attempt_records(execution, lease=str(envelope["lease"]), worker=str(envelope["worker"])):
        await emit(record)


async def _output(context: RunContext, item: WorkItem, envelope: dict[str, Json]) -> Record:
    scope = context.scope(item.template)
    context = context.view(scope.sealed_output)
    value, failure = await scope_output(context, scope, item.scope, item.env)
    files = None
    if failure is None:
        files, failure = await scope_files(context, scope, item.scope, item.files)
    built = await build(
        context.values,
        item.run,
        type="commit",
        path=f"{item.scope or '/'}!{item.kind}",
        node=scope.digest,
        parents=item.parents,
        input=None,
        value=value,
        failure=failure,
        schema=context.schema_hash(scope.output_schema),
        envelope=envelope,
        files=files,
    )
    return built.record


async def _after_round(execution: Execution, item: WorkItem, envelope: dict[str, Json]) -> Record:
    last = Round.of(item.env)
    after = await after_round(execution, item.env["env"], last)
    return (await round_record(execution, after, last, start=item.parents, envelope=envelope)).record


async def _join(execution: Execution, item: WorkItem, envelope: dict[str, Json], emit: EmitInside) -> Record:
    context, node = execution.context, execution.node
    reader = SlotReader(context.store, item.run)
    values = context.values.sealing(node.sealed == "all")
    joined = await joined_output(values, reader, path=execution.path, env=item.env)
    files = await join_files(execution, item, joined, envelope=envelope, emit=emit)
    built = await build(
        values,
        item.run,
        type="join",
        path=f"{execution.path}!join",
        node=node.digest,
        parents=item.parents,
        input=None,
        value=files.value,
        failure=files.failure,
        schema=context.schema_hash(node.output),
        envelope=envelope,
        extra={"arms": item.env["arms"]},
        files=files.version,
    )
    return built.record

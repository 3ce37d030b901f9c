"""Executing one node: `when`, `with`, the block, the check of its output, `writes`. All of it on a runner, in one go.

Nothing in here commits anything: a `NodeResult` is what a record will say. Every try starts from the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from decurion_crds.canonical import Json
from decurion_crds.compiled import Schema, SwitchBlock
from decurion_crds.expressions import ExpressionFailed
from decurion_crds.values import OutputMismatch, ValueRefused, normalise
from decurion_crds.wide import WideDict, has_refs
from decurion_ledger.errors import ValueTooWide
from decurion_ledger.workspace import Version
from decurion_worker import wide
from decurion_worker.context import Execution, RunContext
from decurion_worker.drawers import RECORDED, gather
from decurion_worker.errors import ExpressionFailure, OutputBroken, ValueTooLarge, WorkError
from decurion_worker.failure import Failure, unsaid
from decurion_worker.files import close_files, open_files
from decurion_worker.nodes.agent import run_agent
from decurion_worker.nodes.approval import ask
from decurion_worker.nodes.code import run_code
from decurion_worker.nodes.llm import run_llm
from decurion_worker.nodes.loading import load_files
from decurion_worker.nodes.map import open_map
from decurion_worker.nodes.tool import run_tool
from decurion_worker.nodes.transform import run_transform


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What came of one node. `input` is its snapshot (None when it never got one); `opened` is the status of what opens
    scopes, `asked` that of an approval, whose `output` is what is shown.

    `instead` says that `output` stands for that of a node that failed: the value of its `otherwise`. `files` is the
    version that the node leaves, or that what it opens begins with.
    """

    status: Literal["ok", "skipped", "failed", "opened", "asked"]
    input: dict[str, Json] | None = None
    output: Json = None
    writes: dict[str, Json] = field(default_factory=dict)
    failure: Failure | None = None
    instead: bool = False
    files: Version | None = None


async def execute(execution: Execution, env: Mapping[str, Json], *, skip: bool = False) -> NodeResult:
    """Run a node against the environment `env` of its scope. Failures are results, not exceptions."""
    result = _told(execution, await _attempt(execution, env, skip=skip))
    if result.failure is not None and execution.node.on_failure == "otherwise":
        return await instead_of(execution, env, result)
    return result


async def instead_of(execution: Execution, env: Mapping[str, Json], failed: NodeResult) -> NodeResult:
    """`failed` with what its node's `otherwise` gives; that failing too, it is the failure."""
    try:
        return replace(failed, output=(await _skipped(execution, env)).output, instead=True)
    except WorkError as error:
        return _told(execution, replace(failed, failure=failure_from(execution.path, error)))
    except ExpressionFailed as error:
        return _told(execution, replace(failed, failure=expression_failure(execution.path, error)))


async def _attempt(execution: Execution, env: Mapping[str, Json], *, skip: bool) -> NodeResult:
    snapshot: dict[str, Json] | None = None
    node = execution.node
    try:
        if skip or not await _wanted(execution, env):
            return await _skipped(execution, env)
        snapshot = await _snapshot(execution, env)
        await open_files(execution)
        if node.map is not None:
            opened = await open_map(execution, node.map, env, snapshot)
            return NodeResult("opened", input=snapshot, output=opened, files=await close_files(execution))
        if node.graph is not None:
            opening: Json = await _template_input(execution, snapshot)
            return NodeResult("opened", input=snapshot, output=opening, files=await close_files(execution))
        if node.loop is not None:
            opening = {"input": await _template_input(execution, snapshot)}
            return NodeResult("opened", input=snapshot, output=opening, files=await close_files(execution))
        if node.approval is not None:
            return NodeResult("asked", input=snapshot, output=await ask(execution, node.approval, snapshot))
        if node.switch is not None:
            return NodeResult("ok", input=snapshot, output=await _chosen(execution, node.switch, env))
        seen, snapshot = snapshot, await _drawn(execution, env, snapshot)
        output = await _checked(execution, await _block(execution, seen))
        writes = await written(execution, env, output)
        return NodeResult("ok", input=snapshot, output=output, writes=writes, files=await close_files(execution))
    except WorkError as error:
        return NodeResult("failed", input=snapshot, failure=failure_from(execution.path, error))
    except ExpressionFailed as error:
        return NodeResult("failed", input=snapshot, failure=expression_failure(execution.path, error))


def _told(execution: Execution, result: NodeResult) -> NodeResult:
    """`result` with nothing sensitive in what its failure says."""
    if result.failure is None or execution.node.sealed is None:
        return result
    return replace(result, failure=unsaid(result.failure))


def expression_failure(path: str, error: ExpressionFailed) -> Failure:
    return failure_from(path, ExpressionFailure(path, error.name, error.message))


def failure_from(path: str, error: WorkError) -> Failure:
    return Failure(path=path, klass=error.klass, code=error.code, message=str(error))


async def _wanted(execution: Execution, env: Mapping[str, Json]) -> bool:
    when = execution.node.when
    if when is None:
        return True
    return bool((await execution.context.evaluate({"when": when}, env))["when"])


async def _skipped(execution: Execution, env: Mapping[str, Json]) -> NodeResult:
    otherwise = execution.node.otherwise
    if otherwise is None:
        return NodeResult("skipped")
    values = await execution.context.evaluate(otherwise, env)
    value = values["$value"] if set(otherwise) == {"$value"} else values
    return NodeResult("skipped", output=await _checked(execution, value))


async def _snapshot(execution: Execution, env: Mapping[str, Json]) -> dict[str, Json]:
    values = await load_files(execution, env)
    if execution.node.with_:
        values |= await execution.context.evaluate(execution.node.with_, env)
    return plain(execution, values)


async def _drawn(execution: Execution, env: Mapping[str, Json], snapshot: dict[str, Json]) -> dict[str, Json]:
    """Gather what the node's model sees beside its prompt; the snapshot with what the ledger is told of that."""
    block = execution.node.llm or execution.node.agent
    execution.drawers = await gather(execution, env, block.prompt if block is not None else None)
    if execution.drawers is None:
        return snapshot
    return {**snapshot, **plain(execution, {RECORDED: execution.drawers.recorded()})}


def plain(execution: Execution, values: dict[str, Json]) -> dict[str, Json]:
    """Values as the ledger will give them back: what runs now and what runs after a resume must see the same.

    What holds references came from the ledger and is so already.
    """
    try:
        return {name: value if has_refs(value) else normalise(value) for name, value in values.items()}
    except ValueRefused as error:
        raise OutputBroken(execution.path, [str(error)]) from error


async def _template_input(execution: Execution, snapshot: dict[str, Json]) -> Json:
    """The input of the template that a graph runs, or the first round of a loop, in its declared types."""
    context, template = execution.context, execution.node.template or ""
    return await check_output(context, execution.path, context.scope(template).input_schema, snapshot)


async def _chosen(execution: Execution, switch: SwitchBlock, env: Mapping[str, Json]) -> Json:
    seconds = execution.node.timeout_seconds
    found = await execution.context.evaluate({"switch.value": switch.value}, env, seconds=seconds)
    return switch.decide(plain(execution, found)["switch.value"])


async def _block(execution: Execution, snapshot: dict[str, Json]) -> Json:
    """Run the node's block. Each bounds itself by `timeoutSeconds`: waiting for a slot or a process is not its time."""
    node = execution.node
    if node.transform is not None:
        return await run_transform(execution, node.transform, snapshot)
    if node.code is not None:
        return await run_code(execution, node.code, snapshot)
    if node.tool is not None:
        return await run_tool(execution, node.tool, snapshot)
    if node.agent is not None:
        return await run_agent(execution, node.agent, snapshot)
    if node.llm is not None:
        return await run_llm(execution, node.llm, snapshot)
    raise OutputBroken(execution.path, [f"node kind {node.kind} has no block"])


async def _checked(execution: Execution, value: Json) -> Json:
    return await check_output(execution.context, execution.path, execution.node.output, value)


async def check_output(context: RunContext, path: str, schema: Schema, value: Json) -> Json:
    """`value` in its declared types. Raises `OutputBroken` when it breaks `schema`, `ValueTooLarge` beyond limits."""
    if type(value) is dict and any(map(has_refs, value.values())):
        value = WideDict(value)
    try:
        normal = await context.checked(schema, value)
    except OutputMismatch as error:
        raise OutputBroken(path, error.problems) from error
    except ValueRefused as error:
        raise OutputBroken(path, [str(error)]) from error
    except ValueTooWide as error:
        raise ValueTooLarge(path, "output", str(error)) from error
    if has_refs(normal) and (fault := wide.size_fault(normal)):
        raise ValueTooLarge(path, "output", fault)
    return normal


async def written(execution: Execution, env: Mapping[str, Json], output: Json) -> dict[str, Json]:
    """The node's channel values: expressions over its scope and `output`."""
    if not execution.node.writes:
        return {}
    values = await execution.context.evaluate(execution.node.writes, {**env, "output": output})
    return plain(execution, values)


async def writes_result(execution: Execution, env: Mapping[str, Json], output: Json) -> NodeResult:
    """The `writes` of a map or graph whose output is known; a commit of its own, whose delta is that output."""
    try:
        return NodeResult("ok", output=output, writes=await written(execution, env, output))
    except WorkError as error:
        return _told(execution, NodeResult("failed", failure=failure_from(execution.path, error)))
    except ExpressionFailed as error:
        return _told(execution, NodeResult("failed", failure=expression_failure(execution.path, error)))

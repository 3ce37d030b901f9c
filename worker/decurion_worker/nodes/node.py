"""Executing one node: `when`, `with`, the block, the check of its output, `writes`. All of it on a runner, in one go.

Nothing in here commits anything: a `NodeResult` is what a record will say. Every try starts from the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from decurion_crds.canonical import Json
from decurion_crds.compiled import Schema
from decurion_crds.expressions import ExpressionFailed
from decurion_crds.values import OutputMismatch, ValueRefused, normalise
from decurion_worker.context import Execution, RunContext
from decurion_worker.errors import ExpressionFailure, OutputBroken, WorkError
from decurion_worker.failure import Failure
from decurion_worker.nodes.code import run_code
from decurion_worker.nodes.llm import run_llm
from decurion_worker.nodes.map import open_map
from decurion_worker.nodes.transform import run_transform


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What came of one node. `input` is its snapshot (None when it never got one); `opened` is a map's opening."""

    status: Literal["ok", "skipped", "failed", "opened"]
    input: dict[str, Json] | None = None
    output: Json = None
    writes: dict[str, Json] = field(default_factory=dict)
    failure: Failure | None = None


async def execute(execution: Execution, env: Mapping[str, Json], *, skip: bool = False) -> NodeResult:
    """Run a node against the environment `env` of its scope. Failures are results, not exceptions."""
    snapshot: dict[str, Json] | None = None
    try:
        if skip or not await _wanted(execution, env):
            return await _skipped(execution, env)
        snapshot = await _snapshot(execution, env)
        if execution.node.map is not None:
            opened = await open_map(execution, execution.node.map, env, snapshot)
            return NodeResult("opened", input=snapshot, output=opened)
        output = _checked(execution, await _block(execution, snapshot))
        writes = await written(execution, env, output)
        return NodeResult("ok", input=snapshot, output=output, writes=writes)
    except WorkError as error:
        return NodeResult("failed", input=snapshot, failure=failure_from(execution.path, error))
    except ExpressionFailed as error:
        wrapped = ExpressionFailure(execution.path, error.name, error.message)
        return NodeResult("failed", input=snapshot, failure=failure_from(execution.path, wrapped))


def failure_from(path: str, error: WorkError) -> Failure:
    return Failure(path=path, klass=error.klass, code=error.code, message=str(error))


async def _wanted(execution: Execution, env: Mapping[str, Json]) -> bool:
    when = execution.node.when
    if when is None:
        return True
    return bool((await execution.context.evaluator.expressions({"when": when}, env))["when"])


async def _skipped(execution: Execution, env: Mapping[str, Json]) -> NodeResult:
    otherwise = execution.node.otherwise
    if otherwise is None:
        return NodeResult("skipped")
    values = await execution.context.evaluator.expressions(otherwise, env)
    value = values["$value"] if set(otherwise) == {"$value"} else values
    return NodeResult("skipped", output=_checked(execution, value))


async def _snapshot(execution: Execution, env: Mapping[str, Json]) -> dict[str, Json]:
    with_ = execution.node.with_
    if not with_:
        return {}
    return _plain(execution, await execution.context.evaluator.expressions(with_, env))


def _plain(execution: Execution, values: dict[str, Json]) -> dict[str, Json]:
    """Values as the ledger will give them back: what runs now and what runs after a resume must see the same."""
    try:
        return {name: normalise(value) for name, value in values.items()}
    except ValueRefused as error:
        raise OutputBroken(execution.path, [str(error)]) from error


async def _block(execution: Execution, snapshot: dict[str, Json]) -> Json:
    """Run the node's block. Each bounds itself by `timeoutSeconds`: waiting for a slot or a process is not its time."""
    node = execution.node
    if node.transform is not None:
        return await run_transform(execution, node.transform, snapshot)
    if node.code is not None:
        return await run_code(execution, node.code, snapshot)
    if node.llm is not None:
        return await run_llm(execution, node.llm, snapshot)
    raise OutputBroken(execution.path, [f"node kind {node.kind} has no block"])


def _checked(execution: Execution, value: Json) -> Json:
    return check_output(execution.context, execution.path, execution.node.output, value)


def check_output(context: RunContext, path: str, schema: Schema, value: Json) -> Json:
    """`value` in its declared types. Raises `OutputBroken` when it breaks `schema`."""
    try:
        normal = normalise(value, schema)
        context.validator(schema).check(normal)
    except OutputMismatch as error:
        raise OutputBroken(path, error.problems) from error
    except ValueRefused as error:
        raise OutputBroken(path, [str(error)]) from error
    return normal


async def written(execution: Execution, env: Mapping[str, Json], output: Json) -> dict[str, Json]:
    """The node's channel values: expressions over its scope and `output`."""
    if not execution.node.writes:
        return {}
    values = await execution.context.evaluator.expressions(execution.node.writes, {**env, "output": output})
    return _plain(execution, values)

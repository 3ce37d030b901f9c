"""Executing one node: `when`, `with`, the block, the check of its output, `writes`. All of it on a runner, in one go.

Nothing in here commits anything: a `NodeResult` is what a record will say. Every try starts from the snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from decurion_crds.canonical import Json
from decurion_crds.compiled import Node, Schema
from decurion_crds.expressions import ExpressionFailed
from decurion_crds.values import OutputMismatch, ValueRefused, normalise
from decurion_worker.context import Execution, RunContext
from decurion_worker.engine.scopes import Failure
from decurion_worker.errors import ExpressionFailure, OutputBroken, TimedOut, WorkError
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
        wrapped = ExpressionFailure(execution.path, error.name, str(error))
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
    return await execution.context.evaluator.expressions(with_, env)


async def _block(execution: Execution, snapshot: dict[str, Json]) -> Json:
    node = execution.node
    try:
        async with asyncio.timeout(_limit(node)):
            if node.transform is not None:
                return await run_transform(execution, node.transform, snapshot)
            if node.code is not None:
                return await run_code(execution, node.code, snapshot)
            if node.llm is not None:
                return await run_llm(execution, node.llm, snapshot)
    except TimeoutError:
        raise TimedOut(execution.path, node.timeout_seconds) from None
    raise OutputBroken(execution.path, [f"node kind {node.kind} has no block"])


def _limit(node: Node) -> float:
    """Wall-clock bound of a node, in seconds. A model call is bounded by itself; retries and repairs come on top."""
    tries = (node.retry.transient + 1) * (node.retry.repair + 1) if node.llm is not None else 1
    return node.timeout_seconds * tries + 60.0


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
    return await execution.context.evaluator.expressions(execution.node.writes, {**env, "output": output})

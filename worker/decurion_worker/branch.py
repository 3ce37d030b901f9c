"""A leaf branch, run whole on one runner: its nodes in order, side by side where the order allows, then its output.

Pipelined: a node starts as soon as its predecessors' deltas are checked, not when they are durable. What was committed
of the branch before is taken as it is; nothing of it runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from decurion_crds.canonical import Json
from decurion_crds.compiled import Node, Scope
from decurion_crds.expressions import ExpressionFailed
from decurion_ledger import Record
from decurion_worker.context import Execution, RunContext
from decurion_worker.engine.environment import environment
from decurion_worker.errors import ExpressionFailure, OutputBroken
from decurion_worker.failure import Failure
from decurion_worker.link import WorkItem
from decurion_worker.nodes import NodeResult, execute
from decurion_worker.nodes.node import check_output, failure_from
from decurion_worker.records import attempt_records, build, node_record

Emit = Callable[[Record, bool], Awaitable[None]]
"""Hands one record to the link; the flag marks the last of the item. Waits while the branch's window is full."""


@dataclass(slots=True)
class _Progress:
    outputs: dict[str, Json]
    cores: dict[str, str]
    skipped: set[str]
    writes: dict[str, dict[str, Json]]
    failures: dict[str, Failure]


class Branch:
    """One branch under one lease."""

    def __init__(self, context: RunContext, item: WorkItem, *, worker: str, emit: Emit) -> None:
        self._context = context
        self._item = item
        self._scope: Scope = context.scope(item.template)
        self._input = item.env["input"]
        self._emit = emit
        self._envelope = {"lease": item.lease, "worker": worker}
        self._worker = worker
        done = item.done
        self._now = _Progress(
            outputs={name: d.output for name, d in done.items() if d.failure is None},
            cores={name: d.core_hash for name, d in done.items()},
            skipped={name for name, d in done.items() if d.status == "skipped"},
            writes={},
            failures={name: d.failure for name, d in done.items() if d.failure is not None},
        )
        for name, d in done.items():
            for channel, value in d.writes:
                self._now.writes.setdefault(channel, {})[name] = value

    async def run(self) -> None:
        """Run what is left of the branch and emit its records, the branch's own output last."""
        await self._run_nodes()
        failures = self._now.failures
        first = next((failures[n.name] for n in self._scope.nodes if n.name in failures), None)
        await self._emit(await self._end(first), True)

    async def _run_nodes(self) -> None:
        done = set(self._item.done)
        left = {n.name: sum(a not in done for a in n.after) for n in self._scope.nodes if n.name not in done}
        ready = [self._scope.by_name[name] for name in self._scope.order if left.get(name) == 0]
        running: dict[asyncio.Task[bool], Node] = {}
        try:
            while (ready and not self._now.failures) or running:
                if len(ready) == 1 and not running:
                    node = ready.pop()
                    ended = [(node, await self._node(node))]
                else:
                    while ready and not self._now.failures:
                        node = ready.pop(0)
                        running[asyncio.create_task(self._node(node))] = node
                    finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    ended = [(running.pop(task), task.result()) for task in finished]
                for node, ok in ended:
                    if ok:
                        ready.extend(self._released(node, left))
        finally:
            for task in running:
                task.cancel()

    def _released(self, node: Node, left: dict[str, int]) -> list[Node]:
        released = []
        for name in self._scope.order:
            if name in left and node.name in self._scope.by_name[name].after:
                left[name] -= 1
                if left[name] == 0:
                    released.append(self._scope.by_name[name])
        return released

    async def _node(self, node: Node) -> bool:
        execution = Execution(self._context, f"{self._item.scope}/{node.name}", node)
        skip = bool(node.control) and all(name in self._now.skipped for name in node.control)
        result = await execute(execution, self._environment(node.reads), skip=skip)
        for record in attempt_records(execution, lease=self._item.lease, worker=self._worker):
            await self._emit(record, False)
        record = await node_record(execution, result, parents=self._parents(node), envelope=self._envelope)
        self._absorb(node.name, result, record.core_hash)
        await self._emit(record, False)
        return result.failure is None

    def _absorb(self, name: str, result: NodeResult, core_hash: str) -> None:
        self._now.cores[name] = core_hash
        if result.failure is not None:
            self._now.failures[name] = result.failure
            return
        self._now.outputs[name] = result.output
        if result.status == "skipped":
            self._now.skipped.add(name)
        for channel, value in result.writes.items():
            self._now.writes.setdefault(channel, {})[name] = value

    def _environment(self, reads: tuple[str, ...]) -> dict[str, Json]:
        return environment(
            self._scope,
            input=self._input,
            outputs=self._now.outputs,
            writes=self._now.writes,
            facts=self._context.facts,
            reads=reads,
        )

    def _parents(self, node: Node) -> list[tuple[str, str]]:
        found = [(f"{self._item.scope}/{n}", self._now.cores[n]) for n in node.parents if n in self._now.cores]
        return sorted(found) or list(self._item.parents)

    async def _end(self, failure: Failure | None) -> Record:
        if failure is not None:
            return await scope_output_record(
                self._context,
                self._item,
                self._scope,
                value=None,
                failure=failure,
                parents=self._item.parents,
                input=self._input,
                envelope=self._envelope,
            )
        reads = tuple(sorted({read for expr in self._scope.output.values() for read in expr.reads}))
        names = {read.split(".")[1] for read in reads if read.startswith("nodes.")}
        parents = sorted((f"{self._item.scope}/{n}", self._now.cores[n]) for n in names if n in self._now.cores)
        return await evaluate_output(
            self._context,
            self._item,
            self._scope,
            env=self._environment(reads),
            parents=parents or self._item.parents,
            input=self._input,
            envelope=self._envelope,
        )


async def evaluate_output(
    context: RunContext,
    item: WorkItem,
    scope: Scope,
    *,
    env: dict[str, Json],
    parents: list[tuple[str, str]] | tuple[tuple[str, str], ...],
    input: Json,
    envelope: dict[str, Json],
) -> Record:
    """The record of a scope's output: its expressions over the scope, checked against its schema."""
    value: Json = None
    failure: Failure | None = None
    path = f"{item.scope or '/'}!output"
    try:
        values = await context.evaluator.expressions(scope.output, env)
        value = values["$value"] if set(scope.output) == {"$value"} else values
        value = check_output(context, path, scope.output_schema, value)
    except ExpressionFailed as error:
        failure = failure_from(path, ExpressionFailure(path, error.name, error.message))
    except OutputBroken as error:
        failure = failure_from(path, error)
    return await scope_output_record(
        context, item, scope, value=value, failure=failure, parents=parents, input=input, envelope=envelope
    )


async def scope_output_record(
    context: RunContext,
    item: WorkItem,
    scope: Scope,
    *,
    value: Json,
    failure: Failure | None,
    parents: list[tuple[str, str]] | tuple[tuple[str, str], ...],
    input: Json,
    envelope: dict[str, Json],
) -> Record:
    return await build(
        context.values,
        context.run,
        type="commit",
        path=f"{item.scope or '/'}!output",
        node=scope.digest,
        parents=parents,
        input=input,
        value=value,
        failure=failure,
        schema=context.schema_hash(scope.output_schema),
        envelope=envelope,
    )

"""A leaf scope, run whole on one runner: its nodes in order, side by side where the order allows, then its output.

Pipelined: a node starts as soon as its predecessors' deltas are checked, not when they are durable. What was committed
of the scope before is taken as it is; nothing of it runs again. A graph inside runs here too, in a scope of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from decurion_crds.canonical import Json
from decurion_crds.compiled import Node, Scope
from decurion_ledger import Record
from decurion_worker.calls import with_calls
from decurion_worker.context import Execution, RunContext, executing
from decurion_worker.engine.causes import still_due
from decurion_worker.engine.environment import environment
from decurion_worker.engine.files import leaf_layers
from decurion_worker.errors import TimedOut
from decurion_worker.failure import Failure
from decurion_worker.files import files_in
from decurion_worker.journal import Journal
from decurion_worker.leaf_loop import LeafLoop, LoopEnd
from decurion_worker.link import Done
from decurion_worker.nodes import NodeResult, execute
from decurion_worker.nodes.node import failure_from, instead_of, writes_result
from decurion_worker.records import Built, Parents, attempt_records, build, node_record
from decurion_worker.scope_ends import scope_files, scope_output
from decurion_worker.time_left import opening_time, time_left


def leaf_scope(context: RunContext, template: str, **more: Any) -> LeafScope:
    """The scope of a template, which is leaf."""
    return LeafScope(context, context.scope(template), template=template, **more)


@dataclass(slots=True)
class _Progress:
    outputs: dict[str, Json]
    ends: dict[str, tuple[str, str]]
    """The record that ended each node: its path and core hash."""
    skipped: set[str]
    writes: dict[str, dict[str, Json]]
    failures: dict[str, Failure]
    files: dict[str, Json]
    """The versions of the files that nodes left."""


class _Ended(NamedTuple):
    """The record that ended a node: its path and core hash, and what came of the node."""

    where: str
    core: str
    failure: Failure | None
    output: Json
    writes: Mapping[str, Json]
    files: Json = None


def _end_mark(node: Node) -> str:
    """The mark of the record that ends what a node opened."""
    return "!join" if node.loop is not None else "!output"


class LeafScope:
    """One instance of a leaf scope. `start` is what its first nodes depend on, `done` what is committed of it, `files`
    the version of the files that it begins with.
    """

    def __init__(
        self,
        context: RunContext,
        scope: Scope,
        *,
        path: str,
        input: Json,
        start: Parents,
        done: Mapping[str, Done],
        envelope: Mapping[str, Json],
        emit: Callable[[Record], Awaitable[None]],
        journal: Journal,
        template: str = "",
        files: Json = None,
    ) -> None:
        self._template = template
        self._files = files
        self._context = context
        self._scope = scope
        self._path = path
        self._input = input
        self._start = tuple(start)
        self._done = done
        self._envelope = dict(envelope)
        self._emit = emit
        self._journal = journal
        self._now = _Progress({}, {}, set(), {}, {}, {})
        self.failure: Failure | None = None
        """Why the scope failed, once `run` has returned."""

    async def run(self) -> Built:
        """Run what is left and emit its records; the scope's own end is returned and not emitted."""
        self._input = await self._context.values.near(self._input)
        await self._run_nodes()
        failures = self._now.failures
        first = next((failures[n.name] for n in self._scope.nodes if n.name in failures), None)
        return await self._end(first)

    async def fail(self, failure: Failure) -> Built:
        """The end of a scope that was stopped from outside."""
        return await self._end(failure)

    # ------------------------------------------------------------------ order

    async def _run_nodes(self) -> None:
        done = {name for name in self._scope.by_name if self._taken_over(self._scope.by_name[name])}
        left = {n.name: sum(a not in done for a in n.after) for n in self._scope.nodes if n.name not in done}
        ready = [self._scope.by_name[name] for name in self._scope.order if left.get(name) == 0]
        running: dict[asyncio.Task[bool], Node] = {}
        try:
            while (ready := self._startable(ready)) or running:
                if len(ready) == 1 and not running:
                    node = ready.pop()
                    ended = [(node, await self._node(node))]
                else:
                    while ready:
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

    def _startable(self, ready: list[Node]) -> list[Node]:
        """Of what is ready all, but after a failure only what might be the cause in its place."""
        if not self._now.failures:
            return ready
        due = still_due(self._scope, failed=self._now.failures, ended=self._now.ends)
        return [node for node in ready if node.name in due]

    def _released(self, node: Node, left: dict[str, int]) -> list[Node]:
        released = []
        for name in self._scope.followers[node.name]:
            if name in left:
                left[name] -= 1
                if left[name] == 0:
                    released.append(self._scope.by_name[name])
        return released

    # ------------------------------------------------------------------ nodes

    def _taken_over(self, node: Node) -> bool:
        """Take what is committed of a node as it is; False when something of it is left to do."""
        where = f"{self._path}/{node.name}"
        for mark in ("!otherwise", ""):
            one = self._done.get(f"{node.name}{mark}")
            if one is None:
                continue
            if not mark and node.template is not None and one.failure is not None and node.on_failure == "otherwise":
                return False  # its `writes` failed: what stands for it is still due
            files = one.files
            if not mark and node.template is not None and (end := self._done.get(f"{node.name}{_end_mark(node)}")):
                files = end.files  # this record holds the `writes` only
            ended = _Ended(f"{where}{mark}", one.core_hash, one.failure, one.output, dict(one.writes), files)
            self._absorb(node, ended, skipped=one.status == "skipped", instead=one.instead, final=bool(mark))
            return True
        mark = _end_mark(node)
        end = self._done.get(f"{node.name}{mark}")
        if end is None or node.template is None or (end.failure is None and node.writes):
            return False
        if end.failure is not None and node.on_failure == "otherwise":
            return False
        self._absorb(node, _Ended(f"{where}{mark}", end.core_hash, end.failure, end.output, {}, end.files))
        return True

    async def _node(self, node: Node) -> bool:
        path = f"{self._path}/{node.name}"
        execution = executing(self._context, path, node, self._journal, template=self._template)
        if node.workspace is not None:
            execution.files = self._seen_files(node.name)
        with_calls(
            execution,
            parents=self._parents(node),
            done={f"#{rest}": one for rest, one in self._done_below(f"{node.name}#").items()},
            make=self._scope_in,
            emit=self._emit,
            envelope=self._envelope,
        )
        env = self._environment(node.reads)
        if f"{node.name}!open" in self._done:
            return await self._inside(execution, env, self._done[f"{node.name}!open"])
        skip = self._scope.passes_over(node, skipped=self._now.skipped, outputs=self._now.outputs)
        result = await execute(execution, env, skip=skip)
        await self._emit_attempts(execution)
        begun = opening_time(node, self._context.now()) if result.status == "opened" else {}
        envelope = {**self._envelope, **begun}
        built = await node_record(execution, result, parents=self._parents(node), envelope=envelope)
        await self._emit(built.record)
        files = files_in(built.record.envelope)
        if result.status == "opened":
            opened = Done("ok", built.value, built.record.core_hash, files=files, at=begun.get("at"))
            return await self._inside(execution, env, opened)
        ended = _Ended(execution.path, built.record.core_hash, result.failure, built.value, built.writes, files)
        return self._absorb(node, ended, skipped=result.status == "skipped", instead=result.instead)

    async def _inside(self, execution: Execution, env: Mapping[str, Json], opened: Done) -> bool:
        """The graph or the loop of a node, whose opening is `opened`, then what follows from its end."""
        end = self._done.get(f"{execution.node.name}{_end_mark(execution.node)}")
        if end is not None:
            return await self._after(execution, env, end.output, end.failure, end.core_hash, end.files)
        run = self._loop if execution.node.loop is not None else self._graph
        built, failure = await run(execution, env, opened)
        await self._emit(built.record)
        left = files_in(built.record.envelope)
        return await self._after(execution, env, built.value, failure, built.record.core_hash, left)

    async def _graph(self, execution: Execution, env: Mapping[str, Json], opened: Done) -> LoopEnd:
        """The end of the graph of a node, in a scope of its own."""
        path = execution.path
        done = self._done_below(f"{execution.node.name}/")
        template = execution.node.template or ""
        start = ((f"{path}!open", opened.core_hash),)
        inner = self._scope_in(template, path=path, input=opened.output, start=start, done=done, files=opened.files)
        built = await self._within(execution, inner, left=self._left(execution, opened))
        return LoopEnd(built, inner.failure)

    async def _loop(self, execution: Execution, env: Mapping[str, Json], opened: Done) -> LoopEnd:
        name = execution.node.name
        loop = LeafLoop(
            execution,
            env,
            opening=opened.output,
            core=opened.core_hash,
            done={f"@{rest}": one for rest, one in self._done_below(f"{name}@").items()},
            make=partial(self._scope_in, execution.node.template or ""),
            emit=self._emit,
            envelope=self._envelope,
            left=self._left(execution, opened),
            files=opened.files,
        )
        return await loop.run()

    def _left(self, execution: Execution, opened: Done) -> float | None:
        return time_left(execution.node, opened.at, self._context.now())

    def _done_below(self, prefix: str) -> dict[str, Done]:
        return {name[len(prefix) :]: one for name, one in self._done.items() if name.startswith(prefix)}

    def _scope_in(
        self,
        template: str,
        *,
        path: str,
        input: Json,
        start: Parents,
        done: Mapping[str, Done],
        files: Json = None,
    ) -> LeafScope:
        """A scope inside this one: that of a graph, of one round of a loop, or of a call of an agent."""
        return leaf_scope(
            self._context,
            template,
            path=path,
            input=input,
            start=start,
            done=done,
            envelope=self._envelope,
            emit=self._emit,
            journal=self._journal,
            files=files,
        )

    async def _within(self, execution: Execution, inner: LeafScope, *, left: float | None) -> Built:
        """The end of a graph, in the time that is left of what it has."""
        seconds = execution.node.timeout_seconds
        try:
            async with asyncio.timeout(left):
                return await inner.run()
        except TimeoutError:
            return await inner.fail(failure_from(execution.path, TimedOut(execution.path, seconds)))

    async def _after(
        self,
        execution: Execution,
        env: Mapping[str, Json],
        output: Json,
        failure: Failure | None,
        core: str,
        files: Json,
    ) -> bool:
        """The `writes` of a graph or loop that ended, and the `otherwise` of one that failed, itself or in these."""
        node, path = execution.node, execution.path
        ended = _Ended(f"{path}{_end_mark(node)}", core, failure, output, {}, files)
        if failure is None and node.writes:
            ended = await self._written(execution, env, ended)
        if ended.failure is None or node.on_failure != "otherwise":
            return self._absorb(node, ended)
        result = await instead_of(execution, env, NodeResult("failed", failure=ended.failure))
        if result.instead:
            result = NodeResult("ok", output=result.output)
        parents = ((ended.where, ended.core),)
        built = await node_record(execution, result, parents=parents, envelope=self._envelope, mark="!otherwise")
        await self._emit(built.record)
        ended = _Ended(built.record.path, built.record.core_hash, result.failure, built.value, {})
        return self._absorb(node, ended, final=True)

    async def _written(self, execution: Execution, env: Mapping[str, Json], ended: _Ended) -> _Ended:
        """The `writes` of a graph or loop, or what is committed of them."""
        one = self._done.get(execution.node.name)
        if one is not None:
            return _Ended(execution.path, one.core_hash, one.failure, ended.output, dict(one.writes), ended.files)
        result = await writes_result(execution, env, ended.output)
        parents = ((ended.where, ended.core),)
        built = await node_record(execution, result, parents=parents, envelope=self._envelope)
        await self._emit(built.record)
        core = built.record.core_hash
        return _Ended(execution.path, core, result.failure, ended.output, built.writes, ended.files)

    def _absorb(
        self, node: Node, ended: _Ended, *, skipped: bool = False, instead: bool = False, final: bool = False
    ) -> bool:
        """Take in how a node ended; whether what comes after it may run.

        `instead`: its output is that of its `otherwise`. `final`: its `onFailure` was heeded already.
        """
        output = ended.output
        self._now.ends[node.name] = (ended.where, ended.core)
        if ended.failure is not None:
            if node.on_failure == "skip" and not final:
                skipped, output = True, None
            elif not instead:
                self._now.failures[node.name] = ended.failure
                return False
        self._now.outputs[node.name] = output
        if ended.failure is None and not skipped and ended.files is not None and node.name in self._scope.writers:
            self._now.files[node.name] = ended.files
        if skipped:
            self._now.skipped.add(node.name)
        for channel, value in ended.writes.items():
            self._now.writes.setdefault(channel, {})[node.name] = value
        return True

    async def _emit_attempts(self, execution: Execution) -> None:
        lease, worker = self._envelope["lease"], self._envelope["worker"]
        for record in attempt_records(execution, lease=lease, worker=worker):
            await self._emit(record)

    def _environment(self, reads: tuple[str, ...]) -> dict[str, Json]:
        return environment(
            self._scope,
            input=self._input,
            outputs=self._now.outputs,
            writes=self._now.writes,
            facts=self._context.facts,
            reads=reads,
        )

    def _seen_files(self, name: str | None) -> Json:
        """What is told of the files that a node sees, or that the scope leaves."""
        return {"base": self._files, "layers": leaf_layers(self._scope, name, self._now.files)}

    def _parents(self, node: Node) -> Parents:
        return self._ends(node.parents)

    def _ends(self, names: tuple[str, ...] | set[str]) -> Parents:
        return sorted(self._now.ends[name] for name in names if name in self._now.ends) or self._start

    # ------------------------------------------------------------------ the end

    async def _end(self, failure: Failure | None) -> Built:
        value: Json = None
        parents: Parents = self._start
        if failure is None:
            reads = tuple(sorted({read for expr in self._scope.output.values() for read in expr.reads}))
            parents = self._ends({read.split(".")[1] for read in reads if read.startswith("nodes.")})
            context = self._context.view(self._scope.sealed_output)
            value, failure = await scope_output(context, self._scope, self._path, self._environment(reads))
        files = None
        if failure is None:
            files, failure = await scope_files(self._context, self._scope, self._path, self._seen_files(None))
        self.failure = failure
        values = self._context.values
        return await build(
            values.sealing(self._scope.sealed_output),
            self._context.run,
            type="commit",
            path=f"{self._path}!output",
            node=self._scope.digest,
            parents=parents,
            input=self._input,
            value=value,
            failure=failure,
            schema=self._context.schema_hash(self._scope.output_schema),
            envelope=self._envelope,
            files=files,
            inputs=values.sealing(self._scope.sealed_input),
        )

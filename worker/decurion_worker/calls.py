"""Scopes below the calls of an agent: a graph that is a tool runs at the path of its call.

The call `/find#turn-0003.02` has `/find#turn-0003.02!open` with the graph's input, the records of its nodes below
`/find#turn-0003.02/`, and `/find#turn-0003.02!output`. What is committed of it is taken as it is. A graph that is leaf
runs on the agent's runner; any other is opened here, handed out by the driver, and its end is among what is committed
when the agent goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from decurion_crds.canonical import Json
from decurion_crds.compiled import AgentTool
from decurion_ledger import Record
from decurion_worker.context import CallsOpen, Execution
from decurion_worker.failure import Failure
from decurion_worker.link import Done
from decurion_worker.records import Built, Parents, build

END = "!output"


class CallScope(Protocol):
    """A leaf scope. `failure` says why it failed, once `run` has returned its end."""

    failure: Failure | None

    async def run(self) -> Built: ...


class CallEnd(NamedTuple):
    """What came of a call: the graph's output, wide lists by reference, or why there is none."""

    value: Json
    failure: Failure | None


class ScopeCalls:
    """The calls of one agent that are graphs. `parents` is what the agent's node depends on, `done` what is committed
    below its calls, by path from the node: `#turn-0003.02/read`. `make` makes the scope of a template.
    """

    def __init__(
        self,
        execution: Execution,
        *,
        parents: Parents,
        done: Mapping[str, Done],
        make: Callable[..., CallScope],
        emit: Callable[[Record], Awaitable[None]],
        envelope: Mapping[str, Json],
    ) -> None:
        self._execution = execution
        self._parents = parents
        self._done = done
        self._make = make
        self._emit = emit
        self._envelope = dict(envelope)
        self._ends = {f"{execution.path}{name}": one.core_hash for name, one in done.items() if _is_end(name)}

    def ends(self) -> Iterator[tuple[str, str]]:
        """The records that ended calls, with their hashes."""
        yield from self._ends.items()

    async def run(self, tool: AgentTool, path: str, given: Json) -> CallEnd:
        """What the graph gives for the input `given`, which is in its declared types. Raises `CallsOpen`."""
        template = tool.graph or ""
        mark = self._mark(path)
        ended = self._done.get(f"{mark}{END}")
        if ended is not None:
            return CallEnd(ended.output, ended.failure)
        value, core = await self._opened(tool, path, given)
        if not self._execution.context.scope(template).leaf:
            raise CallsOpen
        inside = f"{mark}/"
        done = {name[len(inside) :]: one for name, one in self._done.items() if name.startswith(inside)}
        scope = self._make(template, path=path, input=value, start=((f"{path}!open", core),), done=done)
        built = await scope.run()
        await self._emit(built.record)
        self._ends[built.record.path] = built.record.core_hash
        return CallEnd(built.value, scope.failure)

    async def _opened(self, tool: AgentTool, path: str, given: Json) -> tuple[Json, str]:
        """The input of the call and the hash of the record that holds it."""
        one = self._done.get(f"{self._mark(path)}!open")
        if one is not None:
            return one.output, one.core_hash
        context = self._execution.context
        built = await build(
            context.values,
            context.run,
            type="scope_opened",
            path=f"{path}!open",
            node=self._execution.node.digest,
            parents=self._parents,
            input=None,
            value=given,
            schema=context.schema_hash(context.scope(tool.graph or "").input_schema),
            envelope=self._envelope,
            extra={"tool": tool.name},
        )
        await self._emit(built.record)
        return built.value, built.record.core_hash

    def _mark(self, path: str) -> str:
        return path[len(self._execution.path) :]


def _is_end(name: str) -> bool:
    return name.endswith(END) and "/" not in name


def with_calls(execution: Execution, **more: Any) -> Execution:
    """`execution`, and where its node is an agent with graphs as tools, what these run in: see `ScopeCalls`."""
    if execution.node.graph_tools:
        execution.calls = ScopeCalls(execution, **more)
    return execution

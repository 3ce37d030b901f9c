"""Nodes of kind `agent`: the agent by name or as written, and its tools under the names that its model is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from decurion_crds.compile.report import Report, Spot
from decurion_crds.compile.tools import TEXT, Tool, find_tool, typed_by
from decurion_crds.compiled import AgentCall, AgentTool, Argument, Limits, Schema, Text, ToolCall
from decurion_crds.errors import SchemaRefused
from decurion_crds.expressions.shapes import settled
from decurion_crds.schemas import expand_schema
from decurion_crds.v1alpha1.agent import Agent, AgentSpec
from decurion_crds.v1alpha1.agent import AgentTool as GivenTool
from decurion_crds.v1alpha1.base import Resource
from decurion_crds.v1alpha1.mcpserver import MCPServer
from decurion_crds.v1alpha1.taskgraph import AgentBlock

if TYPE_CHECKING:
    from decurion_crds.compile.draft import Use

FINISH = "finish"
"""The tool by which an agent finishes."""
STEPS = 50
MAX_NAME = 64
_NOWHERE: Mapping[str, Spot] = {}
_OTHER = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class GraphTool:
    """A graph, a template or another agent that is a tool."""

    use: Use

    @property
    def owner(self) -> str:
        return self.use.shown


@dataclass(frozen=True, slots=True)
class Given:
    """An entry of an agent's tools at its place. `tool` is the graph, template or agent, where it is one.

    `apart`: an Agent lists it, and `spot` is where that is named.
    """

    entry: GivenTool
    spot: Spot
    tool: GraphTool | None
    apart: bool


Tools: TypeAlias = Mapping[str, Tool | GraphTool]
"""The tools of an agent by the names that its model is given."""
ToolScope: TypeAlias = "Callable[[Use], tuple[str, str]]"
"""Name in the compiled graph, and description, of the scope of a use."""
FindUse: TypeAlias = "Callable[[GivenTool, Spot], Use | None]"
"""The scope of a graph or template that is named as a tool at a spot; None where there is none, which is told."""


@dataclass(frozen=True, slots=True)
class AgentDraft:
    """An agent: its own spec or that of an Agent, and its tools by the names that its model is given.

    `spec` is None where there is no Agent of the name, which is told elsewhere. `refs` are kind, name and place of the
    resources that it names; `apart` says that an Agent names them, whatever the names of the graph stand for.
    """

    spec: AgentSpec | None
    tools: Tools
    refs: tuple[tuple[str, str, Spot], ...] = ()
    steps: int = STEPS
    apart: bool = False
    given: tuple[Given, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def servers(self) -> frozenset[str]:
        """The servers of its tools, as they are named."""
        return frozenset(given.entry.server for given in self.given if given.entry.server is not None)

    def uses(self) -> Iterator[Use]:
        """The scopes that run as tools."""
        for tool in self.tools.values():
            if isinstance(tool, GraphTool):
                yield tool.use

    def without(self, use: Use) -> AgentDraft:
        """The agent without the tool of a use that was refused."""
        kept = {n: tool for n, tool in self.tools.items() if not (isinstance(tool, GraphTool) and tool.use is use)}
        return replace(self, tools=kept)

    def calls(self, server: str) -> frozenset[str]:
        """The tools of a server that it may call, as the server names them."""
        return frozenset(t.name for t in self.tools.values() if isinstance(t, Tool) and t.server == server)

    def under(self, env: Mapping[str, str], servers: Mapping[str, Resource]) -> AgentDraft:
        """The agent where names stand for other servers, of which it is known that their tools fit."""
        if self.apart or not any(ref in env for ref in self.servers()):
            return self
        return replace(self, tools=server_tools(self.given, servers, Report(None), env=env))

    def compiled(self, prompt: Text | None, model: str, scope: ToolScope, limits: Limits | None) -> AgentCall | None:
        if self.spec is None or prompt is None:
            return None
        rest = (limits or Limits()).model_copy(update={"steps": None})
        return AgentCall(
            model=model,
            instructions=self.spec.instructions or "",
            prompt=prompt,
            tools=tuple(_compiled(name, tool, scope) for name, tool in self.tools.items()),
            steps=min(self.steps, (limits or Limits()).steps or self.steps),
            limits=None if rest == Limits() else rest,
            parameters=dict(self.parameters),
        )


def _compiled(name: str, tool: Tool | GraphTool, scope: ToolScope) -> AgentTool:
    if isinstance(tool, GraphTool):
        graph, description = scope(tool.use)
        return AgentTool.model_validate({"name": name, "description": description, "graph": graph})
    call = ToolCall(
        server=tool.server,
        name=tool.name,
        arguments=Argument(),
        input=tool.input,
        output=TEXT if tool.output is None else tool.output,
        repeatable=tool.repeatable,
        concurrency=tool.concurrency,
    )
    return AgentTool.model_validate(
        {"name": name, "description": tool.description, "call": call, "timeoutSeconds": tool.seconds}
    )


def agent_spec(block: AgentBlock, agents: Mapping[str, Resource]) -> AgentSpec | None:
    """What the agent of a node is: as the Agent of its name says, or as it is written; None where there is none."""
    if block.ref is None:
        # What is written in a node may name templates of its graph, which an Agent may not.
        return AgentSpec.model_construct(
            model=block.model or "", instructions=block.instructions, tools=block.tools, output=None, limits=None
        )
    found = agents.get(block.ref)
    return found.spec if isinstance(found, Agent) else None


def resolve_agent(
    block: AgentBlock,
    spot: Spot,
    agents: Mapping[str, Resource],
    servers: Mapping[str, Resource],
    report: Report,
    *,
    first: Mapping[str, str],
    find: FindUse,
) -> AgentDraft:
    """The agent of a node. What is refused is in the report; that a resource does not exist is told elsewhere.

    The tools of a need without a resource of its name are those of what it stands for `first`.
    """
    spec = agent_spec(block, agents)
    refs = tuple(_refs(block, spec, spot))
    apart = block.ref is not None
    if spec is None:
        return AgentDraft(None, {}, refs, apart=apart)
    listed: list[Given] = []
    for i, entry in enumerate(spec.tools):
        place = spot.below("ref") if apart else spot.below("tools").at(i)
        use = find(entry, place) if entry.server is None else None
        if entry.server is not None or use is not None:
            listed.append(Given(entry, place, GraphTool(use) if use is not None else None, apart))
    given = tuple(listed)
    env = {} if apart else {one: typed_by(one, servers, first) for one in first}
    tools = server_tools(given, servers, report, env=env)
    limits = block.limits or spec.limits
    steps = limits.steps if limits is not None and limits.steps is not None else STEPS
    return AgentDraft(spec, tools, refs, steps, apart, given, block.parameters)


def server_tools(
    given: Sequence[Given],
    servers: Mapping[str, Resource],
    report: Report,
    *,
    env: Mapping[str, str],
    places: Mapping[str, Spot] = _NOWHERE,
) -> dict[str, Tool | GraphTool]:
    """The tools of an agent by name, where names of servers stand for others as `env` says, as is written at `places`.

    What is refused is in the report.
    """
    tools: dict[str, Tool | GraphTool] = {}
    for one in given:
        entry = one.entry
        if one.tool is not None:
            name = entry.as_ or (entry.graph or entry.template or entry.agent or "").replace("-", "_")
            _add(tools, name, one.tool, one.spot, report)
        if entry.server is None:
            continue
        ref = env.get(entry.server, entry.server)
        server = servers.get(ref)
        if not isinstance(server, MCPServer):
            continue
        bound = places.get(entry.server)
        for j, name in enumerate(entry.allow if entry.allow is not None else [tool.name for tool in server.spec.tools]):
            written = not one.apart and entry.allow is not None and bound is None
            at = one.spot.below("allow").at(j) if written else bound or one.spot
            tool = find_tool(ref, server, name, at, report, written=written)
            if tool is not None:
                alias = f"{entry.as_}_{name}" if entry.as_ else name
                _add(tools, _OTHER.sub("_", alias)[:MAX_NAME], tool, bound or one.spot, report)
    return tools


def _add(tools: dict[str, Tool | GraphTool], name: str, tool: Tool | GraphTool, spot: Spot, report: Report) -> None:
    if name == FINISH or name in tools:
        other = "how an agent ends" if name == FINISH else f"{tools[name].owner} too"
        remedy = "allow one of them" if isinstance(tool, Tool) else "name one of them"
        message = f"{name}, {tool.owner}, is {other}; tell them apart by as, or {remedy}"
        report.add("DUPLICATE-NAME", spot, message)
        return
    tools[name] = tool


def _refs(block: AgentBlock, spec: AgentSpec | None, spot: Spot) -> Iterator[tuple[str, str, Spot]]:
    if block.ref is not None:
        yield "Agent", block.ref, spot.below("ref")
    if spec is None:
        return
    yield "LLM", spec.model, spot.below("ref" if block.ref is not None else "model")
    for i, tool in enumerate(spec.tools):
        if tool.agent is not None:
            place = spot.below("ref") if block.ref is not None else spot.below("tools").at(i).below("agent")
            yield "Agent", tool.agent, place
        if tool.server is None:
            continue
        place = spot.below("ref") if block.ref is not None else spot.below("tools").at(i).below("server")
        yield "MCPServer", tool.server, place


def given_output(ref: str, spec: AgentSpec | None, spot: Spot, report: Report) -> Schema | None:
    """What the Agent `ref` says that it gives; None where it says nothing."""
    if spec is None or spec.output is None:
        return None
    try:
        return dict(settled(expand_schema(spec.output)))
    except SchemaRefused as refused:
        report.add("SCHEMA", spot, f"the output of the Agent {ref} is no schema ({refused}); correct it there")
        return None

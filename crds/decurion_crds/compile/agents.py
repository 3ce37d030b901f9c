"""Nodes of kind `agent`: the agent by name or as written, and its tools under the names that its model is given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from decurion_crds.compile.report import Report, Spot
from decurion_crds.compile.tools import TEXT, Tool, find_tool
from decurion_crds.compiled import AgentCall, AgentTool, Argument, Schema, Text, ToolCall
from decurion_crds.errors import SchemaRefused
from decurion_crds.expressions.shapes import settled
from decurion_crds.schemas import expand_schema
from decurion_crds.v1alpha1.agent import Agent, AgentSpec
from decurion_crds.v1alpha1.base import Resource
from decurion_crds.v1alpha1.mcpserver import MCPServer
from decurion_crds.v1alpha1.taskgraph import AgentBlock

FINISH = "finish"
"""The tool by which an agent finishes."""
STEPS = 50
MAX_NAME = 64
_OTHER = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class AgentDraft:
    """An agent: its own spec or that of an Agent, and its tools by the names that its model is given.

    `spec` is None where there is no Agent of the name, which is told elsewhere. `refs` are kind, name and place of the
    resources that it names.
    """

    spec: AgentSpec | None
    tools: Mapping[str, Tool]
    refs: tuple[tuple[str, str, Spot], ...] = ()
    steps: int = STEPS

    def compiled(self, prompt: Text | None, model: str) -> AgentCall | None:
        if self.spec is None or prompt is None:
            return None
        return AgentCall(
            model=model,
            instructions=self.spec.instructions or "",
            prompt=prompt,
            tools=tuple(_compiled(name, tool) for name, tool in self.tools.items()),
            steps=self.steps,
        )


def _compiled(name: str, tool: Tool) -> AgentTool:
    call = ToolCall(
        server=tool.server,
        name=tool.name,
        arguments=Argument(),
        input=tool.input,
        output=TEXT if tool.output is None else tool.output,
        repeatable=tool.repeatable,
    )
    return AgentTool.model_validate(
        {"name": name, "description": tool.description, "call": call, "timeoutSeconds": tool.seconds}
    )


def agent_spec(block: AgentBlock, agents: Mapping[str, Resource]) -> AgentSpec | None:
    """What the agent of a node is: as the Agent of its name says, or as it is written; None where there is none."""
    if block.ref is None:
        return AgentSpec.model_validate(
            {
                "model": block.model,
                "instructions": block.instructions,
                "tools": [tool.to_json() for tool in block.tools],
            }
        )
    found = agents.get(block.ref)
    return found.spec if isinstance(found, Agent) else None


def resolve_agent(
    block: AgentBlock, spot: Spot, agents: Mapping[str, Resource], servers: Mapping[str, Resource], report: Report
) -> AgentDraft:
    """The agent of a node. What is refused is in the report; that a resource does not exist is told elsewhere."""
    spec = agent_spec(block, agents)
    refs = tuple(_refs(block, spec, spot))
    if spec is None:
        return AgentDraft(None, {}, refs)
    tools: dict[str, Tool] = {}
    for i, given in enumerate(spec.tools):
        place = spot.below("ref") if block.ref is not None else spot.below("tools").at(i)
        ref = given.server or ""
        server = servers.get(ref)
        if not isinstance(server, MCPServer):
            continue
        names = given.allow if given.allow is not None else [tool.name for tool in server.spec.tools]
        for j, name in enumerate(names):
            written = block.ref is None and given.allow is not None
            at = place.below("allow").at(j) if written else place
            tool = find_tool(ref, server, name, at, report, written=written)
            if tool is not None:
                _add(tools, tool, given.as_, place, report)
    limits = block.limits or spec.limits
    return AgentDraft(spec, tools, refs, limits.steps if limits is not None and limits.steps is not None else STEPS)


def _add(tools: dict[str, Tool], tool: Tool, alias: str | None, spot: Spot, report: Report) -> None:
    name = _OTHER.sub("_", f"{alias}_{tool.name}" if alias else tool.name)[:MAX_NAME]
    if name == FINISH or name in tools:
        other = "how an agent ends" if name == FINISH else f"a tool of {tools[name].server} too"
        message = f"{name}, a tool of {tool.server}, is {other}; tell them apart by as, or allow one of them"
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
        place = spot.below("ref") if block.ref is not None else spot.below("tools").at(i).below("server")
        yield "MCPServer", tool.server or "", place


def given_output(ref: str, spec: AgentSpec | None, spot: Spot, report: Report) -> Schema | None:
    """What the Agent `ref` says that it gives; None where it says nothing."""
    if spec is None or spec.output is None:
        return None
    try:
        return dict(settled(expand_schema(spec.output)))
    except SchemaRefused as refused:
        report.add("SCHEMA", spot, f"the output of the Agent {ref} is no schema ({refused}); correct it there")
        return None

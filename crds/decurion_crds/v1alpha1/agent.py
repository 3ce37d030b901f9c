"""`Agent`: a model with instructions and tools, which works in turns until it finishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from decurion_crds.v1alpha1.base import (
    Conditions,
    Identifier,
    Model,
    Resource,
    ResourceName,
    Rule,
    Schema,
    Text,
    atomic,
    one_of,
)
from decurion_crds.v1alpha1.context import Context
from decurion_crds.v1alpha1.limits import AgentLimits
from decurion_crds.v1alpha1.mcpserver import ToolName
from decurion_crds.v1alpha1.needs import Bindings

TOOL_ALIAS = r"^[a-zA-Z0-9_-]{1,32}$"
"""What may stand before the names of tools as a model is given them."""


class AgentTool(Model):
    """Tools that an agent may call: those of a server, a graph, or another agent. One of server, graph, template and
    agent.
    """

    server: ResourceName | None = Field(None, description="Name of the MCPServer whose tools these are.")
    graph: ResourceName | None = Field(
        None, description="Name of the TaskGraph that is a tool: its input are the arguments, its output the result."
    )
    template: Identifier | None = Field(
        None, description="A template of the graph that is a tool; for an agent that is written in a node."
    )
    agent: ResourceName | None = Field(
        None, description="Name of the Agent that is a tool: the argument is its prompt, what it gives the result."
    )
    as_: str | None = Field(
        None,
        pattern=TOOL_ALIAS,
        max_length=32,
        description="Without server, the name of the tool; absent, that of the graph, template or agent. With server, "
        "what stands before the name of each of its tools, with _ between; absent, nothing does.",
    )
    allow: Annotated[list[ToolName], atomic(max_length=128)] | None = Field(
        None, description="With server: names of the tools; absent, all that the MCPServer lists."
    )
    bind: Bindings = Field(
        default_factory=dict,
        description="With graph: what its needs stand for, name in needs → name of a resource.",
    )

    rules = (
        one_of("server", "graph", "template", "agent"),
        Rule(
            cel="!has(self.allow) || has(self.server)",
            message="allow names tools of a server; remove it",
            check=lambda tool: tool.server is not None or tool.allow is None,
        ),
        Rule(
            cel="!has(self.bind) || has(self.graph)",
            message="bind says what the needs of a graph stand for; remove it, or name the resource itself",
            check=lambda tool: tool.graph is not None or not tool.bind,
        ),
    )


class AgentSpec(Model):
    """A model with instructions and tools."""

    model: ResourceName = Field(description="Name of the LLM.")
    description: Text | None = Field(
        None, description="What the agent is for: what a model is told that has it as a tool."
    )
    instructions: Text | None = Field(None, description="What the agent is told before any prompt.")
    tools: Annotated[list[AgentTool], atomic(max_length=32)] = Field(
        default_factory=list, description="What the agent may call."
    )
    output: Schema | None = Field(
        None,
        description="What the agent gives where a node says nothing: a JSON Schema (2020-12, see docs), or name → "
        "schema. Default {text: string}.",
    )
    limits: AgentLimits | None = Field(None, description="How much the agent may do.")
    context: Context | None = Field(
        None, description="What its model sees beside the prompt, where a node does not say."
    )

    rules = (
        Rule(
            cel="!has(self.tools) || self.tools.all(t, !has(t.template))",
            message="an Agent is in no graph whose templates it could name; name a TaskGraph by graph",
            check=lambda spec: all(tool.template is None for tool in spec.tools),
        ),
    )
    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}
    later: ClassVar[Mapping[str, str]] = {
        "finish": "declare the output",
    }


class AgentStatus(Model):
    """What the operator knows of the agent."""

    observed_generation: int | None = Field(None, description="Generation of the spec that the status was made from.")
    conditions: Conditions = Field(default_factory=list, description="Ready: the spec is valid and what it names is.")


class Agent(Resource):
    """A model with instructions and tools, which works in turns until it finishes."""

    kind: Literal["Agent"] = Field(description="Kind of the resource.")
    spec: AgentSpec = Field(description="The agent.")
    status: AgentStatus | None = Field(None, description="What the operator knows of the agent.")

    plural: ClassVar[str] = "agents"
    short_name: ClassVar[str] = "tga"
    columns = (
        ("Model", ".spec.model"),
        ("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        ("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    )

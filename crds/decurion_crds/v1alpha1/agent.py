"""`Agent`: a model with instructions and tools, which works in turns until it finishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from decurion_crds.v1alpha1.base import (
    Conditions,
    Model,
    Resource,
    ResourceName,
    Rule,
    Schema,
    Text,
    atomic,
)
from decurion_crds.v1alpha1.mcpserver import ToolName

TOOL_ALIAS = r"^[a-zA-Z0-9_-]{1,32}$"
"""What may stand before the names of tools as a model is given them."""


class AgentTool(Model):
    """Tools that an agent may call."""

    server: ResourceName | None = Field(None, description="Name of the MCPServer whose tools these are; required.")
    as_: str | None = Field(
        None,
        pattern=TOOL_ALIAS,
        max_length=32,
        description="What stands before the name of each of these tools, with _ between; absent, nothing does.",
    )
    allow: Annotated[list[ToolName], atomic(max_length=128)] | None = Field(
        None, description="Names of the tools; absent, all that the MCPServer lists."
    )

    rules = (
        Rule(
            cel="has(self.server)",
            message="server is missing; name the MCPServer whose tools the agent may call",
            check=lambda tool: tool.server is not None,
            code="FIELD-MISSING",
        ),
    )
    later: ClassVar[Mapping[str, str]] = {
        "graph": "run the graph by a graph node before the agent, and hand its output on by with",
        "agent": "write the other agent as a node of its own",
        "bind": "name the MCPServer itself",
    }


class AgentLimits(Model):
    """How much an agent may do."""

    steps: int | None = Field(
        None, ge=1, le=1_000, description="Most turns; one more is then given to finish. Default 50."
    )

    later: ClassVar[Mapping[str, str]] = {
        "tokens": "set steps",
        "costUSD": "set steps",
        "seconds": "set timeoutSeconds of the node",
        "toolCalls": "set steps",
    }


class AgentSpec(Model):
    """A model with instructions and tools."""

    model: ResourceName = Field(description="Name of the LLM.")
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

    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}
    later: ClassVar[Mapping[str, str]] = {
        "context": "pass what the agent needs by with and the prompt",
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

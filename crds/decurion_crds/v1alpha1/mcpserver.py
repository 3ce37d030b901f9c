"""`MCPServer`: a tool server that nodes call by the Model Context Protocol, and what may be done with its tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from decurion_crds.findings import quoted
from decurion_crds.v1alpha1.base import (
    MAX_DESCRIPTION,
    Auth,
    Conditions,
    Model,
    Resource,
    Rule,
    Schema,
    SecretKeyRef,
    named,
    one_of,
)

TOOL_NAME = r"^[A-Za-z0-9_][-._/A-Za-z0-9]{0,127}$"
"""Names of tools as their servers know them."""
OWN_HEADERS = frozenset({"accept", "authorization", "connection", "content-length", "content-type", "host"})
"""Headers that the transport sets; `authorization` is that of `auth`, where there is one."""

_TOOL = re.compile(TOOL_NAME)


def _tool_name(name: str) -> str:
    if not _TOOL.fullmatch(name):
        text = (
            f"{quoted(name)} is no name of a tool: it has at most 128 letters, digits, _ - . and /, and starts with a "
            "letter, a digit or _; write it as the server lists it"
        )
        raise PydanticCustomError("name", "{text}", {"text": text, "code": "NAME"})
    return name


ToolName = Annotated[str, AfterValidator(_tool_name), Field(json_schema_extra={"pattern": TOOL_NAME, "maxLength": 128})]


class HeaderSource(Model):
    """Where the value of a header is."""

    secret_key_ref: SecretKeyRef = Field(
        description="The Secret entry that is sent as it is; it never enters the ledger or a status."
    )


class Header(Model):
    """One header of every request. One of value and valueFrom."""

    name: str = Field(
        min_length=1, max_length=256, pattern=r"^[-_.A-Za-z0-9]+$", description="Name of the header, such as X-Tenant."
    )
    value: str | None = Field(
        None, max_length=4096, pattern=r"^[ -~]*$", description="Its value, for what is no secret."
    )
    value_from: HeaderSource | None = Field(None, description="Where its value is, for a secret.")

    rules = (one_of("value", "valueFrom"),)


class ToolPolicy(Model):
    """What may be done with a tool. Absent, a call of it is an effect that is never made twice."""

    read_only: bool = Field(
        False,
        description="Whether a call changes nothing, so that it may be repeated. Default false.",
    )
    idempotent: bool = Field(
        False,
        description="Whether a repeated call with the same idempotency key changes nothing more, so that it may be "
        "repeated after a failure. Default false.",
    )
    timeout_seconds: float | None = Field(
        None, gt=0, le=86_400, description="Longest time of one call, in seconds. Default that of the server."
    )
    concurrency: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Most calls of it in flight at a time, for each driver, whose runners have even shares. Absent, "
        "there is no limit.",
    )

    later: ClassVar[Mapping[str, str]] = {
        "cacheable": "remove it; a committed call is not made again",
        "approval": "remove the tool, or make the decision a node before it",
        "identityKey": "remove it; repeated calls are told by name and arguments",
        "polling": "remove it",
        "dependsOn": "remove it; calls of one turn run side by side",
    }


class ServerTool(Model):
    """One tool of the server: its schemas, as the compiler needs them, and its policy."""

    name: ToolName = Field(description="Name of the tool, as the server lists it.")
    description: str | None = Field(
        None, max_length=MAX_DESCRIPTION, description="What the tool does, for the models that may call it."
    )
    input: Schema | None = Field(
        None,
        description="What the tool takes: a JSON Schema of an object (2020-12, see docs), or name → schema. Absent, "
        "any object.",
    )
    output: Schema | None = Field(
        None,
        description="What the tool gives: a JSON Schema (2020-12, see docs), or name → schema. Absent, a text.",
    )
    policy: ToolPolicy | None = Field(None, description="What may be done with the tool.")


class MCPServerSpec(Model):
    """A tool server: where it is, how it is spoken to, and its tools."""

    url: str = Field(
        max_length=2048,
        pattern=r"^https?://[^\s]+$",
        description="Address of the server's streamable HTTP endpoint, such as https://tools.example.com/mcp.",
    )
    auth: Auth | None = Field(None, description="The bearer token for the server; absent, none is sent.")
    headers: Annotated[list[Header], named(max_length=32)] = Field(
        default_factory=list, description="Headers of every request."
    )
    timeout_seconds: float | None = Field(
        None, gt=0, le=86_400, description="Longest time of one call, in seconds. Default 30."
    )
    tools: Annotated[list[ServerTool], named(min_length=1, max_length=128)] = Field(
        description="The tools that graphs may call; others of the server are not called."
    )

    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}
    rules = (
        Rule(
            cel="!has(self.headers) || self.headers.all(h, !(h.name.lowerAscii() in ["
            + ", ".join(f"'{name}'" for name in sorted(OWN_HEADERS - {"authorization"}))
            + "]))",
            message="headers name one that the transport sets itself; remove it",
            check=lambda spec: not any(h.name.lower() in OWN_HEADERS - {"authorization"} for h in spec.headers),
        ),
        Rule(
            cel="!has(self.auth) || !has(self.headers) || self.headers.all(h, h.name.lowerAscii() != 'authorization')",
            message="auth is the header Authorization, and headers name it too; remove one of them",
            check=lambda spec: spec.auth is None or not any(h.name.lower() == "authorization" for h in spec.headers),
            code="ONE-OF",
        ),
    )
    later: ClassVar[Mapping[str, str]] = {
        "command": "run the server where it has an address, and write that to url",
        "discover": "list the tools that graphs may call under tools",
    }


class MCPServerStatus(Model):
    """What the operator knows of the server."""

    observed_generation: int | None = Field(None, description="Generation of the spec that the status was made from.")
    conditions: Conditions = Field(
        default_factory=list, description="Ready: the spec is valid and its Secrets can be used."
    )


class MCPServer(Resource):
    """A tool server that nodes call: its address, headers and tools."""

    kind: Literal["MCPServer"] = Field(description="Kind of the resource.")
    spec: MCPServerSpec = Field(description="The server.")
    status: MCPServerStatus | None = Field(None, description="What the operator knows of the server.")

    plural: ClassVar[str] = "mcpservers"
    short_name: ClassVar[str] = "tgs"
    columns = (
        ("URL", ".spec.url"),
        ("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        ("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    )

"""`LLM`: a model that nodes call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from decurion_crds.v1alpha1.base import (
    Auth,
    Conditions,
    Free,
    FreeObject,
    Model,
    Resource,
    ResourceName,
    Rule,
    Text,
    atomic,
)
from decurion_crds.v1alpha1.limits import Count, Price


class LLMLimits(Model):
    """What the model's server bears."""

    concurrency: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Most calls in flight at a time, for each driver, whose runners have even shares.",
    )
    requests_per_minute: Count | None = Field(
        None,
        description="Most calls in a minute, further tries included, for each driver, whose runners have even shares. "
        "Absent, there is no limit.",
    )
    tokens_per_minute: Count | None = Field(
        None,
        description="Most tokens in a minute, sent and received, for each driver, whose runners have even shares. "
        "Absent, there is no limit.",
    )


ScriptedError = Literal["ModelRefused", "ModelTimeout", "ModelUnavailable", "OutputTruncated", "RateLimited"]


class ScriptedCall(Model):
    """A call of a tool that a scripted model asks for."""

    tool: str = Field(min_length=1, max_length=128, description="Name of the tool, as the model is given it.")
    arguments: FreeObject = Field(default_factory=dict, description="Arguments of the call.")


class ScriptedReply(Model):
    """What a scripted model answers to the prompts that it matches."""

    match: Text | None = Field(
        None,
        description="A text that must occur in the last message of the user, or in what tools gave since then; "
        "between slashes, as /^Q: /, a regular "
        "expression that is searched in it. Absent, every prompt matches.",
    )
    reply: Free = Field(None, description="The answer: a text, or any other value, which is sent as JSON.")
    calls: Annotated[list[ScriptedCall], atomic(max_length=32)] = Field(
        default_factory=list, description="Calls of tools that the answer asks for; for agents."
    )
    delay_seconds: float = Field(0.0, ge=0, le=86_400, description="Seconds to wait before answering.")
    error: ScriptedError | None = Field(
        None,
        description="Fail in this way instead of answering; OutputTruncated answers as if stopped at the token limit.",
    )
    times: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="How often the entry answers one and the same call before it is passed over; absent, always.",
    )


class Scripted(Model):
    """A model without a model: fixed answers, for tests and for looking at a graph."""

    replies: Annotated[list[ScriptedReply], atomic(max_length=256)] = Field(
        default_factory=list, description="Tried in order; the first that matches answers."
    )
    default: Free = Field(None, description="Answer when none matches; absent, such a call fails.")


class LLMSpec(Model):
    """A model: its protocol, its place, and how it is called."""

    protocol: Literal["openai", "scripted"] = Field(
        description="How the model is spoken to: openai is any endpoint compatible with OpenAI's chat completions; "
        "scripted answers from this resource."
    )
    model: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Name of the model as its endpoint knows it; for openai.",
    )
    endpoint: str | None = Field(
        None,
        max_length=2048,
        pattern=r"^https?://[^\s]+$",
        description="Base URL of the API, such as https://api.example.com/v1; for openai.",
    )
    auth: Auth | None = Field(None, description="The token for the endpoint; absent, none is sent.")
    structured_output: Literal["native", "prompt"] = Field(
        "native",
        description="How an answer is made to fit the node's output: native by the endpoint's JSON-schema mode, "
        "prompt by "
        "asking for it in the prompt. The answer is validated in both. Default native.",
    )
    parameters: FreeObject = Field(
        default_factory=dict,
        description="Parameters of every call, sent as they are, such as temperature; a node's own are laid over them.",
    )
    limits: LLMLimits | None = Field(None, description="What the model's server bears.")
    price: Price | None = Field(None, description="What the model costs: limits.costUSD needs it.")
    fallback: ResourceName | None = Field(
        None,
        description="Name of another LLM of the namespace, which is asked when this one cannot answer: its server is "
        "away, overloaded, too slow, or allows no more, and further tries did not help.",
    )
    scripted: Scripted | None = Field(None, description="The answers, for the protocol scripted.")

    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}
    rules = (
        Rule(
            cel="self.protocol != 'openai' || (has(self.model) && has(self.endpoint))",
            message="protocol openai needs model and endpoint; add what is missing",
            check=lambda spec: spec.protocol != "openai" or (spec.model is not None and spec.endpoint is not None),
            code="FIELD-MISSING",
        ),
        Rule(
            cel="(self.protocol == 'scripted') == has(self.scripted)",
            message="scripted must be set for protocol scripted, and only then; add it, remove it, or change protocol",
            check=lambda spec: (spec.protocol == "scripted") == (spec.scripted is not None),
            code="ONE-OF",
        ),
    )
    later: ClassVar[Mapping[str, str]] = {
        "contextWindow": "remove it",
        "route": "name one model",
    }


class LLMStatus(Model):
    """What the operator knows of the model."""

    observed_generation: int | None = Field(None, description="Generation of the spec that the status was made from.")
    conditions: Conditions = Field(
        default_factory=list, description="Ready: the spec is valid and its Secret can be used."
    )


class LLM(Resource):
    """A model that nodes call: its protocol, endpoint, token and parameters."""

    kind: Literal["LLM"] = Field(description="Kind of the resource.")
    spec: LLMSpec = Field(description="The model.")
    status: LLMStatus | None = Field(None, description="What the operator knows of the model.")

    plural: ClassVar[str] = "llms"
    short_name: ClassVar[str] = "tgm"
    columns = (
        ("Protocol", ".spec.protocol"),
        ("Model", ".spec.model"),
        ("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        ("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    )
    wide_columns = (("Endpoint", ".spec.endpoint"),)

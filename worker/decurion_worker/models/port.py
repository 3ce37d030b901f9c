"""The model port: one question, one answer. Design 04, "Model port"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from decurion_crds.compiled import Schema

FinishReason = Literal["stop", "length", "refusal", "content_filter"]
"""Why an answer ended: by itself (with calls or without), at the token limit, declined by the model, or withheld by
the server.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool that a model asks for. `arguments` is JSON as the model wrote it, right or wrong.

    `id` names the call in a conversation. It is given by whoever keeps that: servers repeat theirs.
    """

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool that a model may call. `name` has up to 64 letters, digits, _ and -."""

    name: str
    description: str
    input: Schema


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `calls` are those of an assistant; a message of a tool answers the call `call_id`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call.

    `schema` is what the answer must match; a free text is due when it is None or `{text: string}`. `parameters` go to
    the server as they are. `deadline_seconds` bounds the call as a whole. `idempotency_key` is ASCII, the same for
    every try of one call, and for no other call. With `tools` the model may call these.
    """

    messages: tuple[Message, ...]
    schema: Schema | None
    parameters: dict[str, Any]
    deadline_seconds: float
    idempotency_key: str
    tools: tuple[ToolDefinition, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counted them; 0 where it counted none."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """One answer as it came: `text` and the arguments of `calls` are not parsed. `provider_id` is the server's own name
    of the call.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    provider_id: str | None = None
    calls: tuple[Call, ...] = ()


class ChatModel(Protocol):
    """A model that answers. Safe for any number of concurrent callers on one event loop."""

    async def chat(self, request: ChatRequest) -> ChatResponse:
        """Ask once, without any retry. Raises `Transient` or `Terminal`."""

    async def aclose(self) -> None:
        """Close all connections. Calls in flight fail with `ModelUnavailable`."""

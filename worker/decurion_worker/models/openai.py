"""Protocol `openai`: chat completions, as OpenAI, Azure, vLLM, Ollama, llama.cpp, OpenRouter and others speak them.

Source: https://platform.openai.com/docs/api-reference/chat. Nothing of a request or an answer is logged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from decurion_crds.canonical import Json
from decurion_worker.errors import ModelMisconfigured, ModelRefused, ModelTimeout, ModelUnavailable
from decurion_worker.models.port import Call, ChatRequest, ChatResponse, FinishReason, Message, Usage
from decurion_worker.models.status import failure_from, failure_of, quoted
from decurion_worker.models.structured import is_text, with_schema
from decurion_worker.models.transport import open_transport

OURS = frozenset(
    {"model", "messages", "response_format", "stream", "n", "tools", "tool_choice", "functions", "function_call"}
)
"""Parameters that decide the form of the answer, and so cannot be set."""

MAX_TOKENS = 2**32
"""Tokens beyond which a server's count is nonsense: sums of it must stay numbers that a ledger can hold."""

_FINISH: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
}


class OpenAIModel:
    """One endpoint with its own connections.

    Every call carries `Idempotency-Key`, and the bearer `token` where there is one. An answer's schema goes into
    `response_format` when `spec.structuredOutput` is `native` (the default), and into the prompt when it is `prompt`; a
    server that ignores it is found out by `parse_output`.
    """

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        *,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`token` is a valid header value. Raises `ModelMisconfigured` for an endpoint or parameters of no use."""
        self._name = name
        self._url = _url(name, spec)
        self._where = f"LLM {name} at {self._url.copy_with(query=None)}"
        self._model = spec.get("model")
        self._native = spec.get("structuredOutput", "native") == "native"
        self._parameters = dict(spec.get("parameters") or {})
        self._check(self._parameters)
        self._token = token
        self._transport = open_transport(self._url) if transport is None else transport
        self._headers = [
            (b"host", self._url.netloc),
            (b"accept", b"application/json"),
            (b"content-type", b"application/json"),
            (b"user-agent", b"decurion"),
        ]
        if token is not None:
            self._headers.append((b"authorization", b"Bearer " + token.encode("ascii")))

    async def chat(self, request: ChatRequest) -> ChatResponse:
        http = self._request(request)
        try:
            async with asyncio.timeout(request.deadline_seconds):
                response = await self._transport.handle_async_request(http)
                await response.aread()
        except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout):
            raise ModelTimeout(
                f"{self._where}: no whole answer within {request.deadline_seconds:g} s; "
                "raise the node's timeoutSeconds, or lower limits.concurrency of the LLM"
            ) from None
        except httpx.HTTPError as error:
            raise self._broken_off(error) from error
        if not response.is_success:
            raise failure_of(response, where=self._where, token=self._token)
        return self._answer(response)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _request(self, request: ChatRequest) -> httpx.Request:
        messages = request.messages
        body = {**self._parameters, **request.parameters, "model": self._model}
        if request.parameters:
            self._check(request.parameters)
        if request.schema is not None and not is_text(request.schema):
            if self._native:
                body["response_format"] = _response_format(request.schema)
            else:
                messages = with_schema(messages, request.schema)
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.input},
                }
                for tool in request.tools
            ]
        body["messages"] = [_message(m) for m in messages]
        content = orjson.dumps(body)
        headers = [
            *self._headers,
            (b"idempotency-key", request.idempotency_key.encode("ascii")),
            (b"content-length", b"%d" % len(content)),
        ]
        return httpx.Request("POST", self._url, headers=headers, content=content)

    def _check(self, parameters: Mapping[str, Any]) -> None:
        taken = sorted(OURS.intersection(parameters))
        if taken:
            raise ModelMisconfigured(
                f"LLM {self._name}: the parameter {taken[0]} is set by Decurion itself; remove it from parameters"
            )

    def _broken_off(self, error: httpx.HTTPError) -> ModelUnavailable | ModelRefused:
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            return ModelRefused(
                f"{self._where}: its certificate is not trusted ({error.__cause__.verify_message}); "
                "name the issuer's certificate by SSL_CERT_FILE, or correct spec.endpoint"
            )
        said = str(error) or type(error).__name__
        return ModelUnavailable(
            f"{self._where}: no answer ({said}); see that the server runs and spec.endpoint names it"
        )

    def _answer(self, response: httpx.Response) -> ChatResponse:
        try:
            body = orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise self._no_completion(f"no JSON: {error.msg}") from None
        if not isinstance(body, dict):
            raise self._no_completion("no JSON object")
        if body.get("error"):
            # Some gateways answer 200 and put the failure of the model behind them into the body.
            raise self._failure_inside(body["error"])
        try:
            choice = body["choices"][0]
            message = choice["message"]
            text, refusal = _text(message.get("content")), message.get("refusal")
            calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        except (LookupError, TypeError, AttributeError):
            raise self._no_completion("no message in it") from None
        finish = _FINISH.get(str(choice.get("finish_reason")), "stop")
        if refusal and not text:
            text, finish = str(refusal), "refusal"
        return ChatResponse(
            text=text,
            usage=_usage(body.get("usage")),
            finish_reason=finish,
            provider_id=_string(body.get("id")),
            calls=calls,
        )

    def _no_completion(self, why: str) -> ModelUnavailable:
        return ModelUnavailable(
            f"{self._where}: the answer is no chat completion ({why}); "
            "see that spec.endpoint names an OpenAI-compatible API"
        )

    def _failure_inside(self, error: Json) -> Exception:
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        return failure_from(status, quoted(error, self._token), where=self._where)


def _url(name: str, spec: Mapping[str, Any]) -> httpx.URL:
    written = spec.get("endpoint") or ""
    try:
        base = httpx.URL(written)
    except httpx.InvalidURL:
        base = httpx.URL()
    if base.scheme not in ("http", "https") or not base.host:
        raise ModelMisconfigured(
            f"LLM {name} spec.endpoint: {written!r} is no address; write one like https://api.example.com/v1"
        )
    if base.userinfo:
        raise ModelMisconfigured(
            f"LLM {name} spec.endpoint: it holds a user or password; "
            "put the token into a Secret and name that by spec.auth"
        )
    path, _, query = base.raw_path.partition(b"?")
    raw = path.rstrip(b"/") + b"/chat/completions" + (b"?" + query if query else b"")
    return base.copy_with(raw_path=raw, fragment=None)


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return told


def _call(call: Json) -> Call:
    """A call as it came. Some servers give arguments as an object instead of its text."""
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
    return Call(str(function["name"]), text or "{}")


def _text(content: Json) -> str:
    """The text of a message: a string, a list of parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _usage(usage: Json) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))


def _count(value: Json) -> int:
    """Tokens as a server counts them; 0 for what is no count of one answer."""
    return value if type(value) is int and 0 < value <= MAX_TOKENS else 0


def _string(value: Json) -> str | None:
    return value if isinstance(value, str) else None

"""Protocol `scripted`: a model without a model, whose answers stand in its `LLM` resource.

The same call gets the same answer, whichever process makes it and whatever else is in flight: an entry's `times` is
counted for each idempotency key by itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from decurion_crds.canonical import Json, canonical
from decurion_worker.errors import (
    ModelMisconfigured,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
    WorkError,
)
from decurion_worker.models.port import Call, ChatRequest, ChatResponse, Usage

FAILURES: Mapping[str, type[WorkError]] = {
    error.code: error for error in (RateLimited, ModelUnavailable, ModelTimeout, ModelRefused)
}
"""What an entry's `error` can name."""
CUT_OFF = "OutputTruncated"
"""An `error` of this name is no failure of the call: the reply comes, marked as stopped at the token limit."""
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class _Entry:
    index: int
    matches: Callable[[str], object]
    text: str
    delay: float
    error: str | None
    times: int | None
    calls: tuple[Call, ...] = ()


class ScriptedModel:
    """Answers from `replies`, tried in order against what came since the last answer, then with `default`: the last
    message of the user, or what tools gave.

    A `match` between slashes is a regular expression that is searched, any other one a text that must occur; without
    `match` the entry always matches. A reply that is no text is sent as JSON. Usage is counted as a fixed number of
    characters a token.
    """

    def __init__(
        self,
        name: str,
        script: Mapping[str, Json],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`script` is `spec.scripted`. Raises `ModelMisconfigured` for a bad expression or an unknown error."""
        self._name = name
        self._entries = [_entry(name, i, reply) for i, reply in enumerate(script.get("replies") or ())]
        default = script.get("default")
        self._default = None if default is None else _text(default)
        self._sleep = sleep
        self._used: dict[tuple[int, str], int] = {}

    async def chat(self, request: ChatRequest) -> ChatResponse:
        prompt = _prompt(request)
        entry = self._find(prompt, request.idempotency_key)
        if entry is None:
            if self._default is None:
                raise ModelRefused(
                    f"LLM {self._name}: no scripted reply matches the prompt {_start(prompt)}; "
                    "add one to scripted.replies, or set scripted.default"
                )
            return _response(request, self._default)
        if entry.delay > request.deadline_seconds:
            await self._sleep(request.deadline_seconds)
            raise ModelTimeout(
                f"LLM {self._name}: the scripted reply comes after {entry.delay:g} s, and the call had "
                f"{request.deadline_seconds:g} s; raise the node's timeoutSeconds"
            )
        if entry.delay:
            await self._sleep(entry.delay)
        if entry.error is not None and entry.error != CUT_OFF:
            raise FAILURES[entry.error](f"LLM {self._name}: {entry.text or 'this failure is scripted'}")
        return _response(request, entry.text, cut_off=entry.error == CUT_OFF, calls=entry.calls)

    async def aclose(self) -> None:
        self._used.clear()

    def _find(self, prompt: str, key: str) -> _Entry | None:
        for entry in self._entries:
            if not entry.matches(prompt):
                continue
            if entry.times is None:
                return entry
            used = self._used.get((entry.index, key), 0)
            if used < entry.times:
                self._used[entry.index, key] = used + 1
                return entry
        return None


def _entry(name: str, index: int, reply: Mapping[str, Any]) -> _Entry:
    error = reply.get("error")
    if error is not None and error not in FAILURES and error != CUT_OFF:
        known = ", ".join(sorted([*FAILURES, CUT_OFF]))
        raise ModelMisconfigured(
            f"LLM {name} spec.scripted.replies[{index}].error: {error!r} is not known; use one of {known}"
        )
    answer = reply.get("reply")
    return _Entry(
        index=index,
        matches=_matcher(name, index, reply.get("match")),
        text="" if answer is None and (error is not None or reply.get("calls")) else _text(answer),
        delay=float(reply.get("delaySeconds") or 0.0),
        error=error,
        times=reply.get("times"),
        calls=tuple(
            Call(call["tool"], canonical(call.get("arguments") or {}).decode()) for call in reply.get("calls") or ()
        ),
    )


def _matcher(name: str, index: int, match: str | None) -> Callable[[str], object]:
    if match is None:
        return lambda prompt: True
    if len(match) > 2 and match.startswith("/") and match.endswith("/"):
        try:
            return re.compile(match[1:-1], re.DOTALL).search
        except re.error as error:
            raise ModelMisconfigured(
                f"LLM {name} spec.scripted.replies[{index}].match: {match} is no regular expression ({error}); "
                "correct it, or leave the slashes away to search the text itself"
            ) from None
    return lambda prompt: match in prompt


def _text(reply: Json) -> str:
    return reply if isinstance(reply, str) else canonical(reply).decode()


def _prompt(request: ChatRequest) -> str:
    """What came since the last answer: what tools gave, then the last that the user said."""
    came = list(request.messages)
    answers = [i for i, message in enumerate(came) if message.role == "assistant"]
    since = came[answers[-1] + 1 :] if answers else came
    tools = [message.content for message in since if message.role == "tool"]
    users = [message.content for message in since if message.role == "user"]
    return "\n".join(tools + users[-1:])


def _response(request: ChatRequest, text: str, *, cut_off: bool = False, calls: tuple[Call, ...] = ()) -> ChatResponse:
    asked = sum(len(message.content) for message in request.messages)
    answered = len(text) + sum(len(call.name) + len(call.arguments) for call in calls)
    usage = Usage(input_tokens=_tokens(asked), output_tokens=_tokens(answered))
    return ChatResponse(text=text, usage=usage, finish_reason="length" if cut_off else "stop", calls=calls)


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def _start(prompt: str, limit: int = 80) -> str:
    line = " ".join(prompt.split())
    return repr(line if len(line) <= limit else line[:limit] + "…")

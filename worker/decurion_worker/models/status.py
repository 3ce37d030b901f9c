"""What an HTTP answer that is no success means for the attempt, and what to tell a person about it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx
import orjson

from decurion_crds.canonical import Json, canonical
from decurion_worker.errors import ModelRefused, ModelTimeout, ModelUnavailable, RateLimited, Transient, WorkError

MAX_SAID = 300
"""How many characters of the server's words a message quotes."""

_TRANSIENT: Mapping[int, type[Transient]] = {
    408: ModelTimeout,
    409: ModelUnavailable,
    425: ModelUnavailable,
    429: RateLimited,
    504: ModelTimeout,
}
_REMEDIES: Mapping[int, str] = {
    400: "correct what it names in llm.parameters, the prompt or the node's output",
    401: "check the token in the Secret that spec.auth names",
    402: "check the account behind the token",
    403: "check what the token in the Secret that spec.auth names may use",
    404: "check spec.model and spec.endpoint, below which /chat/completions is called",
    413: "shorten the prompt",
    422: "correct what it names in llm.parameters, the prompt or the node's output",
}


def failure_of(response: httpx.Response, *, where: str, token: str | None) -> WorkError:
    """The error that `response`, whose status is not 2xx and whose body is read, stands for.

    408, 409, 425, 429 and 5xx are `Transient` with the wait that the server asks for; the rest is `ModelRefused`. The
    message quotes the server, without `token` should the server repeat it.
    """
    body = _json_of(response)
    if response.has_redirect_location:
        body = f"to {response.headers['location']}"
    said = quoted(body if body is not None else response.text, token)
    return failure_from(response.status_code, said, where=where, retry_after=retry_after(response.headers))


def failure_from(status: int, said: str, *, where: str, retry_after: float | None = None) -> WorkError:
    told = f"{where}: the server answered {status}" + (f" ({said})" if said else "")
    transient = _TRANSIENT.get(status) or (ModelUnavailable if status >= 500 else None)
    if transient is RateLimited:
        return RateLimited(
            f"{told}; lower limits.requestsPerMinute or limits.concurrency of the LLM", retry_after=retry_after
        )
    if transient is not None:
        return transient(f"{told}; try again later, or see the server's log", retry_after=retry_after)
    if 300 <= status < 400:
        return ModelRefused(f"{told}; set spec.endpoint to where it redirects", status=status)
    return ModelRefused(f"{told}; {_REMEDIES.get(status, 'change the request as it says')}", status=status)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by `Retry-After` (RFC 9110, 10.2.3: seconds or a date), None without a usable one.

    A date is taken relative to the server's own `Date`, so that clocks need not agree.
    """
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        due = _timestamp(value)
        if due is None:
            return None
        seconds = due - (_timestamp(headers.get("date", "")) or time.time())
    return max(0.0, seconds) if seconds < float("inf") else None


def quoted(body: Json, token: str | None) -> str:
    """What the server says in an error body of any of the usual forms, on one line, cut, without `token`."""
    text = _message(body)
    if token:
        text = text.replace(token, "***")
    line = " ".join(text.split())
    return line if len(line) <= MAX_SAID else line[:MAX_SAID] + "…"


def _message(body: Json) -> str:
    if isinstance(body, str):
        return body
    if isinstance(body, dict):
        for name in ("error", "message", "detail"):
            if body.get(name):
                return _message(body[name])
    return "" if body is None else canonical(body).decode()


def _json_of(response: httpx.Response) -> Json:
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return None


def _timestamp(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None

"""An MCP server over streamable HTTP: one connection with one owner task, made anew when it is lost.

Only this module and `guard` import the MCP library. It keeps its cancel scopes in the task that opened a connection, so
that task also closes it; calls come from any task.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx2
import orjson
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, ConfigDict, ValidationError

from decurion_crds.canonical import Json
from decurion_worker.errors import (
    OutputTooLarge,
    RateLimited,
    ToolRefused,
    ToolResultInvalid,
    ToolTimeout,
    ToolUnavailable,
)
from decurion_worker.permits import Permit
from decurion_worker.tools.guard import KEY, MAX_BODY, open_http
from decurion_worker.tools.port import ToolAnswer

log = logging.getLogger(__name__)

IDEMPOTENCY_KEY = "decurion.dev/idempotencyKey"
"""The member of `_meta` that names a call: the same for every try of it."""


_FIRST = "its first request"
_HIDDEN = "***"
_MIN_SECRET = 8
"""Characters of a secret that is taken out of what a tool gives. A shorter one may be data by chance."""


class _Raw(BaseModel):
    """The result of a call as it came."""

    model_config = ConfigDict(extra="allow")


class _Lost(Exception):
    """The server does not know the session any more: it was redeployed. Nothing was carried out."""


class McpServer:
    """One server. `headers` go with every request; the `secrets` in them into no message, and into no answer that
    repeats them.
    """

    def __init__(
        self, name: str, url: str, headers: tuple[tuple[str, str], ...], *, secrets: tuple[str, ...] = ()
    ) -> None:
        self._name = name
        self._secrets = secrets
        self._url = url
        self._headers = headers
        self._where = f"MCPServer {name} at {url.partition('?')[0]}"
        self._connection: _Connection | None = None
        self._opening = asyncio.Lock()

    async def call(
        self, tool: str, arguments: dict[str, Json], *, seconds: float, key: str, permit: Permit | None = None
    ) -> ToolAnswer:
        """As `ToolCaller.call`."""
        sent = False
        try:
            async with asyncio.timeout(seconds):
                for _ in range(3):
                    connection = await self._connected()
                    if permit is not None and not permit.holds:
                        raise ToolUnavailable(f"{self._where}: connecting took longer than leave was given", sent=False)
                    sent = True
                    try:
                        return self._answer(tool, await connection.call(tool, arguments, key))
                    except _Lost:
                        sent = False
                        self._leave(connection)
                raise ToolUnavailable(f"{self._where}: it forgets its sessions; see its log", sent=False)
        except TimeoutError:
            raise ToolTimeout(
                f"{self._where}: no answer of the tool {tool} within {seconds:g} s; raise timeoutSeconds of the tool "
                "or of the node",
                sent=sent,
            ) from None

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _leave(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None
        connection.retire()

    async def _connected(self) -> _Connection:
        async with self._opening:
            if self._connection is None or self._connection.ended:
                connection = _Connection(self._where, self._url, self._headers, self._secrets)
                await connection.open()
                self._connection = connection
            return self._connection

    def _answer(self, tool: str, raw: dict[str, Any]) -> ToolAnswer:
        if raw.get("resultType") == "input_required":
            raise ToolRefused(
                f"{self._where}: the tool {tool} asks a person for input, which is not supported; name another"
            )
        raw = self._plain(tool, raw)
        try:
            result = CallToolResult.model_validate(raw, by_name=False)
        except ValidationError as error:
            raise ToolResultInvalid(
                f"{self._where}: what the tool {tool} gave is no result of a tool ({error.error_count()} faults); "
                "correct the server"
            ) from error
        text = "\n".join(part for part in map(_text, result.content) if part is not None)
        return ToolAnswer(text, result.structured_content, bool(result.is_error))

    def _plain(self, tool: str, raw: dict[str, Any]) -> dict[str, Any]:
        """What a tool gave as the ledger gives it back, without our secrets in it."""
        try:
            text = orjson.dumps(raw)
        except TypeError as error:
            raise ToolResultInvalid(
                f"{self._where}: what the tool {tool} gave is no JSON that can be kept ({error}); correct the server"
            ) from error
        if len(text) > MAX_BODY:
            raise OutputTooLarge(f"{self._where}, tool {tool}", MAX_BODY)
        for secret in self._secrets:
            if len(secret) >= _MIN_SECRET:
                text = text.replace(orjson.dumps(secret)[1:-1], _HIDDEN.encode())
        plain: dict[str, Any] = orjson.loads(text)
        return plain


def _text(part: Any) -> str | None:
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, EmbeddedResource) and isinstance(part.resource, TextResourceContents):
        return part.resource.text
    return None


class _Connection:
    """A connection and the task that owns it."""

    def __init__(self, where: str, url: str, headers: tuple[tuple[str, str], ...], secrets: tuple[str, ...]) -> None:
        self._where = where
        self._url = url
        self._headers = headers
        self._secrets = secrets
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._calls = 0
        self._retired = False
        self._owner: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        return self._owner is None or self._owner.done() or self._stop.is_set()

    async def open(self) -> None:
        """Raises `ToolUnavailable` and others, none of them about a call."""
        self._owner = asyncio.get_running_loop().create_task(self._own())
        try:
            await asyncio.shield(self._ready)
        except MCPError as error:
            raise _unsent(self._failure(error, _FIRST)) from error
        except ValidationError as error:
            raise ToolRefused(f"{self._where}: it does not speak MCP; correct spec.url") from error
        except asyncio.CancelledError:
            self._owner.cancel()
            raise

    async def call(self, tool: str, arguments: dict[str, Json], key: str) -> dict[str, Any]:
        request = CallToolRequest(
            params=CallToolRequestParams.model_validate(
                {"name": tool, "arguments": arguments, "_meta": {IDEMPOTENCY_KEY: key}}
            )
        )
        client = await self._ready
        self._calls += 1
        try:
            return (await client.session.send_request(request, _Raw)).model_extra or {}
        except MCPError as error:
            raise self._failure(error, f"the tool {tool}") from error
        except ValidationError as error:
            raise ToolResultInvalid(
                f"{self._where}: what the tool {tool} gave is no result of a tool ({error.error_count()} faults); "
                "correct the server"
            ) from error
        finally:
            self._calls -= 1
            self._settle()

    def retire(self) -> None:
        """Close the connection once its calls have ended."""
        self._retired = True
        self._settle()

    def _settle(self) -> None:
        if self._retired and not self._calls:
            self._stop.set()

    async def close(self) -> None:
        self._stop.set()
        if self._owner is not None:
            await asyncio.wait({self._owner}, timeout=5.0)
            self._owner.cancel()

    async def _own(self) -> None:
        try:
            async with open_http(self._url, self._headers) as http:
                transport = streamable_http_client(self._url, http_client=http, max_sse_event_size=MAX_BODY)
                async with Client(transport, cache=None) as client:
                    self._ready.set_result(client)
                    await self._stop.wait()
        except (ExceptionGroup, MCPError, ValidationError, httpx2.HTTPError, OSError, RuntimeError) as error:
            cause = _leaf(error)
            if self._ready.done():
                log.info("%s: the connection ended (%s)", self._where, type(cause).__name__)
            else:
                self._ready.set_exception(self._as_ours(cause))
        finally:
            if not self._ready.done():
                self._ready.set_exception(self._as_ours(RuntimeError("it was given up")))
            if self._ready.exception() is not None:
                self._stop.set()

    def _as_ours(self, cause: BaseException) -> Exception:
        if isinstance(cause, MCPError | ValidationError):
            return cause
        return ToolUnavailable(
            f"{self._where}: no connection ({self._hidden(_said(cause))}); see that the server runs", sent=False
        )

    def _failure(self, error: MCPError, what: str) -> Exception:
        data = error.data if isinstance(error.data, dict) else {}
        told = data.get(KEY)
        if isinstance(told, dict):
            return self._from_http(told, what)
        said = f"{self._where}: {what} was answered with an error ({_cut(self._hidden(error.message))})"
        if error.code == CONNECTION_CLOSED:
            return ToolUnavailable(f"{said}; see that the server runs", sent=True)
        if error.code in (INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND):
            return ToolRefused(f"{said}; compare the MCPServer's tools with those of the server")
        return ToolUnavailable(f"{said}; see the server's log", sent=True)

    def _from_http(self, told: dict[str, Any], what: str) -> Exception:
        status, sent, said = told.get("status"), bool(told["sent"]), self._hidden(told["said"])
        if told.get("lost"):
            return _Lost()
        if told.get("large"):
            return OutputTooLarge(f"{self._where}, {what}", MAX_BODY)
        if told.get("odd"):
            answered = f"{self._where}: {what} was answered with {said}"
            if what == _FIRST:
                return ToolRefused(f"{answered}; correct spec.url")
            return ToolUnavailable(f"{answered}; see the server's log", sent=True)
        if status is None:
            return ToolUnavailable(f"{self._where}: no answer to {what} ({said}); see that it runs", sent=sent)
        answered = f"{self._where}: {what} was answered with {status}" + (f" ({said})" if said else "")
        if status == 429:
            return RateLimited(f"{answered}; lower the concurrency of the map", retry_after=told.get("wait"))
        if status in (408, 504):
            return ToolTimeout(f"{answered}; see the server's log", sent=True)
        if status >= 500:
            return ToolUnavailable(f"{answered}; see the server's log", sent=True, retry_after=told.get("wait"))
        remedy = "correct spec.url" if 300 <= status < 400 or status in (404, 405) else "correct what it says"
        if status in (401, 403):
            remedy = "check the Secret that spec.auth or spec.headers names"
        return ToolRefused(f"{answered}; {remedy}")

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def _unsent(error: Exception) -> Exception:
    """`error`, which is none of a call: nothing of that was sent."""
    if isinstance(error, _Lost):
        return ToolUnavailable("the session was lost while it was made; try again later", sent=False)
    if isinstance(error, ToolUnavailable | ToolTimeout):
        error.sent = False
    return error


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _said(error: BaseException) -> str:
    return _cut(str(error) or type(error).__name__)


def _cut(text: str, limit: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "…"


__all__ = ["IDEMPOTENCY_KEY", "McpServer"]

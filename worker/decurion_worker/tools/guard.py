"""HTTP below the MCP library: what goes wrong with one request becomes the answer to that request.

The library gives up a whole connection, with all calls in flight, when one of its requests fails; and it hides the
status of an answer. Here each request gets its own answer: a JSON-RPC error whose data says what happened.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx2
import orjson

from decurion_worker.models.status import MAX_SAID, retry_after

CODE = -32099
"""Of our own errors, within what JSON-RPC leaves to implementations."""
KEY = "decurion.dev/transport"
CONNECT_SECONDS = 10.0
CONNECTIONS = 256
MAX_BODY = 32 * 1024 * 1024

_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


def open_http(url: str, headers: tuple[tuple[str, str], ...]) -> httpx2.AsyncClient:
    """A client for the endpoint `url`, through a proxy where the environment names one for it."""
    place = httpx2.URL(url)
    proxies = getproxies()
    proxy = proxies.get(place.scheme) or proxies.get("all")
    if place.host in ("localhost", "127.0.0.1", "::1") or proxy_bypass(place.netloc.decode()):
        proxy = None
    limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=4.0)
    return httpx2.AsyncClient(
        transport=Guard(httpx2.AsyncHTTPTransport(proxy=proxy, limits=limits)),
        headers=list(headers),
        # Each call has its deadline from its caller.
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
    )


class Guard(httpx2.AsyncBaseTransport):
    """`inner`, whose failures and refusals of a call come back as JSON-RPC errors."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return await self._inner.handle_async_request(request)
        try:
            response = await self._inner.handle_async_request(request)
            if response.status_code < 300:
                return await _answered(request, response)
            body = await _first(response)
        except httpx2.TransportError as error:
            said = str(error) or type(error).__name__
            return _told(request, {"sent": not isinstance(error, _NOT_SENT), "said": said})
        lost = "mcp-session-id" in request.headers and (
            response.status_code == 404 or (response.status_code == 400 and b"session" in body.lower())
        )
        if not lost and _is_error(body):
            return httpx2.Response(200, headers={"content-type": "application/json"}, content=body, request=request)
        told: dict[str, Any] = {"sent": True, "status": response.status_code, "said": _shown(body), "lost": lost}
        if "location" in response.headers:
            told["said"] = f"to {response.headers['location']}"
        wait = retry_after(response.headers)
        return _told(request, told | ({} if wait is None else {"wait": wait}))

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _answered(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """An answer that the library understands, read to its end here; or what is the matter with this one.

    The library takes a body of any size into memory, and takes an answer that is none for a refusal: but the call may
    have been carried out.
    """
    kind, call = response.headers.get("content-type", "").partition(";")[0].strip().lower(), _call(request)
    if kind == "text/event-stream" or call is None:
        return response
    body = await _whole(response)
    if body is None:
        return _told(request, {"sent": True, "said": "", "large": True})
    if response.status_code == 202 or kind != "application/json":
        said = f"{response.status_code} and {f'a body of {kind}' if kind else 'no body'}"
    elif (answer := _answer_to(call, body)) is not None:
        headers = [(k, v) for k, v in response.headers.multi_items() if k.lower() not in _OF_THE_BODY]
        return httpx2.Response(response.status_code, headers=headers, content=answer, request=request)
    else:
        said = f"{response.status_code} and what is no JSON-RPC answer to it"
    return _told(request, {"sent": True, "said": said, "odd": True})


async def _whole(response: httpx2.Response) -> bytes | None:
    """The body of an answer; None beyond `MAX_BODY`."""
    found = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            found += chunk
            if len(found) > MAX_BODY:
                return None
    except httpx2.DecodingError as error:
        raise httpx2.ReadError(str(error)) from error
    finally:
        await response.aclose()
    return bytes(found)


async def _first(response: httpx2.Response) -> bytes:
    """The body of an answer that is no success, as far as anybody reads it."""
    found = b""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            async for chunk in response.aiter_bytes():
                found += chunk
                if len(found) > 64 * 1024:
                    break
    except TimeoutError:
        pass
    finally:
        await response.aclose()
    return found


def _told(request: httpx2.Request, told: dict[str, Any]) -> httpx2.Response:
    call = _call(request)
    if call is None:
        return httpx2.Response(202, request=request)
    error = {"code": CODE, "message": told["said"], "data": {KEY: told}}
    body = orjson.dumps({"jsonrpc": "2.0", "id": call["id"], "error": error})
    return httpx2.Response(200, headers={"content-type": "application/json"}, content=body, request=request)


def _call(request: httpx2.Request) -> dict[str, Any] | None:
    """The JSON-RPC request in an HTTP request; None where no answer is due."""
    try:
        call = orjson.loads(request.content)
    except (orjson.JSONDecodeError, httpx2.RequestNotRead):
        return None
    return call if isinstance(call, dict) and "id" in call else None


def _answer_to(call: dict[str, Any], body: bytes) -> bytes | None:
    """The JSON-RPC answer to `call` in a body; None where it is none, or that to another call: the library would wait
    on. An error without an id is of a call that the server could not read, and so of this one.
    """
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        return None
    if found.get("id") is None and _is_error(body):
        return orjson.dumps(found | {"id": call["id"]})
    return body if str(found.get("id")) == str(call["id"]) else None


def _is_error(body: bytes) -> bool:
    """Whether a body is a JSON-RPC error that the library can hand to its caller."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    error = found.get("error") if isinstance(found, dict) else None
    return isinstance(error, dict) and isinstance(error.get("code"), int) and isinstance(error.get("message"), str)


def _shown(body: bytes) -> str:
    line = " ".join(body.decode("utf-8", "replace").split())
    return line if len(line) <= MAX_SAID else line[:MAX_SAID] + "…"

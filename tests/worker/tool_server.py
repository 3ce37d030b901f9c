"""A real MCP server for tests: the library's own, over streamable HTTP on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from starlette.requests import Request
from starlette.responses import Response

from decurion_worker.tools.mcp import IDEMPOTENCY_KEY


class ToolServer:
    """A server with the tools `lookup`, `note`, `fail`, `odd` and `plain`.

    `calls` counts them by name, `most` how many were in flight at a time, `keys` what came as idempotency key, `seen`
    holds arguments. `status` is answered to every call of a tool while it is set, `hang` holds `note` after it was
    carried out, until the server stops. It may be stopped and started again: its sessions are then gone, its address
    stays. A `legacy` one knows only the protocol with sessions.
    """

    def __init__(self, *, legacy: bool = False, token: str = "") -> None:
        self.calls: Counter[str] = Counter()
        self.keys: list[str] = []
        self.seen: list[dict[str, Any]] = []
        self.flying: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.status = 0
        self.hang = False
        self.lookup_seconds = 0.0
        self.note_seconds = 0.0
        self._legacy = legacy
        self._token = token
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    def __enter__(self) -> ToolServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self._port))
        listening.listen()
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(self._app(), log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(self._server, listening), daemon=True)
        self._thread.start()

    @staticmethod
    def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
        asyncio.run(server.serve([listening]))
        listening.close()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(10)
            self._server = None

    def _app(self) -> Any:
        inner = self._tools().streamable_http_app(host="127.0.0.1")

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                request = Request(scope, receive)
                self.headers.append(dict(request.headers))
                if self._token and request.headers.get("authorization") != f"Bearer {self._token}":
                    await Response(f"bad token {request.headers.get('authorization')}", 401)(scope, receive, send)
                    return
                if self._legacy and request.headers.get("mcp-method", "") == "server/discover":
                    await Response("no such method", 404)(scope, receive, send)
                    return
                if self.status and request.headers.get("mcp-method", "") == "tools/call":
                    await Response("out of order", self.status)(scope, receive, send)
                    return
            await inner(scope, receive, send)

        return app

    def _heard(self, name: str, context: Context[Any, Any], **arguments: Any) -> None:
        self.calls[name] += 1
        self.seen.append(arguments)
        meta = context.request_context.meta or {}
        self.keys.append(str(dict(meta).get(IDEMPOTENCY_KEY, "")))

    @contextmanager
    def _in_flight(self, name: str) -> Iterator[None]:
        self.flying[name] += 1
        self.most[name] = max(self.most[name], self.flying[name])
        try:
            yield
        finally:
            self.flying[name] -= 1

    def _tools(self) -> MCPServer:
        server = MCPServer("test")

        @server.tool()
        async def lookup(query: str, context: Context[Any, Any], limit: int = 3) -> dict[str, Any]:
            """Find titles."""
            self._heard("lookup", context, query=query, limit=limit)
            with self._in_flight("lookup"):
                await asyncio.sleep(self.lookup_seconds)
            return {"hits": [{"title": f"{query} {i}"} for i in range(limit)]}

        @server.tool()
        async def note(text: str, context: Context[Any, Any]) -> str:
            """Write a note down: an effect."""
            self._heard("note", context, text=text)
            with self._in_flight("note"):
                await asyncio.sleep(self.note_seconds)
                while self.hang:
                    await asyncio.sleep(0.01)
            return f"noted {text}"

        @server.tool()
        async def fail(context: Context[Any, Any]) -> str:
            """Fail."""
            self._heard("fail", context)
            raise ToolError("the index is being rebuilt")

        @server.tool()
        async def odd(context: Context[Any, Any]) -> dict[str, Any]:
            """Give what nobody declared."""
            self._heard("odd", context)
            return {"hits": "none"}

        @server.tool(structured_output=False)
        async def plain(context: Context[Any, Any]) -> str:
            """Give JSON as a text."""
            self._heard("plain", context)
            return '{"hits": [{"title": "from a text"}]}'

        return server


RESOURCE = """
---
apiVersion: decurion.dev/v1alpha1
kind: MCPServer
metadata: {name: tools}
spec:
  url: URL
  timeoutSeconds: 5
  tools:
    - name: lookup
      description: Find titles.
      input: {query: {type: string}, "limit?": {type: integer}}
      output: {hits: {type: array, items: {type: object, required: [title], properties: {title: {type: string}}}}}
      policy: {readOnly: true}
    - name: note
      description: Write a note down.
      input: {text: {type: string}}
    - name: fail
    - name: odd
      output: {hits: {type: array, items: {type: string}}}
    - name: plain
      output: {hits: {type: array, items: {type: object, required: [title], properties: {title: {type: string}}}}}
      policy: {idempotent: true}
"""


def resource(url: str) -> str:
    """The manifest of the server at `url`."""
    return RESOURCE.replace("URL", url)

"""From `MCPServer` resources to connections: one for each server and set of headers on a runner, opened when needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from decurion_worker.errors import SecretInvalid, SecretMissing, ToolMisconfigured
from decurion_worker.slots import SharedSlots

if TYPE_CHECKING:
    from decurion_worker.tools.mcp import McpServer

Headers = tuple[tuple[str, str], ...]
SecretValues = Mapping[tuple[str, str], str]


class ToolServers:
    """The connections of one runner to tool servers, shared by all its runs, and the slots of tools that bear only so
    many calls at a time.
    """

    def __init__(self) -> None:
        self._servers: dict[tuple[str, Headers], McpServer] = {}
        self.slots = SharedSlots()

    def of(self, name: str, spec: Mapping[str, Any], *, secrets: SecretValues) -> McpServer:
        """The server of the `MCPServer` resource `name`.

        Raises `SecretMissing`, `SecretInvalid`, `ToolMisconfigured`.
        """
        headers, hidden = _headers(spec, secrets)
        key = (spec["url"], headers)
        found = self._servers.get(key)
        if found is None:
            found = self._servers[key] = open_server(name, spec, headers, hidden)
        return found

    async def aclose(self) -> None:
        servers = list(self._servers.values())
        self._servers.clear()
        for server in servers:
            await server.aclose()


def open_server(name: str, spec: Mapping[str, Any], headers: Headers, secrets: tuple[str, ...]) -> McpServer:
    """A server that connects with its first call. Raises `ToolMisconfigured` where the MCP library is not installed."""
    try:
        # The library takes a second to import: only runs that call tools pay for it.
        from decurion_worker.tools.mcp import McpServer
    except ModuleNotFoundError as error:
        raise ToolMisconfigured(
            f"MCPServer {name}: tools are called by the package {error.name}, which is not installed here; install "
            "decurion[mcp]"
        ) from error
    return McpServer(name, spec["url"], headers, secrets=secrets)


def _headers(spec: Mapping[str, Any], secrets: SecretValues) -> tuple[Headers, tuple[str, ...]]:
    """The headers of each request, and which values in them are secret."""
    found: list[tuple[str, str]] = []
    hidden: list[str] = []
    token = (spec.get("auth") or {}).get("secretKeyRef")
    if token is not None:
        hidden.append(_secret(token, secrets, bare=True))
        found.append(("authorization", f"Bearer {hidden[-1]}"))
    for header in spec.get("headers") or ():
        source = (header.get("valueFrom") or {}).get("secretKeyRef")
        value = header.get("value", "")
        if source is not None:
            value = _secret(source, secrets, bare=False)
            hidden.append(value)
        found.append((header["name"].lower(), value))
    # The longest first: one may be a part of another.
    return tuple(sorted(found)), tuple(sorted(set(hidden), key=len, reverse=True))


def _secret(ref: Mapping[str, str], secrets: SecretValues, *, bare: bool) -> str:
    """The value of a Secret's entry as it can stand in a header; `bare`, without blanks in it."""
    name, key = ref["name"], ref["key"]
    if (name, key) not in secrets:
        raise SecretMissing(name, key)
    value = secrets[name, key].strip()
    if not value or not value.isascii() or not value.isprintable() or (bare and " " in value):
        raise SecretInvalid(name, key)
    return value

"""Tool servers that are built in: their tools run where the node runs, and no resource declares them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from decurion_crds.compiled import WORKSPACE
from decurion_crds.v1alpha1 import MCPServer

__all__ = ["BUILTIN", "WORKSPACE", "WRITING"]

_PATH = {"type": "string", "description": "Path of a file, such as src/a.py."}
_FILE = {
    "type": "object",
    "properties": {"path": _PATH, "text": {"type": "string"}},
    "required": ["path", "text"],
    "additionalProperties": False,
}
WRITING = frozenset({"write", "write_files", "edit", "delete"})
"""Tools that change files."""


def _tool(name: str, description: str, input: Mapping[str, Any], output: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": description, "input": dict(input), "output": dict(output)}


_TOOLS = [
    _tool("read", "The text of a file.", {"path": _PATH}, {"text": {"type": "string"}}),
    _tool(
        "write",
        "Put a text into a file, in place of what is in it. Folders come by themselves.",
        {"path": _PATH, "text": {"type": "string"}},
        {"bytes": {"type": "integer"}},
    ),
    _tool(
        "write_files",
        "Put texts into files, in place of what is in them.",
        {"files": {"type": "array", "items": _FILE}},
        {"count": {"type": "integer"}},
    ),
    _tool(
        "edit",
        "Replace a text that stands once in a file by another; with all, each time that it stands there.",
        {"path": _PATH, "old": {"type": "string"}, "new": {"type": "string"}, "all?": {"type": "boolean"}},
        {"replaced": {"type": "integer"}},
    ),
    _tool("delete", "Remove a file.", {"path": _PATH}, {"deleted": {"type": "boolean"}}),
    _tool(
        "list",
        "Files and folders of a folder, folders with a slash at the end; without one, of the top.",
        {"folder?": {"type": "string"}},
        {"names": {"type": "array", "items": {"type": "string"}}},
    ),
    _tool(
        "glob",
        "Paths that fit a pattern, in which * stands for any part of a name, and ** for folders.",
        {"pattern": {"type": "string"}},
        {"paths": {"type": "array", "items": {"type": "string"}}},
    ),
]


def _server(name: str, tools: list[dict[str, Any]]) -> MCPServer:
    return MCPServer.model_validate(
        {
            "apiVersion": "decurion.dev/v1alpha1",
            "kind": "MCPServer",
            "metadata": {"name": name},
            # Nobody connects to it: the compiled graph names the server and holds no address of it.
            "spec": {"url": f"http://{name}.invalid", "tools": tools},
        }
    )


BUILTIN: Mapping[str, MCPServer] = MappingProxyType({WORKSPACE: _server(WORKSPACE, _TOOLS)})

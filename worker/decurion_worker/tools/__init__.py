"""Tools of MCP servers behind one port: `ToolServers` holds the connections of a runner."""

from decurion_worker.tools.port import ToolAnswer, ToolCaller
from decurion_worker.tools.servers import ToolServers, open_server

__all__ = ["ToolAnswer", "ToolCaller", "ToolServers", "open_server"]

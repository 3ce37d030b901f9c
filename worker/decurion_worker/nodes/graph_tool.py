"""A graph as a tool of an agent: the arguments of the call are its input, and its output is the result."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import AgentTool
from decurion_crds.expressions import ExpressionFailed
from decurion_worker.context import Execution
from decurion_worker.errors import EffectInDoubt, OutputBroken
from decurion_worker.tools import ToolAnswer


async def run_graph_tool(execution: Execution, tool: AgentTool, path: str, arguments: Mapping[str, Json]) -> ToolAnswer:
    """What the call at `path` gives; a failure of the graph is one that the model is told.

    Raises `EffectInDoubt` where one in the graph is why that failed: to call it again could do it twice. Raises
    `CallsOpen` while the graph is handed out.
    """
    if execution.calls is None or tool.graph is None:
        raise OutputBroken(execution.path, [f"the tool {tool.name} has no graph to run"])
    end = await execution.calls.run(tool, path, dict(arguments))
    if end.failure is not None:
        if end.failure.code == EffectInDoubt.code:
            raise EffectInDoubt(path, tool.name, "", end.failure.message)
        return ToolAnswer(f"{end.failure.code}: {end.failure.message}", failed=True)
    try:
        return ToolAnswer("", await execution.context.load(end.value, name=tool.name))
    except ExpressionFailed as error:
        return ToolAnswer(f"the result is too large to be shown: {error}", failed=True)

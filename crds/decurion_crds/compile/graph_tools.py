"""Graphs as tools of agents: what of them can run inside an agent's turn."""

from __future__ import annotations

from decurion_crds.compile.draft import GraphDraft, NodeDraft
from decurion_crds.compile.report import Report


def check_graph_tools(draft: GraphDraft, report: Report) -> None:
    """That a graph which is a tool runs whole on one runner. For a draft without circles."""
    waits: dict[str, str | None] = {}

    def why(scope: str) -> str | None:
        """Kind and name of the first node, in the scope or below it, that waits for others."""
        if scope not in waits:
            found = (waiting(node) for node in draft.scopes[scope].nodes.values())
            waits[scope] = next((words for words in found if words is not None), None)
        return waits[scope]

    def waiting(node: NodeDraft) -> str | None:
        if node.kind in ("map", "approval"):
            return f"the {node.kind} {node.name}"
        if node.race is not None:
            return f"the join of {node.name}"
        return next((words for use in node.uses() if (words := why(use.scope)) is not None), None)

    for scope in draft.scopes.values():
        for node in scope.nodes.values():
            for use in node.agent.uses() if node.agent is not None else ():
                words = why(use.scope)
                if words is not None:
                    message = (
                        f"the {use.shown} has {words} inside, and as a tool of an agent such a graph is not built yet; "
                        "run it by a graph node before the agent, and hand its output on by with"
                    )
                    report.add("NOT-SUPPORTED", use.spot, message)

"""Which failure a scope names does not depend on time: it is the first in file order of all that would fail.

So what stands before a node that failed still runs, with what that comes after; the rest does not start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from decurion_crds.compiled import CompiledGraph, Node, Scope

NOBODY: frozenset[str] = frozenset()


def still_due(
    scope: Scope, *, failed: Collection[str], ended: Collection[str], asking: Collection[str] = NOBODY
) -> frozenset[str]:
    """The nodes that still run where `failed` did, of which all have ended.

    For those that ask people, `asking`, nothing waits: what they decide, and when, depends on time anyway.
    """
    order = {node.name: i for i, node in enumerate(scope.nodes)}
    first = min(order.get(name, len(order)) for name in failed)
    barred: set[str] = set(failed)
    for name in scope.order:
        if (name in asking and name not in ended) or any(before in barred for before in scope.by_name[name].after):
            barred.add(name)
    due: set[str] = set()
    for name in reversed(scope.order):
        wanted = order[name] < first or any(follower in due for follower in scope.followers[name])
        if wanted and name not in ended and name not in barred:
            due.add(name)
    return frozenset(due)


def asking_nodes(graph: CompiledGraph) -> Mapping[str, frozenset[str]]:
    """By template, the nodes that ask people, themselves or in what they open."""
    found: dict[str, frozenset[str]] = {}

    def of(template: str) -> frozenset[str]:
        if template not in found:
            nodes = graph.templates[template].nodes
            found[template] = frozenset(node.name for node in nodes if node.approval is not None or inside(node))
        return found[template]

    def inside(node: Node) -> bool:
        finals = (final for name in node.inner if (final := graph.templates[name].final) is not None)
        return any(map(of, node.inner)) or any(map(of, finals))

    for template in graph.templates:
        of(template)
    return found

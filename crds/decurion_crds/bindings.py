"""What the needs of a graph stand for where every use of it binds them, read off the specs as they are.

Such a graph is right without resources of the names of its needs. What is said of it is said of it as its uses have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from decurion_crds.uses import Uses, agent_uses, swaps_of, uses

Bound: TypeAlias = dict[tuple[str, str], str]
"""Kind and name of a need → name of the resource that it stands for."""


@dataclass(frozen=True, slots=True)
class GraphUse:
    """A use of a graph. `owner` is the graph in whose names `bind` is written, None where it names resources."""

    owner: str | None
    bind: Mapping[tuple[str, str], str]


class Around(Protocol):
    """The resources beside a graph, in its namespace or among the same files."""

    def needs(self, graph: str) -> Mapping[str, str]:
        """The needs of a graph: name → kind."""

    def uses(self, graph: str) -> Iterator[GraphUse]:
        """The uses of a graph by others, in a fixed order."""

    def exists(self, kind: str, name: str) -> bool: ...


def bound_by_uses(graph: str, around: Around) -> Bound:
    """What the needs of `graph` without a resource of their name stand for in the first of its uses. Empty for a need
    that one of the uses leaves open.
    """
    return _bound(graph, around, frozenset({graph}))


def _bound(graph: str, around: Around, above: frozenset[str]) -> Bound:
    needs = around.needs(graph)
    due = [(kind, need) for need, kind in needs.items() if not around.exists(kind, need)]
    found: Bound = {}
    used = list(around.uses(graph)) if due else []
    for of in due:
        if all(of in use.bind for use in used):
            name = next((name for use in used if (name := _resource(of, use, around, above)) is not None), None)
            found |= {of: name} if name is not None else {}
    return found


def _resource(of: tuple[str, str], use: GraphUse, around: Around, above: frozenset[str]) -> str | None:
    kind, name = of[0], use.bind[of]
    if around.exists(kind, name):
        return name
    if use.owner is None or use.owner in above or name not in around.needs(use.owner):
        return None
    return _bound(use.owner, around, above | {use.owner}).get((kind, name))


def needs_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """The needs of a graph: name → kind."""
    return {need: kind for need, kind in uses(spec).needs.items() if isinstance(kind, str)}


def uses_in(kind: str, name: str, spec: Mapping[str, Any], *, graph: str, needs: Mapping[str, str]) -> list[GraphUse]:
    """The uses of `graph`, whose needs are `needs`, by a TaskGraph, an Agent, or a TaskGraphRun that binds them."""
    if kind == "TaskGraphRun":
        swaps = swaps_of(spec)
        mine = {(of, need): swaps[of, need] for need, of in needs.items() if (of, need) in swaps}
        return [GraphUse(None, mine)] if mine and spec.get("graph") == graph else []
    look: Callable[[Mapping[str, Any]], Uses] = uses if kind == "TaskGraph" else agent_uses
    owner = name if kind == "TaskGraph" else None
    found = [bind for ref, bind in look(spec).runs if ref == graph]
    return [GraphUse(owner, {(needs[need], need): to for need, to in bind.items() if need in needs}) for bind in found]

"""What the needs of a graph of the files stand for where every use of it among them binds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from decurion_cli.manifests import Manifests
from decurion_crds.bindings import GraphUse, bound_by_uses, needs_of, uses_in
from decurion_crds.loader import Document


def bound_in(manifests: Manifests, document: Document) -> dict[str, dict[str, str]]:
    """By kind, for the graph in `document`: name of a need → name of the LLM or MCPServer that it stands for."""
    found: dict[str, dict[str, str]] = {"LLM": {}, "MCPServer": {}}
    for (kind, need), name in bound_by_uses(document.name, _Files(manifests, document)).items():
        found[kind][need] = name
    return found


def used_in(manifests: Manifests, document: Document) -> bool:
    """Whether others among the files use the graph in `document`: what is not bound is then told there."""
    return any(True for _ in _Files(manifests, document).uses(document.name))


class _Files:
    """What there is around the graph in `document`."""

    def __init__(self, manifests: Manifests, document: Document) -> None:
        self._graphs = {name: module.graph.spec.to_json() for name, module in manifests.graphs_for(document).items()}
        self._agents = {name: agent.spec.to_json() for name, agent in manifests.agents_for(document).items()}
        self._runs = [run.spec.to_json() for _, run in manifests.runs_for(document)]
        self._names = {"LLM": manifests.llms_for(document).keys(), "MCPServer": manifests.servers_for(document).keys()}

    def needs(self, graph: str) -> Mapping[str, str]:
        return needs_of(self._graphs.get(graph, {}))

    def uses(self, graph: str) -> Iterator[GraphUse]:
        needs = self.needs(graph)
        for name, spec in self._graphs.items():
            yield from uses_in("TaskGraph", name, spec, graph=graph, needs=needs)
        for name, spec in self._agents.items():
            yield from uses_in("Agent", name, spec, graph=graph, needs=needs)
        for spec in self._runs:
            yield from uses_in("TaskGraphRun", "", spec, graph=graph, needs=needs)

    def exists(self, kind: str, name: str) -> bool:
        return name in self._names[kind]

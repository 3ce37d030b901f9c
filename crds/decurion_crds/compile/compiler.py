"""From a `TaskGraph` and its models to one `CompiledGraph`, or to findings: all at once, one for each cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from decurion_crds.canonical import canonical
from decurion_crds.compile.assemble import assemble
from decurion_crds.compile.draft import GraphDraft, NodeDraft, ScopeDraft
from decurion_crds.compile.effects import check_races, check_reachable, check_unused
from decurion_crds.compile.infer import infer
from decurion_crds.compile.order import order_scope
from decurion_crds.compile.report import Positions, Report, Spot
from decurion_crds.compile.resolve import resolve
from decurion_crds.compiled import CompiledGraph
from decurion_crds.expressions.check import Checker
from decurion_crds.findings import CompileFailed, Finding
from decurion_crds.v1alpha1 import LLM, TaskGraph


@dataclass(frozen=True, slots=True)
class Compilation:
    """What became of a graph. `compiled` is None when a finding is an error."""

    compiled: CompiledGraph | None
    findings: list[Finding]

    def result(self) -> CompiledGraph:
        """The compiled graph. Raises `CompileFailed` when there is none."""
        if self.compiled is None:
            raise CompileFailed(self.findings)
        return self.compiled


def compile_graph(
    graph: TaskGraph,
    *,
    llms: Mapping[str, LLM],
    known_llms: Iterable[str] = (),
    positions: Positions | None = None,
    checker: Checker,
) -> Compilation:
    """Compiles one graph with the models that it names (name in the graph → resource).

    `known_llms` are names beside those of `llms` that a misspelt one may have meant.
    `positions` says where values of the resource were written. Nothing is run but the type checker. Raises
    `CheckFailed` when the checker gives no answer, which says nothing about the graph.
    """
    report = Report(positions)
    draft = resolve(graph, llms, report, known_llms=sorted({*llms, *known_llms}))
    orders = {name: order_scope(scope, report) for name, scope in draft.scopes.items()}
    _check_recursion(draft, report)
    for name, scope in draft.scopes.items():
        check_races(scope, orders[name], report)
        check_reachable(scope, orders[name], report)
        check_unused(scope, report)
    _check_use(graph, draft, report)
    typed = infer(draft, orders, checker, report)
    if report.failed:
        return Compilation(None, report.findings)
    return Compilation(assemble(draft, orders, typed), report.findings)


def _templates_of(scope: ScopeDraft) -> list[NodeDraft]:
    return [node for node in scope.nodes.values() if node.template is not None]


def _check_recursion(draft: GraphDraft, report: Report) -> None:
    """A template that maps over itself, directly or through others, has no end. The way back is cut."""

    def walk(scope: ScopeDraft, path: tuple[str, ...]) -> None:
        for node in _templates_of(scope):
            name = node.template or ""
            if name in path:
                circle = " → ".join((*path[path.index(name) :], name))
                message = f"templates contain one another ({circle}), so there is no end; map over another template"
                report.add("CYCLE", node.spot.below("map", "template"), message)
                node.template = None
            elif name not in done:
                walk(draft.scopes[name], (*path, name))
        done.add(scope.name)

    done: set[str] = set()
    for scope in draft.scopes.values():
        if scope.name not in done:
            walk(scope, (scope.name,))


def _check_use(graph: TaskGraph, draft: GraphDraft, report: Report) -> None:
    """Warns of templates and shared schemas that are never used."""
    used = {node.template for scope in draft.scopes.values() for node in _templates_of(scope)}
    broken = any(
        node.kind == "map" and node.template is None for s in draft.scopes.values() for node in s.nodes.values()
    )
    for scope in draft.scopes.values():
        if scope.name and scope.name not in used and not broken:
            message = f"no map uses the template {scope.name}; use it, or remove it"
            report.add("UNUSED", scope.spot, message, severity="warning")
    spec = graph.to_json()["spec"]
    for name in graph.spec.schemas:
        others = {key: value for key, value in spec.get("schemas", {}).items() if key != name}
        text = canonical({**spec, "schemas": others})
        if f'"{name}"'.encode() not in text and f'"#/schemas/{name}"'.encode() not in text:
            spot = Spot(("spec",), "").below("schemas", name)
            report.add("UNUSED", spot, f"no schema uses {name}; use it, or remove it", severity="warning")

"""From a `TaskGraph` and its models to one `CompiledGraph`, or to findings: all at once, one for each cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from decurion_crds.compile.assemble import assemble
from decurion_crds.compile.budgets import check_budgets
from decurion_crds.compile.builtin import BUILTIN
from decurion_crds.compile.channels import check_orders
from decurion_crds.compile.contexts import assign_contexts
from decurion_crds.compile.draft import GraphDraft
from decurion_crds.compile.effects import check_races, check_reachable, check_unused
from decurion_crds.compile.finals import check_given_up
from decurion_crds.compile.infer import infer
from decurion_crds.compile.order import order_scope
from decurion_crds.compile.refs import Around, Module
from decurion_crds.compile.report import Positions, Report
from decurion_crds.compile.resolve import resolve
from decurion_crds.compile.resources import check_resources
from decurion_crds.compile.sensitive import check_sensitive
from decurion_crds.compile.size import check_size
from decurion_crds.compile.templates import check_schemas, check_templates
from decurion_crds.compile.workspaces import check_workspaces
from decurion_crds.compiled import CompiledGraph
from decurion_crds.expressions.check import Checker
from decurion_crds.findings import CompileFailed, Finding
from decurion_crds.seen import Seen
from decurion_crds.v1alpha1 import LLM, Agent, MCPServer, TaskGraph

_NONE: Mapping[str, Module] = MappingProxyType({})
_NO_SERVERS: Mapping[str, MCPServer] = MappingProxyType({})
_NO_AGENTS: Mapping[str, Agent] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Compilation:
    """What became of a graph. `compiled` is None when a finding is an error. `seen` is what each node of it sees, by
    scope (empty for the root) and node: types that nothing needs in a run.
    """

    compiled: CompiledGraph | None
    findings: list[Finding]
    seen: Mapping[tuple[str, str], Seen] = field(default_factory=dict)

    def result(self) -> CompiledGraph:
        """The compiled graph. Raises `CompileFailed` when there is none."""
        if self.compiled is None:
            raise CompileFailed(self.findings)
        return self.compiled


def compile_graph(
    graph: TaskGraph,
    *,
    llms: Mapping[str, LLM],
    servers: Mapping[str, MCPServer] = _NO_SERVERS,
    agents: Mapping[str, Agent] = _NO_AGENTS,
    graphs: Mapping[str, Module] = _NONE,
    known_llms: Iterable[str] = (),
    known_graphs: Iterable[str] = (),
    known_servers: Iterable[str] = (),
    known_agents: Iterable[str] = (),
    positions: Positions | None = None,
    open: frozenset[str] = frozenset(),
    shared: bool = False,
    checker: Checker,
) -> Compilation:
    """Compiles one graph with the models, tool servers, agents and other graphs that it names (name in the graph →
    resource).

    `graphs` may hold more than it refers to. What is wrong in one of them is told at its own place.
    `known_llms`, `known_graphs`, `known_servers`, `known_agents` are names beside those given that a misspelt one may
    have meant.
    `shared` says that more graphs than those given may use its schemas, as on a cluster.
    `open` are templates whose input is inferred (`loader.Hoisted`). `positions` says where values of the resource were
    written. Nothing is run but the type checker. Raises
    `CheckFailed` when the checker gives no answer, which says nothing about the graph.
    """
    report = Report(positions, {name: module.positions for name, module in graphs.items() if name != graph.name})
    servers = {**servers, **BUILTIN}
    draft = GraphDraft(
        graph.name,
        resources={"LLM": llms, "MCPServer": servers, "Agent": agents},
        known={
            "LLM": sorted({*llms, *known_llms}),
            "MCPServer": sorted({*servers, *known_servers}),
            "Agent": sorted({*agents, *known_agents}),
        },
    )
    resolve(Module(graph, positions, open), draft, Around(graphs, sorted(known_graphs)), report)
    assign_contexts(draft, report)
    orders = {name: order_scope(scope, report) for name, scope in draft.scopes.items()}
    check_templates(draft, report)
    if not shared:
        check_schemas(graph, (module.graph for module in graphs.values()), report)
    check_given_up(draft, orders, report)
    check_resources(draft, report)
    check_budgets(draft, graph.spec.limits, report)
    files = graph.spec.workspace
    writes = check_workspaces(draft, orders, report, artefacts=files.artefacts if files is not None else ())
    for name, scope in draft.scopes.items():
        check_orders(scope, report)
        check_races(scope, orders[name], report)
        check_reachable(scope, orders[name], report)
        check_unused(scope, report, files=writes.names(scope), final=scope.final)
    taints = check_sensitive(draft, writes, report)
    typed = infer(draft, orders, checker, report)
    if report.failed:
        return Compilation(None, report.findings)
    compiled, origins = assemble(draft, orders, typed, writes, taints, graph.spec)
    check_size(compiled, report)
    if report.failed:
        return Compilation(None, report.findings)
    seen = {
        (name, node): typed.seen[scope, node] for name, scope in origins.items() for node in draft.scopes[scope].nodes
    }
    return Compilation(compiled, report.findings, seen)

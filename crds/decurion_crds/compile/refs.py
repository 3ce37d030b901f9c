"""Other graphs by reference: one draft holds them all, each once, and each use of one binds what it needs.

A graph is resolved, ordered and typed once however often it is used; what differs between uses is which resources its
`needs` stand for (`Env`). So scopes of the draft are named by graph and template, and those of the compiled graph by
graph, binding and template (`instance_name`): neither can clash with templates, whose names hold none of `:(/`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from decurion_crds.compile.agent_tools import graph_of, is_agent, owner_of
from decurion_crds.compile.draft import ScopeDraft, Use
from decurion_crds.compile.report import Positions, Report, Spot
from decurion_crds.errors import SchemaRefused
from decurion_crds.findings import Fix, did_you_mean, listed
from decurion_crds.v1alpha1 import Agent, TaskGraph
from decurion_crds.v1alpha1.base import Resource

ROOT = ""
"""The graph that is compiled, as owner of scopes and of spots."""
Env: TypeAlias = Mapping[str, str]
"""Names in a graph that stand for a resource of another name: need → resource."""
OWN: Env = {}

MAX_INSTANCES = 1_000
"""Most scopes of a compiled graph: each template of each graph under each binding is one."""


@dataclass(frozen=True, slots=True)
class Module:
    """A graph that others may refer to, and where its values were written.

    `open` names templates whose input was not written and is inferred: those of bodies in place.
    """

    graph: TaskGraph
    positions: Positions | None = None
    open: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Around:
    """What there is beside a graph: modules by name, and names of more that a misspelt one may have meant."""

    modules: Mapping[str, Module] = field(default_factory=dict)
    known: Sequence[str] = ()


def scope_name(graph: str, template: str = "") -> str:
    """The name in the draft of a template of a graph, or of the graph itself."""
    if graph == ROOT:
        return template
    if is_agent(graph):
        return graph
    return f"graph:{graph}/{template}" if template else f"graph:{graph}"


def instance_name(scope: ScopeDraft, env: Env) -> str:
    """The name of a scope in the compiled graph, where names of its graph stand for other resources as `env` says."""
    if scope.graph == ROOT:
        return scope.name
    bound = ",".join(f"{need}={name}" for need, name in sorted(env.items()))
    graph, _, template = scope.name.partition("/")
    return graph + (f"({bound})" if bound else "") + (f"/{template}" if template else "")


def inside(use: Use, env: Env) -> Env:
    """What the names of a scope stand for that is used as `use` says from where they stand for `env`."""
    if use.graph is None:
        return env
    if use.apart:
        env = OWN
    given = {need: env.get(name, name) for need, name in use.bind.items()}
    return {need: name for need, name in given.items() if need != name}


class Library:
    """The graphs of one compilation: those that are used, in the order in which they were met."""

    def __init__(self, root: Module, around: Around, report: Report, *, agents: Mapping[str, Resource]) -> None:
        self._name = root.graph.name
        self._agents = agents
        self._around = around
        self._report = report
        self._met: dict[str, Module] = {ROOT: root}
        self._first: dict[str, dict[str, str]] = {}
        self._due: deque[str] = deque([ROOT])

    def pending(self) -> Iterator[tuple[str, Module]]:
        """Graphs to resolve, by the owner of their scopes; more may be met meanwhile."""
        while self._due:
            owner = self._due.popleft()
            yield owner, self._met[owner]

    def first(self, owner: str) -> Mapping[str, str]:
        """What the needs of a graph stand for in the first of its uses that binds them: need → resource."""
        return self._first.get(owner, {})

    def use(
        self, ref: str, bind: Mapping[str, str], spot: Spot, *, field: str = "ref", apart: bool = False
    ) -> Use | None:
        """The use of the graph `ref`, named at `spot` by `field`; None when there is none, which is in the report.

        A node that runs it once, for each item or each round, and a tool of an agent are such uses. `apart`: it is
        named in a resource that stands apart, and `spot` is where that is named.
        """
        at = spot if apart else spot.below(field)
        owner = ROOT if ref == self._name else ref
        if owner not in self._met:
            module = self._around.modules.get(ref)
            if module is None:
                self._missing(ref, at)
                return None
            self._met[owner] = module
            self._due.append(owner)
        needs = self._met[owner].graph.spec.needs
        for name in bind:
            if name not in needs:
                self._no_need(ref, name, list(needs), at if apart else spot.below("bind", name).key())
        known = {need: given for need, given in bind.items() if need in needs}
        outer, first = OWN if apart else self.first(spot.graph), self._first.setdefault(owner, {})
        for need, given in known.items():
            first.setdefault(need, outer.get(given, given))
        return Use(scope_name(owner), at, graph=ref, bind=known, apart=apart)

    def agent(self, name: str, spot: Spot, *, apart: bool) -> Use | None:
        """The use of an Agent as a tool, named at `spot`; None where there is none, which is told elsewhere."""
        at, owner, found = spot if apart else spot.below("agent"), owner_of(name), self._agents.get(name)
        if not isinstance(found, Agent):
            return None
        if owner not in self._met:
            self._met[owner] = Module(graph_of(name, found))
            self._due.append(owner)
            self._report.stand_for(owner, at)
        return Use(owner, at, graph=owner, apart=True)

    def schemas(self, graph: str) -> Mapping[str, Any]:
        """The shared schemas of a graph by its name. Raises `SchemaRefused`."""
        if graph == self._name:
            return self._met[ROOT].graph.spec.schemas
        if graph in self._around.modules:
            return self._around.modules[graph].graph.spec.schemas
        message, meant = self._no_graph(graph)
        suggestion = (f"graph:{graph}#", f"graph:{meant}#") if meant else None
        raise SchemaRefused(message, suggestion=suggestion, absent=f"TaskGraph {graph}")

    def _missing(self, ref: str, spot: Spot) -> None:
        message, meant = self._no_graph(ref)
        fix = Fix(ref, meant) if meant else None
        self._report.add("REF-MISSING", spot, message, fix=fix, absent=f"TaskGraph {ref}")

    def _no_graph(self, ref: str) -> tuple[str, str | None]:
        known = sorted({*self._around.modules, *self._around.known} - {ref})
        meant = did_you_mean(ref, known)
        hint = f'did you mean "{meant}"?' if meant else f"apply one of that name (there are {listed(known)})"
        return f'there is no TaskGraph "{ref}"; {hint}', meant

    def _no_need(self, ref: str, name: str, needs: list[str], spot: Spot) -> None:
        meant = did_you_mean(name, needs)
        hint = f'did you mean "{meant}"?' if meant else f"its needs are {listed(needs)}"
        message = f'the graph {ref} has no "{name}" in its needs; {hint}'
        self._report.add("FIELD-UNKNOWN", spot, message, fix=Fix(name, meant) if meant else None)

"""Context drawers: what models see beside their prompts, and that it can be had without a race."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from decurion_crds.compile.draft import SCOPE_NAMES, GraphDraft, NodeDraft, ScopeDraft, Site
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compiled import Context as Compiled
from decurion_crds.expressions.syntax import parse_expression
from decurion_crds.findings import did_you_mean, listed
from decurion_crds.v1alpha1.context import Context

ASKING = ("llm", "agent")
"""Kinds of nodes that a model sees something of."""


@dataclass(frozen=True, slots=True)
class ContextDraft:
    """The drawers of a node: the reads of channels by their names, rounds of history, globs of files."""

    ledger: Mapping[str, Site] = field(default_factory=dict)
    history: int = 0
    artefacts: tuple[str, ...] = ()

    def compiled(self) -> Compiled | None:
        if not (self.ledger or self.history or self.artefacts):
            return None
        return Compiled(ledger=tuple(self.ledger), history=self.history, artefacts=self.artefacts)


def assign_contexts(draft: GraphDraft, report: Report) -> None:
    """Give each node that asks a model its drawers. What is refused is in the report."""
    looped = _in_loops(draft)
    for scope in draft.scopes.values():
        for node in scope.nodes.values():
            own = node.model.context
            if node.kind in ASKING:
                node.context = _drawers(scope, node, report, looped=scope.name in looped)
            elif own is not None:
                message = f"context is what a model sees, and a node of kind {node.kind} asks none; remove it"
                report.add("FIELD-UNKNOWN", node.spot.below("context"), message)
    _check_graphs(draft, report)


def _in_loops(draft: GraphDraft) -> frozenset[str]:
    """The scopes that are rounds of a loop, or graphs in one."""
    found: set[str] = set()
    due = deque(_bodies(draft, draft.scopes.values(), "loop"))
    while due:
        scope = due.popleft()
        if scope.name not in found:
            found.add(scope.name)
            due.extend(_bodies(draft, [scope], "graph"))
    return frozenset(found)


def _bodies(draft: GraphDraft, scopes: Iterable[ScopeDraft], kind: str) -> Iterator[ScopeDraft]:
    for scope in scopes:
        for node in scope.nodes.values():
            if node.kind == kind and node.body is not None:
                yield draft.scopes[node.body.scope]


def _drawers(scope: ScopeDraft, node: NodeDraft, report: Report, *, looped: bool) -> ContextDraft:
    spot = node.spot.below("context")
    agent = node.agent.spec.context if node.agent is not None and node.agent.spec is not None else None
    levels: list[tuple[Context | None, Spot | None]] = [
        (node.model.context, spot),
        (agent, node.spot.below("agent", "ref")),
        (scope.context, None),
    ]
    ledger, at = next(((one.ledger, at) for one, at in levels if one and one.ledger is not None), ([], None))
    history, told = next(((one.history, at) for one, at in levels if one and one.history is not None), (None, None))
    files = next((one.artefacts for one, _ in levels if one and one.artefacts is not None), [])
    rounds = history.last if history is not None else 0
    if rounds and not looped:
        if told is spot:
            message = (
                "history is what the node said in earlier rounds, and no loop runs it; remove it, or run the node in a "
                "loop"
            )
            report.add("FIELD-VALUE", spot.below("history"), message)
        rounds = 0
    sites: dict[str, Site] = {}
    for i, name in enumerate(ledger):
        place = spot.below("ledger").at(i) if at is spot else at
        if name in scope.channels:
            source = f"state.{name}"
            where = place or spot.below("ledger")
            sites[name] = Site(where, "scope", parse_expression(source, SCOPE_NAMES), source)
        elif place is not None:
            _tell_missing(name, scope, place, report)
    return ContextDraft(sites, rounds, tuple(dict.fromkeys(files)))


def _tell_missing(name: str, scope: ScopeDraft, spot: Spot, report: Report) -> None:
    meant = did_you_mean(name, scope.channels)
    hint = f"did you mean {meant}?" if meant else f"the channels here are {listed(scope.channels)}"
    report.add("EXPR-FIELD", spot, f"there is no channel {name}; {hint}")


def _check_graphs(draft: GraphDraft, report: Report) -> None:
    """A channel that a graph's context names is one of the graph or of one of its templates."""
    for scope in draft.scopes.values():
        if scope.context is None or not scope.top:
            continue
        own = [one for one in draft.scopes.values() if one.graph == scope.graph]
        known = {name for one in own for name in one.channels}
        for i, name in enumerate(scope.context.ledger or ()):
            if name not in known:
                meant = did_you_mean(name, known)
                hint = f"did you mean {meant}?" if meant else f"the channels here are {listed(sorted(known))}"
                spot = Spot(("spec",), "", scope.graph).below("context", "ledger").at(i)
                report.add("EXPR-FIELD", spot, f"there is no channel {name}; {hint}")

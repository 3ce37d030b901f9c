"""Templates inside templates: that it ends, how much it comes to, and which are used at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from decurion_crds.canonical import canonical
from decurion_crds.compile.agent_tools import is_agent
from decurion_crds.compile.agent_tools import shown as owner_shown
from decurion_crds.compile.draft import GraphDraft, NodeDraft, ScopeDraft, Use
from decurion_crds.compile.finals import FINALLY
from decurion_crds.compile.report import Report, Spot
from decurion_crds.v1alpha1 import TaskGraph

MAX_UNFOLDED = 10_000
"""Most nodes of a graph, or of one branch of a map, with those of all `graph` and `loop` nodes inside, of one round."""
MAX_NESTING = 64
"""Most graphs and templates inside one another."""
MAX_PATH = 1024
"""Longest path of a node in the ledger, in characters."""
_BRANCH = len("[k:]") + 32
_ROUND = len("@10000")
_MARK = len("!output")
_CALL = len("#turn-1000.1000")


def check_templates(draft: GraphDraft, report: Report) -> None:
    """Recursion, size and use of templates. A way back is cut, so that what comes next sees no circle."""
    _check_recursion(draft, report)
    _Sizes(draft, report).check()
    _check_use(draft, report)


def _inner(scope: ScopeDraft) -> list[tuple[NodeDraft, Use]]:
    """The uses of other scopes in a scope and in its `finally`."""
    nodes = [*scope.nodes.values(), *(scope.final.nodes.values() if scope.final is not None else ())]
    return [(node, use) for node in nodes for use in node.uses()]


def _check_recursion(draft: GraphDraft, report: Report) -> None:
    """A template or graph that runs itself, directly or not, has no end. Each circle is told once, and cut, and so is
    what lies too deep.
    """

    def walk(scope: ScopeDraft, path: tuple[str, ...], uses: tuple[Use, ...]) -> None:
        above = 0
        for node, use in _inner(scope):
            name = use.scope
            if name in path:
                start = path.index(name)
                circle, steps = path[start:], (*uses[start:], use)
                if frozenset(circle) not in told:
                    _tell_circle(draft, circle, steps, report)
                told.add(frozenset(circle))
                node.drop(use)
                continue
            if name not in height and len(path) <= MAX_NESTING:
                walk(draft.scopes[name], (*path, name), (*uses, use))
            if height.get(name, MAX_NESTING) < MAX_NESTING:
                above = max(above, height[name] + 1)
            else:
                deep.append(use)
                node.drop(use)
        height[scope.name] = above

    height: dict[str, int] = {}
    """How many scopes lie inside one another below each that was walked."""
    deep: list[Use] = []
    told: set[frozenset[str]] = set()
    for scope in draft.scopes.values():
        if scope.name not in height:
            walk(scope, (scope.name,), ())
    if deep:
        message = f"there are more than {MAX_NESTING} graphs and templates inside one another; run some side by side"
        report.add("SPEC-TOO-LARGE", deep[0].spot, message)


def _tell_circle(draft: GraphDraft, circle: Sequence[str], uses: Sequence[Use], report: Report) -> None:
    """`uses[i]` leads from `circle[i]` to the next. A circle of graphs is the same whichever of them is compiled: it is
    told at the first by name of those that lead to another graph.
    """
    owners = [draft.scopes[name].graph or draft.name for name in circle]
    across = [(owners[i], i) for i, use in enumerate(uses) if use.graph is not None]
    if not across:
        own = [name.rpartition("/")[2] for name in circle]
        shown = " → ".join((*own, own[0]))
        message = f"templates contain one another ({shown}), so there is no end; name another template"
        report.add("CYCLE", uses[-1].spot, message)
        return
    _, first = min(across)
    names = [owners[i % len(uses)] for i in range(first, first + len(uses)) if uses[i % len(uses)].graph is not None]
    shown = " → ".join(map(owner_shown, (*names, names[0])))
    what = "agent" if all(map(is_agent, names)) else "graph"
    message = f"{what}s contain one another ({shown}), so there is no end; name another {what}"
    report.add("CYCLE", uses[first].spot, message)


class _Sizes:
    """What a scope comes to with all below it, each worked out once; None where that is too much, and told."""

    def __init__(self, draft: GraphDraft, report: Report) -> None:
        self._draft = draft
        self._report = report
        self._nodes: dict[str, int | None] = {}
        self._lengths: dict[str, int | None] = {}

    def check(self) -> None:
        for name in self._draft.scopes:
            self._unfolded(name)
            self._longest(name)

    def _unfolded(self, name: str) -> int | None:
        """Nodes of the scope and of the templates that its `graph` and `loop` nodes run."""
        if name not in self._nodes:
            self._nodes[name] = self._count(self._draft.scopes[name])
        return self._nodes[name]

    def _count(self, scope: ScopeDraft) -> int | None:
        total = len(scope.nodes) + (len(scope.final.nodes) if scope.final is not None else 0)
        for node, use in _inner(scope):
            below = self._unfolded(use.scope) if node.kind in ("graph", "loop") else 0
            if below is None:
                return None
            total += below
            if total > MAX_UNFOLDED:
                message = (
                    f"with the templates and graphs inside, there are more than {MAX_UNFOLDED:,} nodes here; map over "
                    "a list, or use fewer of them inside one another"
                )
                self._report.add("SPEC-TOO-LARGE", use.spot, message)
                return None
        return total

    def _longest(self, name: str) -> int | None:
        """Characters of the longest path below the scope, from its own slash on."""
        if name not in self._lengths:
            self._lengths[name] = self._measure(self._draft.scopes[name])
        return self._lengths[name]

    def _measure(self, scope: ScopeDraft) -> int | None:
        longest = _MARK
        for node in scope.nodes.values():
            inside = [self._longest(use.scope) for use in node.uses()]
            if None in inside:
                return None
            below = max((length for length in inside if length is not None), default=_MARK)
            before = len("/")
            more = {"map": _BRANCH, "loop": _ROUND, "agent": _CALL}.get(node.kind, 0)
            length = before + len(node.name) + more + below
            longest = max(longest, length)
            if length > MAX_PATH:
                message = (
                    f"paths in the ledger get longer than {MAX_PATH:,} characters here; use shorter names, or fewer "
                    "templates inside one another"
                )
                self._report.add("SPEC-TOO-LARGE", node.spot, message)
                return None
        if scope.final is not None:
            last = self._longest(scope.final.name)
            return None if last is None else max(longest, len(f"/{FINALLY}") + last)
        return longest


def _check_use(draft: GraphDraft, report: Report) -> None:
    """Warns of templates that are never used."""
    nodes = [node for scope in draft.scopes.values() for node in scope.nodes.values()]
    used = {use.scope for node in nodes for use in node.uses()}
    if any(node.kind in ("map", "graph", "loop") and node.body is None for node in nodes):
        return
    if any(node.agent is not None and node.broken for node in nodes):
        return
    for scope in draft.scopes.values():
        if scope.name and scope.outer is None and scope.name not in used:
            message = f"nothing uses the template {scope.name.rpartition('/')[2]}; use it, or remove it"
            report.add("UNUSED", scope.spot, message, severity="warning")


def check_schemas(graph: TaskGraph, graphs: Iterable[TaskGraph], report: Report) -> None:
    """Warns of shared schemas that none of the graphs uses, unless one may be meant where a schema is
    refused.
    """
    if any(finding.code == "SCHEMA" for finding in report.findings):
        return
    spec = graph.to_json()["spec"]
    beside = [canonical(other.to_json()["spec"]) for other in graphs if graph.spec.schemas and other is not graph]
    for name in graph.spec.schemas:
        if any(f'"graph:{graph.name}#/schemas/{name}"'.encode() in text for text in beside):
            continue
        others = {key: value for key, value in spec.get("schemas", {}).items() if key != name}
        text = canonical({**spec, "schemas": others})
        if f'"{name}"'.encode() not in text and f'"#/schemas/{name}"'.encode() not in text:
            spot = Spot(("spec",), "").below("schemas", name)
            report.add("UNUSED", spot, f"no schema uses {name}; use it, or remove it", severity="warning")

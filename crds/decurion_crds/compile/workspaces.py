"""Files in a graph: which node may write what, and that no two do at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from decurion_crds.compile.builtin import WORKSPACE, WRITING
from decurion_crds.compile.draft import GraphDraft, NodeDraft, ScopeDraft, Site
from decurion_crds.compile.order import Order
from decurion_crds.compile.report import Report
from decurion_crds.compiled import CONFLICTS, Schema
from decurion_crds.compiled import NodeWorkspace as Compiled
from decurion_crds.compiled import RunWorkspace as CompiledRun
from decurion_crds.expressions.shapes import nullable, record
from decurion_crds.globs import apart, overlap
from decurion_crds.v1alpha1.workspace import Artefact, RunWorkspace

_INTEGER: Schema = {"type": "integer"}
_TEXT: Schema = {"type": "string"}
_SIDE = record(
    {
        "items": {"type": "array", "items": _INTEGER},
        "kind": {"type": "string", "enum": ["file", "exec", "link", "folder", "absent"]},
        "folder": _TEXT,
        "size": _INTEGER,
        "sha256": _TEXT,
    },
    ["items", "kind", "folder"],
)
CONFLICTS_OUTPUT: Schema = {
    "type": "array",
    "items": record(
        {
            "path": _TEXT,
            "base": nullable(record({"kind": _TEXT, "size": _INTEGER})),
            "sides": {"type": "array", "items": _SIDE},
        }
    ),
}
"""The schema of the conflicts that a map collects."""


MOST_WORK = 20_000_000
"""How much is compared in one scope, as the lengths of two globs multiplied: some seconds at worst."""


class Writes:
    """Which paths nodes may write, themselves or in what they run."""

    def __init__(self, draft: GraphDraft) -> None:
        self._draft = draft
        self._known: dict[tuple[str, str], Compiled | None] = {}

    def of(self, scope: ScopeDraft, node: NodeDraft) -> Compiled | None:
        """What a node has of the workspace; None where it has nothing to do with it."""
        key = (scope.name, node.name)
        if key not in self._known:
            self._known[key] = None  # a circle, which is told elsewhere, ends here
            self._known[key] = self._inside(node) if node.template is not None else _own(node)
        return self._known[key]

    def names(self, scope: ScopeDraft) -> frozenset[str]:
        """The nodes of a scope that may change files."""
        return frozenset(n.name for n in scope.nodes.values() if (one := self.of(scope, n)) is not None and one.write)

    def _inside(self, node: NodeDraft) -> Compiled | None:
        body = self._draft.scopes.get(node.template or "")
        found = (
            [one for inner in (body.nodes.values() if body else ()) if (one := self.of(body, inner))] if body else []
        )
        final = body.final if body is not None else None
        if not found and not (final and any(self.of(final, inner) for inner in final.nodes.values())):
            return None
        write = tuple(dict.fromkeys(glob for one in found for glob in one.write))
        block = node.model.map.workspace if node.model.map is not None else None
        if write and block is not None and block.merge == "namespace":
            write = (f"{node.name}/**",)
        if write and block is not None and block.on_conflict == "collect":
            write = (*write, f"{CONFLICTS}/{node.name}/**")
        return Compiled(read=("**",), write=write)


def _own(node: NodeDraft) -> Compiled | None:
    written = node.model.workspace
    if not _calls(node):
        drawn = node.context.artefacts if node.context is not None else ()
        return Compiled(read=drawn) if drawn else None
    read = tuple(written.read) if written is not None and written.read is not None else ("**",)
    return Compiled(read=read, write=tuple(written.write) if written is not None else ())


def _calls(node: NodeDraft) -> frozenset[str]:
    """The tools of the workspace that a node may call."""
    if node.model.tool is not None:
        return frozenset({node.model.tool.name} if node.model.tool.server == WORKSPACE else ())
    return node.agent.calls(WORKSPACE) if node.agent is not None else frozenset()


def check_workspaces(
    draft: GraphDraft, orders: Mapping[str, Order], report: Report, *, artefacts: Sequence[Artefact] = ()
) -> Writes:
    """What is refused is in the report. `artefacts` are those of the graph that is compiled."""
    writes = Writes(draft)
    for name, scope in draft.scopes.items():
        for node in scope.nodes.values():
            _check_node(scope, node, writes, report)
        _check_finally(scope, writes, report)
        _check_races(scope, orders[name], writes, report)
    _check_tools(draft, writes, report)
    _check_source(draft.root, report)
    _check_artefacts(draft.root, artefacts, writes, report)
    return writes


def _check_node(scope: ScopeDraft, node: NodeDraft, writes: Writes, report: Report) -> None:
    written, calls = node.model.workspace, _calls(node)
    if written is not None and not calls:
        inner = node.template is not None
        where = "write it into the nodes that it runs" if inner else "call tools of the server workspace, or remove it"
        message = f"a node of kind {node.kind} touches no files itself; {where}"
        report.add("FIELD-UNKNOWN", node.spot.below("workspace"), message)
    elif node.model.tool is not None and calls & WRITING and (written is None or not written.write):
        message = f"{node.model.tool.name} changes files, and workspace.write names none; add it, as in write: [src/**]"
        report.add("FIELD-MISSING", node.spot, message)
    block = node.model.map
    found = writes.of(scope, node)
    if block is not None and block.workspace is not None and (found is None or not found.write):
        message = "nothing that its items run writes files, so there is nothing to merge; remove it"
        report.add("FIELD-VALUE", node.spot.below("map", "workspace"), message)


def _check_finally(scope: ScopeDraft, writes: Writes, report: Report) -> None:
    """What the `finally` of a template writes is in no version that anybody sees."""
    if scope.outer is None or not scope.outer.name:
        return
    for node in scope.nodes.values():
        found = writes.of(scope, node)
        if found is not None and found.write:
            spot = node.spot.below("workspace") if node.model.workspace else node.spot
            message = "nobody sees what finally of a template writes; write it in a node of the template, or only read"
            report.add("FIELD-VALUE", spot, message)


def _check_races(scope: ScopeDraft, order: Order, writes: Writes, report: Report) -> None:
    found = {node.name: one.write for node in scope.nodes.values() if (one := writes.of(scope, node)) and one.write}
    work = 0
    told: set[str] = set()
    for first, second in combinations(found, 2):
        if second in told or not order.unordered(first, second):
            continue
        near = [(a, b) for a in found[first] for b in found[second] if not apart(a, b)]
        work += sum(len(a) * len(b) for a, b in near)
        if work > MOST_WORK:
            message = "its nodes write by too many globs to tell whether two meet; give each node a folder of its own"
            report.add("FIELD-VALUE", scope.spot, message)
            return
        meeting = next(((a, b) for a, b in near if overlap(a, b)), None)
        if meeting is not None:
            told.add(second)
            what = " and ".join(dict.fromkeys(meeting))
            message = (
                f"{first} and {second} write the same files ({what}) in no order, so the result depends on time; order "
                "them by after, or let each write paths of its own"
            )
            node = scope.nodes[second]
            report.add("WRITE-RACE", node.spot.below("workspace") if node.model.workspace else node.spot, message)


def _check_tools(draft: GraphDraft, writes: Writes, report: Report) -> None:
    """A graph that is a tool of an agent has no files of its own."""

    def touched(scope: ScopeDraft, seen: set[str]) -> Iterator[str]:
        seen.add(scope.name)
        if scope.final is not None:
            yield from touched(scope.final, seen)
        for node in scope.nodes.values():
            if writes.of(scope, node) is not None:
                yield node.name
            for use in node.uses():
                if use.scope in draft.scopes and use.scope not in seen:
                    yield from touched(draft.scopes[use.scope], seen)

    for scope in draft.scopes.values():
        for node in scope.nodes.values():
            for use in node.agent.uses() if node.agent is not None else ():
                name = next(touched(draft.scopes[use.scope], set()), None) if use.scope in draft.scopes else None
                if name is not None:
                    message = (
                        f"the {use.shown} touches files ({name}), and as a tool of an agent such a graph is not built "
                        "yet; give the agent tools of the server workspace"
                    )
                    report.add("NOT-SUPPORTED", use.spot, message)


def _check_source(root: ScopeDraft, report: Report) -> None:
    site = root.source
    if site is None or _place(site) is not None:
        return
    message = "the files come from one place that is known when the run begins; write a text, or a name of the input"
    report.add("FIELD-VALUE", site.spot, message)


def _check_artefacts(root: ScopeDraft, artefacts: Sequence[Artefact], writes: Writes, report: Report) -> None:
    if not artefacts or any(writes.of(root, node) is not None for node in root.nodes.values()):
        return
    message = "no node of the graph has anything to do with files, so none is left when it ends; remove them"
    report.add("FIELD-VALUE", root.spot.below("workspace", "artefacts"), message)


def _place(site: Site) -> dict[str, object] | None:
    path, tree = site.parsed.expr.path, site.parsed.tree.body
    if path is not None and path[0] == "input":
        return {"path": path}
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        return {"uri": tree.value}
    return None


def run_workspace(written: RunWorkspace | None, site: Site | None) -> CompiledRun | None:
    """What the graph says of the files of a run."""
    if written is None:
        return None
    place = _place(site) if site is not None else None
    artefacts = [{"name": one.name, "path": one.path, "type": one.type} for one in written.artefacts]
    given = {"maxBytes": written.max_bytes, "maxFiles": written.max_files, "artefacts": artefacts}
    return CompiledRun.model_validate({**given, **(place or {})})

"""Which values are sensitive: the inputs that a graph names, what nodes give that say so, and all that reads these.

What a node gives is sensitive when something that it reads is, all of it, unless it says `sensitive: false`. What runs
a template gives what that gives. That something was skipped, how many items a list has and how long it took is not
protected. What would be stored or shown in clear is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from decurion_crds.compile.draft import GraphDraft, NodeDraft, ScopeDraft, Site
from decurion_crds.compile.report import Report
from decurion_crds.compile.workspaces import Writes
from decurion_crds.findings import did_you_mean, listed

Sealed = Literal["input", "all"]


class Taints:
    """What is sensitive in a draft. Worked out scope by scope until nothing is added."""

    def __init__(self, draft: GraphDraft) -> None:
        self._draft = draft
        self.inputs: dict[str, set[str]] = {name: set(scope.sensitive) for name, scope in draft.scopes.items()}
        """Scope → its inputs that are sensitive."""
        self.channels: dict[str, set[str]] = {name: set() for name in draft.scopes}
        self.outputs: set[str] = set()
        """Scopes whose output is sensitive."""
        self._given: set[tuple[str, str]] = set()
        self._any = any(self.inputs.values()) or any(
            node.model.sensitive for scope in draft.scopes.values() for node in scope.nodes.values()
        )
        size = -1
        while self._any and size != self._size():
            size = self._size()
            for scope in draft.scopes.values():
                self._scope(scope)

    def _size(self) -> int:
        found = (*self.inputs.values(), *self.channels.values())
        return sum(map(len, found)) + len(self.outputs) + len(self._given)

    def gives(self, scope: ScopeDraft, name: str) -> bool:
        """Whether what the node `name` gives is sensitive, as nodes of `scope` see it."""
        home = scope if name in scope.nodes or scope.outer is None else scope.outer
        return (home.name, name) in self._given

    def takes(self, scope: ScopeDraft, node: NodeDraft) -> bool:
        """Whether something that the node reads is sensitive."""
        below = node.template is not None and node.template in self.outputs
        return any(self._site(scope, site, own=below) for site in node.scope_sites())

    def sealed(self, scope: ScopeDraft, node: NodeDraft) -> Sealed | None:
        """What of a node is encrypted: all, or what it reads."""
        if self.gives(scope, node.name):
            return "all"
        return "input" if self.takes(scope, node) else None

    def why(self, scope: ScopeDraft, sites: Iterable[Site]) -> str:
        """The first sensitive thing that one of these reads; empty where there is none."""
        return next((path for site in sites for path in self._paths(scope, site, own=False)), "")

    # ------------------------------------------------------------------ how it spreads

    def _scope(self, scope: ScopeDraft) -> None:
        home = scope.outer or scope
        if scope is not home:
            self.inputs[scope.name] = self.inputs[home.name]
            self.channels[scope.name] = self.channels[home.name]
        for node in scope.nodes.values():
            self._node(scope, node)
        if any(self._site(scope, site, own=False) for site in scope.output.values()):
            self.outputs.add(scope.name)

    def _node(self, scope: ScopeDraft, node: NodeDraft) -> None:
        declared = node.model.sensitive
        takes = self.takes(scope, node)
        if node.body is not None:
            self._body(scope, node, node.body.scope)
            gives = node.body.scope in self.outputs or self._beside(scope, node)
        else:
            gives = takes
        for use in node.agent.uses() if node.agent is not None else ():
            if use.scope in self.outputs:
                gives = True
            if takes or gives:
                inner = self._draft.scopes.get(use.scope)
                self._add(use.scope, inner.input.get("properties", ()) if inner is not None else ())
        if (gives and declared is not False) or declared:
            self._given.add((scope.name, node.name))
        for channel, site in node.writes.items():
            own = self.gives(scope, node.name)
            if declared is not False and (own or self._site(scope, site, own=own)):
                self.channels[scope.name].add(channel)

    def _beside(self, scope: ScopeDraft, node: NodeDraft) -> bool:
        """Whether something sensitive stands for the output of what it runs, or is written beside it."""
        sites = (*(node.otherwise or {}).values(), *node.writes.values())
        return any(self._site(scope, site, own=False) for site in sites)

    def _body(self, scope: ScopeDraft, node: NodeDraft, body: str) -> None:
        """What comes into the scope that a node runs."""
        self._add(body, (name for name, site in node.with_.items() if self._site(scope, site, own=False)))
        self._add(body, (name for name, load in node.load.items() if self._site(scope, load.site, own=False)))
        again = body in self.outputs
        self._add(body, (name for name, site in node.next.items() if self._site(scope, site, own=again)))
        block = node.model.map
        if block is not None:
            items = [site for site in (node.items, node.jsonl, node.prefix) if site is not None]
            if node.model.sensitive or any(self._site(scope, site, own=False) for site in items):
                self._add(body, (block.as_,))

    def _add(self, scope: str, names: Iterable[str]) -> None:
        if scope in self.inputs:
            self.inputs[scope].update(names)

    def _site(self, scope: ScopeDraft, site: Site, *, own: bool) -> bool:
        return any(True for _ in self._paths(scope, site, own=own))

    def _paths(self, scope: ScopeDraft, site: Site, *, own: bool) -> Iterator[str]:
        """What is sensitive of what an expression of the scope reads. `own`: what it has as `output` is."""
        for path in site.parsed.expr.reads:
            root, _, rest = path.partition(".")
            name = rest.partition(".")[0]
            if root == "output" and own:
                yield path
            elif root in ("input", "state"):
                held = (self.inputs if root == "input" else self.channels)[(scope.outer or scope).name]
                if name in held or (not name and held):
                    yield f"{root}.{name or sorted(held)[0]}"
            elif root == "nodes":
                names = [name] if name else [*scope.nodes, *(scope.outer.nodes if scope.outer is not None else ())]
                yield from (f"nodes.{one}" for one in names if self.gives(scope, one))


def check_sensitive(draft: GraphDraft, writes: Writes, report: Report) -> Taints:
    """What is sensitive; what is refused for it is in the report."""
    for scope in draft.scopes.values():
        _check_names(scope, report)
    taints = Taints(draft)
    for scope in draft.scopes.values():
        for node in scope.nodes.values():
            _check_approval(scope, node, taints, report)
            _check_key(scope, node, taints, report)
            _check_files(scope, node, taints, writes, report)
    return taints


def _check_names(scope: ScopeDraft, report: Report) -> None:
    known: Mapping[str, object] = scope.input.get("properties", {})
    for i, name in enumerate(scope.sensitive):
        if name not in known:
            meant = did_you_mean(name, known)
            hint = f'did you mean "{meant}"?' if meant else f"it has {listed(known)}" if known else "it has none"
            report.add("SENSITIVE", scope.spot.below("sensitive").at(i), f'there is no input "{name}"; {hint}')


def _check_approval(scope: ScopeDraft, node: NodeDraft, taints: Taints, report: Report) -> None:
    if node.kind != "approval":
        return
    spot = node.spot
    if node.model.sensitive:
        message = (
            "what people answer stands in an Approval, in clear for all who may read it; remove it, and ask for "
            "nothing sensitive"
        )
        report.add("SENSITIVE", spot.below("sensitive"), message)
    elif node.model.sensitive is None and (read := taints.why(scope, node.scope_sites())):
        message = (
            f"what people are asked is shown in the status of the run, and this reads {read}, which is sensitive; ask "
            "without it, or say sensitive: false where nothing of it is shown"
        )
        report.add("SENSITIVE", spot.below("approval"), message)


def _check_key(scope: ScopeDraft, node: NodeDraft, taints: Taints, report: Report) -> None:
    block = node.model.map
    if block is None or node.key is None or node.body is None:
        return
    read = taints.why(scope, [node.key])
    roots = {path.partition(".")[0] for path in node.key.parsed.expr.reads}
    if not read and block.as_ in roots and block.as_ in taints.inputs.get(node.body.scope, ()):
        read = block.as_
    if read:
        message = (
            f"keys of items stand in paths, and this reads {read}, which is sensitive; remove the key: items then go "
            "by their positions"
        )
        report.add("SENSITIVE", node.spot.below("map", "key"), message)


def _check_files(scope: ScopeDraft, node: NodeDraft, taints: Taints, writes: Writes, report: Report) -> None:
    if node.template is not None or taints.sealed(scope, node) is None:
        return
    found = writes.of(scope, node)
    if found is not None and found.write:
        read = taints.why(scope, node.scope_sites()) or "what it gives"
        message = (
            f"files of a run are not encrypted, and this node works with something sensitive ({read}) and writes "
            "files; write them in another node, or give it nothing sensitive"
        )
        report.add("SENSITIVE", node.spot.below("workspace"), message)

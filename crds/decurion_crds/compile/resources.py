"""Whether what nodes name exists, under each binding of their graphs, and whether what is bound does what is asked.

A graph is typed once: by the resource that has the name of a need, else by what its first use binds. Any other server
that is bound lists the same tools, takes what that one takes, and gives what that one gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from decurion_crds.compile.agent_tools import shown
from decurion_crds.compile.agents import server_tools
from decurion_crds.compile.builtin import BUILTIN
from decurion_crds.compile.draft import GraphDraft, NodeDraft, ScopeDraft, Use
from decurion_crds.compile.fallbacks import Fallbacks
from decurion_crds.compile.refs import MAX_INSTANCES, OWN, ROOT, Env, inside, instance_name
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compile.tools import find_tool, misfit
from decurion_crds.findings import Fix, did_you_mean, listed
from decurion_crds.v1alpha1 import MCPServer

ARTICLE = {"Agent": "an Agent", "LLM": "an LLM", "MCPServer": "an MCPServer"}
Places: TypeAlias = Mapping[str, Spot]
"""Where it is written what the needs of a scope stand for."""


def resource_refs(node: NodeDraft) -> Iterator[tuple[str, str, Spot]]:
    """Kind, name and place of the resources that a node's own block refers to."""
    if node.model.llm is not None:
        yield "LLM", node.model.llm.ref, node.spot.below("llm", "ref")
    if node.model.tool is not None:
        yield "MCPServer", node.model.tool.server, node.spot.below("tool", "server")
    if node.agent is not None:
        yield from node.agent.refs


def check_resources(draft: GraphDraft, report: Report) -> None:
    """That every resource exists that a node refers to, in each of the uses of its graph, and that needs are used."""
    _Check(draft, report).all()


class _Check:
    def __init__(self, draft: GraphDraft, report: Report) -> None:
        self._draft = draft
        self._report = report
        self._used = _used(draft)
        self._fallbacks = Fallbacks(draft, report)

    def all(self) -> None:
        draft = self._draft
        due: deque[tuple[ScopeDraft, Env, Places]] = deque(
            (scope, OWN, {}) for scope in draft.scopes.values() if scope.graph == ROOT
        )
        seen: set[str] = set()
        self._alone()
        while due:
            scope, env, places = due.popleft()
            if (name := instance_name(scope, env)) in seen:
                continue
            seen.add(name)
            if scope.final is not None:
                due.append((scope.final, env, places))
            for node in scope.nodes.values():
                self._node(scope, node, env, places)
                for use in node.uses():
                    self._bound(scope, use, env)
                    due.append((draft.scopes[use.scope], inside(use, env), _below(use, env, places)))
                    if len(seen) == MAX_INSTANCES:
                        message = (
                            f"with every graph under every binding there are more than {MAX_INSTANCES:,} scopes; bind "
                            "fewer different names"
                        )
                        self._report.add("SPEC-TOO-LARGE", use.spot, message)
                        return
        self._needs()

    def _alone(self) -> None:
        """That the needs of the graph that is compiled stand for something where nobody binds them."""
        for need, kind in self._draft.needs[ROOT].items():
            spot = Spot(("spec",), "", ROOT).below("needs", need)
            if need in BUILTIN:
                message = f"the server {need} is built in and always the same; remove it, or rename the need"
                self._report.add("FIELD-VALUE", spot, message)
            elif self._due(ROOT, need, kind):
                remedy = f"bind it where the graph is used, or apply {ARTICLE[kind]} of that name"
                message = f'there is no {kind} "{need}"; {remedy}'
                self._report.add("REF-MISSING", spot, message, absent=f"{kind} {need}")

    def _due(self, graph: str, need: str, kind: str) -> bool:
        """Whether a need that is not bound stands for nothing, and a node uses it."""
        return need in self._used[graph] and need not in self._draft.resources[kind]

    def _node(self, scope: ScopeDraft, node: NodeDraft, env: Env, places: Places) -> None:
        apart = node.agent is not None and node.agent.apart
        for kind, ref, spot in resource_refs(node):
            if not apart:
                self._kind(scope, kind, ref, spot)
            if apart or (ref not in env and ref not in self._draft.needs[scope.graph]):
                self._exists(kind, ref, spot)
            if kind == "LLM":
                bound = not apart and ref in env
                self._fallbacks.check(env[ref] if bound else ref, places.get(ref, spot) if bound else spot)
        if not apart:
            self._fits(scope, node, env, places)

    def _fits(self, scope: ScopeDraft, node: NodeDraft, env: Env, places: Places) -> None:
        """That the servers that are bound list the tools that a node calls, and that these fit."""
        servers = self._draft.resources["MCPServer"]
        if node.agent is not None and any(ref in env for ref in node.agent.servers()):
            server_tools(node.agent.given, servers, self._report, env=env, places=places)
        if node.model.tool is None or node.tool is None or node.tool.tool is None:
            return
        ref = node.model.tool.server
        name, spot = env.get(ref, ref), places.get(ref, node.spot)
        server = servers.get(name)
        if name == node.tool.tool.server or name in BUILTIN or not isinstance(server, MCPServer):
            return
        other = find_tool(name, server, node.tool.tool.name, spot, self._report, written=False)
        why = misfit(node.tool, other, node.output) if other is not None else None
        if why is not None:
            place = f"{shown(scope.graph)}.{node.name}" if scope.graph else node.name
            message = f"the tool {node.tool.tool.name} of {name} does not fit where {place} calls it: {why}"
            self._report.add("EXPR-TYPE", spot, f"{message}; bind another server, or correct what this one declares")

    def _bound(self, scope: ScopeDraft, use: Use, env: Env) -> None:
        if use.graph is None:
            return
        inner = self._draft.scopes[use.scope].graph
        for need, kind in self._draft.needs[inner].items():
            name, spot = use.bind.get(need), _bind_spot(use, need)
            if name is None:
                if inner != ROOT and self._due(inner, need, kind):
                    self._unbound(use, need, kind)
                continue
            if not use.apart:
                self._kind(scope, kind, name, spot)
            if kind == "MCPServer" and name in BUILTIN:
                message = f"the server {name} is built in and cannot be bound; bind one that a resource declares"
                self._report.add("FIELD-VALUE", spot, message)
            elif use.apart or (name not in env and name not in self._draft.needs[scope.graph]):
                self._exists(kind, name, spot)

    def _unbound(self, use: Use, need: str, kind: str) -> None:
        message = (
            f"the {use.shown} needs {ARTICLE[kind]} {need}, and there is none of that name; bind one, as in bind: "
            f"{{{need}: NAME}}"
        )
        self._report.add("REF-MISSING", use.spot, message, absent=f"{kind} {need}")

    def _kind(self, scope: ScopeDraft, kind: str, name: str, spot: Spot) -> None:
        declared = self._draft.needs[scope.graph].get(name)
        if declared is not None and declared != kind:
            message = f"{name} is {ARTICLE[declared]} in needs, and {ARTICLE[kind]} is due here"
            self._report.add("FIELD-VALUE", spot, f"{message}; name another, or correct needs")

    def _exists(self, kind: str, name: str, spot: Spot) -> None:
        if name in self._draft.resources[kind]:
            return
        known = self._draft.known[kind]
        meant = did_you_mean(name, known)
        hint = (
            f'did you mean "{meant}"?' if meant else f"apply {ARTICLE[kind]} of that name (there are {listed(known)})"
        )
        message = f'there is no {kind} "{name}"; {hint}'
        fix = Fix(name, meant) if meant else None
        self._report.add("REF-MISSING", spot, message, fix=fix, absent=f"{kind} {name}")

    def _needs(self) -> None:
        misspelt = {finding.graph or ROOT for finding in self._report.findings if finding.absent is not None}
        for graph, needs in self._draft.needs.items():
            for name in needs:
                if name not in self._used[graph] and graph not in misspelt:
                    spot = Spot(("spec",), "", graph).below("needs", name)
                    message = f"no node uses {name}, so binding it changes nothing; use it, or remove it from needs"
                    self._report.add("UNUSED", spot, message, severity="warning")


def _used(draft: GraphDraft) -> dict[str, set[str]]:
    """The names of resources in each graph that it uses itself or passes on."""
    used: dict[str, set[str]] = {graph: set() for graph in draft.needs}
    for scope in draft.scopes.values():
        for node in scope.nodes.values():
            if node.agent is None or not node.agent.apart:
                used[scope.graph] |= {ref for _, ref, _ in resource_refs(node)}
            used[scope.graph] |= {name for use in node.uses() if not use.apart for name in use.bind.values()}
    return used


def _bind_spot(use: Use, need: str) -> Spot:
    return use.spot if use.apart else use.spot.beside("bind").below(need)


def _below(use: Use, env: Env, places: Places) -> Places:
    """Where it is written what the needs of the scope of a use stand for."""
    if use.graph is None:
        return places
    passed = {} if use.apart else {need: places[name] for need, name in use.bind.items() if name in env}
    return {need: passed.get(need, _bind_spot(use, need)) for need in use.bind}

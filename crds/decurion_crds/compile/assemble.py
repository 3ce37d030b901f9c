"""Third pass: the parts of an accepted graph, put together with their digests."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.compile.approvals import approval_of
from decurion_crds.compile.budgets import agent_limits, least, limits_of, node_limits, watched
from decurion_crds.compile.budgets import seconds as seconds_of
from decurion_crds.compile.digest import node_digest, scope_digest
from decurion_crds.compile.draft import SCOPE_NAMES, ChannelDraft, GraphDraft, NodeDraft, ScopeDraft, Site, Use
from decurion_crds.compile.fallbacks import chain
from decurion_crds.compile.files import load_of
from decurion_crds.compile.infer import Typed
from decurion_crds.compile.order import Order
from decurion_crds.compile.refs import OWN, Env, inside, instance_name
from decurion_crds.compile.sensitive import Taints
from decurion_crds.compile.tools import ToolDraft
from decurion_crds.compile.workspaces import Writes, run_workspace
from decurion_crds.compiled import (
    AgentCall,
    Channel,
    CompiledGraph,
    ExampleMessage,
    Expr,
    GraphBlock,
    Limits,
    LlmCall,
    LoopBlock,
    MapBlock,
    Node,
    NodeKind,
    Retry,
    Scope,
    SwitchBlock,
    SwitchCase,
)
from decurion_crds.expressions.syntax import shortest
from decurion_crds.v1alpha1 import TaskGraphSpec

_UNBOUNDED = 604_800.0
TIMEOUTS = {
    "transform": 1.0,
    "switch": 1.0,
    "approval": 1.0,
    "code": 30.0,
    "llm": 600.0,
    "agent": 600.0,
    "map": _UNBOUNDED,
    "graph": _UNBOUNDED,
    "loop": _UNBOUNDED,
}
"""Seconds of one try where the node says nothing. Map, graph and loop have no time of their own: they get the bound of
the field.
"""


def assemble(
    draft: GraphDraft, orders: Mapping[str, Order], typed: Typed, writes: Writes, taints: Taints, spec: TaskGraphSpec
) -> tuple[CompiledGraph, dict[str, str]]:
    """The compiled graph of a draft without errors, and of each of its scopes the name in the draft."""
    assembly = _Assembly(draft, orders, typed, writes, taints, spec)
    return assembly.graph(), assembly.origins


class _Assembly:
    """Puts the parts of an accepted graph together."""

    def __init__(
        self,
        draft: GraphDraft,
        orders: Mapping[str, Order],
        typed: Typed,
        writes: Writes,
        taints: Taints,
        spec: TaskGraphSpec,
    ) -> None:
        self._taints = taints
        self._spec_of_graph = spec
        self._writes = writes
        self._draft = draft
        self._orders = orders
        self._typed = typed
        self._specs: dict[str, dict[str, object]] = {}
        self._done: dict[str, Scope] = {}
        self.origins: dict[str, str] = {}

    def graph(self) -> CompiledGraph:
        root = self._scope(self._draft.root, OWN)
        if self._draft.root.final is not None:
            self._scope(self._draft.root.final, OWN)
        used = {name: scope for name, scope in sorted(self._done.items()) if name}
        return CompiledGraph(
            name=self._draft.name,
            root=root,
            templates=used,
            llms=self._specs_of(used, root),
            servers=self._servers_of(used, root),
            limits=limits_of(self._spec_of_graph.limits) or Limits(),
            workspace=run_workspace(self._spec_of_graph.workspace, self._draft.root.source),
        )

    def _specs_of(self, templates: Mapping[str, Scope], root: Scope) -> dict[str, dict[str, object]]:
        named = {node.model for scope in (root, *templates.values()) for node in scope.nodes if node.model is not None}
        return {name: self._spec(name) for name in sorted({name for one in named for name in self._chain(one)})}

    def _servers_of(self, templates: Mapping[str, Scope], root: Scope) -> dict[str, dict[str, object]]:
        """The specs of servers without their tools: of these, what is called stands in its node."""
        nodes = [node for scope in (root, *templates.values()) for node in scope.nodes]
        named = sorted({server for node in nodes for server in node.servers})
        specs = {name: self._draft.resources["MCPServer"][name].spec.to_json() for name in named}
        return {name: {key: value for key, value in spec.items() if key != "tools"} for name, spec in specs.items()}

    def _chain(self, name: str) -> tuple[str, ...]:
        return chain(name, self._draft.resources["LLM"])

    def _spec(self, name: str) -> dict[str, object]:
        if name not in self._specs:
            self._specs[name] = self._draft.resources["LLM"][name].spec.to_json()
        return self._specs[name]

    def _use(self, use: Use, env: Env) -> tuple[str, Scope]:
        """The scope of a use, with its name in the compiled graph, from where names stand for `env`."""
        draft, below = self._draft.scopes[use.scope], inside(use, env)
        return instance_name(draft, below), self._scope(draft, below)

    def _scope(self, draft: ScopeDraft, env: Env) -> Scope:
        """The compiled scope; templates that nothing reaches are left out."""
        name = instance_name(draft, env)
        if name in self._done:
            return self._done[name]
        order = self._orders[draft.name]
        nodes = tuple(self._node(draft, node, order, env) for node in draft.nodes.values())
        sealed = self._taints.channels[draft.name]
        channels = [_channel(channel, sealed=channel.name in sealed) for channel in draft.channels.values()]
        final = self._final(draft, env)
        limits = limits_of(draft.limits) if draft is not self._draft.root else None
        scope = Scope.model_validate(
            {
                "inputSchema": draft.input,
                "channels": channels,
                "nodes": nodes,
                "order": order.names,
                "output": _exprs(draft.output),
                "outputSchema": self._typed.scopes[draft.name],
                "leaf": final is None and limits is None and all(self._leaf(node) for node in nodes),
                "final": final,
                "limits": limits,
                "sealedInput": bool(self._taints.inputs[draft.name]),
                "sealedOutput": draft.name in self._taints.outputs,
            }
        )
        digest = scope_digest(scope, final=self._done[final] if final is not None else None)
        self._done[name] = scope.model_copy(update={"digest": digest})
        self.origins[name] = draft.name
        return self._done[name]

    def _final(self, draft: ScopeDraft, env: Env) -> str | None:
        """The scope of the `finally` of a scope that is not the root, by its name in the compiled graph."""
        if draft.final is None or draft is self._draft.root:
            return None
        self._scope(draft.final, env)
        return instance_name(draft.final, env)

    def _leaf(self, node: Node) -> bool:
        if node.map is not None or node.approval is not None or node.join is not None or watched(node):
            return False
        if node.context is not None and node.context.history:
            return False
        return all(self._done[name].leaf for name in node.inner)

    def _node(self, scope: ScopeDraft, draft: NodeDraft, order: Order, env: Env) -> Node:
        key = (scope.name, draft.name)
        template, inner = self._use(draft.body, env) if draft.body is not None else ("", None)
        edges = order.edges[draft.name]
        model = draft.model
        tool = self._tool(draft, env)
        body = self._draft.scopes[draft.body.scope] if draft.body is not None else None
        seconds = seconds_of(draft, _seconds(draft.kind, tool), body)
        node = Node.model_validate(
            {
                "name": draft.name,
                "kind": draft.kind,
                "after": [name for name in scope.nodes if name in edges],
                "control": draft.after,
                "choice": draft.choice,
                "parents": [name for name in scope.nodes if name in edges and edges[name].data],
                "join": {"racers": draft.race.racers, "count": draft.race.count} if draft.race is not None else None,
                "reads": _reads(draft),
                "when": _expr(draft.when),
                "with": _exprs(draft.with_),
                "load": {name: load_of(load) for name, load in draft.load.items()},
                "otherwise": _exprs(draft.otherwise) if draft.otherwise is not None else None,
                "output": self._typed.nodes[key],
                "writes": _exprs(draft.writes),
                "timeoutSeconds": seconds,
                "retry": _retry(draft),
                "onFailure": model.on_failure or "fail",
                "workspace": self._writes.of(scope, draft),
                "limits": node_limits(draft),
                "context": draft.context.compiled() if draft.context is not None else None,
                "transform": _exprs(draft.transform) if draft.kind == "transform" else None,
                "code": self._typed.codes.get(key),
                "tool": tool.compiled(draft.output) if tool is not None else None,
                "llm": _llm(draft, env),
                "agent": self._agent(draft, env),
                "map": self._map(scope, draft, template),
                "graph": GraphBlock(template=template) if draft.kind == "graph" else None,
                "loop": _loop(draft, template),
                "switch": _switch(draft),
                "approval": approval_of(draft),
                "sealed": self._taints.sealed(scope, draft),
            }
        )
        models = [self._spec(name) for name in self._chain(node.model)] if node.model is not None else []
        tools = {name: self._done[name] for name in node.graph_tools}
        return node.model_copy(update={"digest": node_digest(node, template=inner, tools=tools, llms=models)})

    def _tool(self, draft: NodeDraft, env: Env) -> ToolDraft | None:
        if draft.tool is None or draft.model.tool is None:
            return None
        ref = draft.model.tool.server
        return draft.tool.under(env.get(ref, ref), self._draft.resources["MCPServer"])

    def _agent(self, draft: NodeDraft, env: Env) -> AgentCall | None:
        if draft.agent is None or draft.agent.spec is None:
            return None
        model = draft.agent.spec.model
        bound = model if draft.agent.apart else env.get(model, model)

        def scope(use: Use) -> tuple[str, str]:
            return self._use(use, env)[0], self._draft.scopes[use.scope].description

        agent = draft.agent.under(env, self._draft.resources["MCPServer"])
        limits = least(limits_of(draft.model.limits), agent_limits(draft))
        return agent.compiled(draft.prompt.text if draft.prompt is not None else None, bound, scope, limits)

    def _map(self, scope: ScopeDraft, draft: NodeDraft, template: str) -> MapBlock | None:
        block = draft.model.map
        if block is None:
            return None
        tolerate = block.tolerate
        return MapBlock.model_validate(
            {
                "items": _expr(draft.items),
                "jsonl": _expr(draft.jsonl),
                "prefix": _expr(draft.prefix),
                "glob": block.items_from.glob if block.items_from is not None else None,
                "as": block.as_,
                "key": _expr(draft.key),
                "template": template,
                "itemSchema": self._typed.items[scope.name, draft.name],
                "concurrency": block.concurrency,
                "tolerate": {"count": 0} if tolerate is None else tolerate.to_json(),
                "failFast": block.fail_fast,
                "workspace": block.workspace.to_json() if block.workspace is not None else None,
            }
        )


def _seconds(kind: NodeKind, tool: ToolDraft | None) -> float:
    """The time of one try of a node that says nothing."""
    if tool is not None and tool.tool is not None:
        return tool.tool.seconds
    return TIMEOUTS[kind]


def _channel(draft: ChannelDraft, *, sealed: bool) -> Channel:
    merge = draft.merge
    return Channel(
        name=draft.name,
        schema=draft.schema,
        merge=merge.rule,
        key=merge.key or "",
        prefer=merge.prefer or "first",
        order=tuple(merge.order),
        initial=draft.initial,
        sealed=sealed,
    )


def _exprs(sites: Mapping[str, Site]) -> dict[str, Expr]:
    return {name: site.parsed.expr for name, site in sites.items()}


def _expr(site: Site | None) -> Expr | None:
    return site.parsed.expr if site is not None else None


def _reads(draft: NodeDraft) -> tuple[str, ...]:
    """What a node needs of its scope. The item of a map and the node's own output come from elsewhere."""
    paths = {tuple(path.split(".")) for site in draft.scope_sites() for path in site.parsed.expr.reads}
    return tuple(".".join(path) for path in shortest({path for path in paths if path[0] in SCOPE_NAMES}))


def _llm(draft: NodeDraft, env: Env) -> LlmCall | None:
    block = draft.model.llm
    if block is None or draft.prompt is None:
        return None
    return LlmCall(
        ref=env.get(block.ref, block.ref),
        system=draft.system.text if draft.system is not None else None,
        messages=tuple(
            ExampleMessage(role=message.role, content=text.text)
            for message, text in zip(block.messages, draft.examples, strict=True)
        ),
        prompt=draft.prompt.text,
        parameters=block.parameters,
        choices=_exprs(draft.choices),
    )


def _loop(draft: NodeDraft, template: str) -> LoopBlock | None:
    block = draft.model.loop
    if block is None:
        return None
    return LoopBlock(
        template=template,
        next=_exprs(draft.next),
        until=_expr(draft.until),
        maxIterations=block.max_iterations,
        onExhausted=block.on_exhausted,
        score=_expr(draft.score),
        keep=block.keep,
    )


def _switch(draft: NodeDraft) -> SwitchBlock | None:
    block = draft.model.switch
    if block is None or draft.value is None:
        return None
    cases = tuple(SwitchCase(equals=case.equals, nodes=tuple(case.nodes)) for case in block.cases)
    return SwitchBlock(value=draft.value.parsed.expr, cases=cases, default=tuple(block.default))


def _retry(draft: NodeDraft) -> Retry:
    written = draft.model.retry
    return Retry.model_validate(written.to_json() if written is not None else {})

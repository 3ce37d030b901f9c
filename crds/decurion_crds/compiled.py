"""What the compiler hands to a driver: one graph with all that it refers to, typed, canonical, named by its digest.

A `CompiledGraph` is plain data. Drivers, runners and readers of a ledger need nothing else to run, resume or explain
a run: resources are copied in, names are resolved, order is explicit, expressions are rewritten. Secrets are in it
by reference only.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from decurion_crds.blocks import (
    CONFLICTS,
    FINALLY,
    ITERATIONS,
    LISTED_FILE,
    SWITCH_OUTPUT,
    WORKSPACE,
    AgentCall,
    AgentTool,
    ApprovalBlock,
    Argument,
    Artefact,
    Code,
    Compiled,
    Context,
    ExampleMessage,
    Expr,
    GraphBlock,
    JoinBlock,
    Limits,
    LlmCall,
    Load,
    LoopBlock,
    MapBlock,
    MapWorkspace,
    MergeRule,
    NodeKind,
    NodeWorkspace,
    OnFailure,
    Prefer,
    Retry,
    RunWorkspace,
    Schema,
    SwitchBlock,
    SwitchCase,
    Text,
    Tolerate,
    ToolCall,
)
from decurion_crds.canonical import Json, canonical, digest

__all__ = [
    "CONFLICTS",
    "FINALLY",
    "ITERATIONS",
    "LISTED_FILE",
    "SWITCH_OUTPUT",
    "WORKSPACE",
    "AgentCall",
    "AgentTool",
    "ApprovalBlock",
    "Argument",
    "Artefact",
    "Channel",
    "Code",
    "CompiledGraph",
    "Context",
    "ExampleMessage",
    "Expr",
    "GraphBlock",
    "JoinBlock",
    "Limits",
    "LlmCall",
    "Load",
    "LoopBlock",
    "MapBlock",
    "MapWorkspace",
    "MergeRule",
    "Node",
    "NodeKind",
    "NodeWorkspace",
    "OnFailure",
    "Prefer",
    "Retry",
    "RunWorkspace",
    "Schema",
    "Scope",
    "SwitchBlock",
    "SwitchCase",
    "Text",
    "Tolerate",
    "ToolCall",
]


class Node(Compiled):
    """One node of a scope.

    `after` holds every predecessor, declared or inferred, in file order. `control` holds only those of the author's own
    `after`: skipping spreads along these. `choice` is the switch in one of whose cases the node stands; it is among
    `after` and `parents`, and not in `control`. `reads` are the paths that `when`, `with`, `load`, control parts
    and `otherwise` need from the scope (`input…`, `nodes…`, `state…`, `run…`). `parents` are the nodes among `after`
    whose data it reads. `digest` covers all that decides this node's result: its own fields, its template, its model.
    One of `transform`, `code`, `tool`, `llm`, `agent`, `map`, `graph`, `loop`, `switch`, `approval` is set, named by
    `kind`.

    Whether a node is skipped says `Scope.passes_over`, and then its `when`. A skipped node's output is that of
    `otherwise`, or None. `on_failure` says what becomes of a node whose tries are used up: `fail` ends the scope;
    `skip`, of a node without `otherwise`, makes it a skipped node; `otherwise` gives it the output of its `otherwise`.
    A node that is skipped, or fails, writes no channel. `limits` are those of the node with all that runs below it; its
    time is in `timeout_seconds`, but that of all tries of an `llm`. `sealed` says what of its records is
    encrypted: what it reads, or all.
    """

    name: str
    kind: NodeKind
    after: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    choice: str | None = None
    parents: tuple[str, ...] = ()
    join: JoinBlock | None = None
    reads: tuple[str, ...] = ()
    when: Expr | None = None
    with_: dict[str, Expr] = Field(default_factory=dict, alias="with")
    load: dict[str, Load] = Field(default_factory=dict, exclude_if=lambda value: not value)
    otherwise: dict[str, Expr] | None = None
    output: Schema
    writes: dict[str, Expr] = Field(default_factory=dict)
    timeout_seconds: float = Field(alias="timeoutSeconds")
    retry: Retry = Retry()
    on_failure: OnFailure = Field("fail", alias="onFailure", exclude_if=lambda value: value == "fail")
    workspace: NodeWorkspace | None = Field(None, exclude_if=lambda value: value is None)
    limits: Limits | None = Field(None, exclude_if=lambda value: value is None)
    context: Context | None = Field(None, exclude_if=lambda value: value is None)
    transform: dict[str, Expr] | None = None
    code: Code | None = None
    tool: ToolCall | None = None
    llm: LlmCall | None = None
    agent: AgentCall | None = None
    map: MapBlock | None = None
    graph: GraphBlock | None = None
    loop: LoopBlock | None = None
    switch: SwitchBlock | None = None
    approval: ApprovalBlock | None = None
    sealed: Literal["input", "all"] | None = Field(None, exclude_if=lambda value: value is None)
    digest: str = ""

    @property
    def model(self) -> str | None:
        """The LLM that it asks, where it asks one itself."""
        return self.llm.ref if self.llm is not None else self.agent.model if self.agent is not None else None

    @property
    def servers(self) -> frozenset[str]:
        """The MCPServers whose tools it may call. The one that is built in is none."""
        calls = [self.tool] if self.tool is not None else []
        calls += [tool.call for tool in self.agent.tools if tool.call is not None] if self.agent is not None else []
        return frozenset(call.server for call in calls if call.server != WORKSPACE)

    @property
    def template(self) -> str | None:
        """The scope that a map runs for every item, a graph once, a loop in every round; None for other kinds."""
        block = self.map or self.graph or self.loop
        return block.template if block is not None else None

    @property
    def graph_tools(self) -> tuple[str, ...]:
        """The scopes that run as tools of an agent."""
        if self.agent is None:
            return ()
        return tuple(tool.graph for tool in self.agent.tools if tool.graph is not None)

    @property
    def inner(self) -> tuple[str, ...]:
        """The scopes that run below the node."""
        return (self.template,) if self.template is not None else self.graph_tools


class Channel(Compiled):
    """A channel, `sealed` where what it holds is encrypted. `key` and `prefer` belong to `mergeByKey`; `order`
    holds the writers that come first in merging.
    """

    name: str
    schema_: Schema = Field(alias="schema")
    merge: MergeRule = "replace"
    key: str = Field("", exclude_if=lambda value: not value)
    prefer: Prefer = Field("first", exclude_if=lambda value: value == "first")
    order: tuple[str, ...] = Field((), exclude_if=lambda value: not value)
    initial: Json = None
    sealed: bool = Field(False, exclude_if=lambda value: not value)


class Scope(Compiled):
    """A graph body: the root, or a template. `nodes` stand in file order; `order` is a topological order of names.

    `input_schema` and `output_schema` are object schemas (`output_schema` is free where `output` is `$value`).
    `output` maps names to expressions, or the single name `$value` to one. `leaf` says that this scope runs whole on
    one runner: no map, approval, `join`, `finally`, history of rounds or limit that the driver watches is reachable
    from it, also not by the templates of its `graph` nodes. `digest` covers everything in the scope and below it.
    `final` names the scope of the `finally` of a template or of a graph that another one runs: it runs when the nodes
    have ended, before whoever runs the scope goes on. `limits` are those of each run of the scope; the root has those
    of the graph. `sealed_input` and `sealed_output` say whether these are encrypted in records.
    """

    input_schema: Schema = Field(alias="inputSchema")
    channels: tuple[Channel, ...] = ()
    nodes: tuple[Node, ...]
    order: tuple[str, ...]
    output: dict[str, Expr]
    output_schema: Schema = Field(alias="outputSchema")
    leaf: bool
    final: str | None = Field(default=None, exclude_if=lambda value: value is None)
    limits: Limits | None = Field(default=None, exclude_if=lambda value: value is None)
    sealed_input: bool = Field(False, alias="sealedInput", exclude_if=lambda value: not value)
    sealed_output: bool = Field(False, alias="sealedOutput", exclude_if=lambda value: not value)
    digest: str = ""

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {n.name: n for n in self.nodes}

    @cached_property
    def followers(self) -> dict[str, tuple[str, ...]]:
        """The nodes that come right after each node, in topological order."""
        found: dict[str, list[str]] = {n.name: [] for n in self.nodes}
        for name in self.order:
            for before in self.by_name[name].after:
                found[before].append(name)
        return {name: tuple(after) for name, after in found.items()}

    @cached_property
    def writers(self) -> tuple[str, ...]:
        """The nodes that may change files, in topological order."""
        nodes = (self.by_name[name] for name in self.order)
        return tuple(node.name for node in nodes if node.workspace is not None and node.workspace.write)

    @cached_property
    def writers_before(self) -> dict[str, tuple[str, ...]]:
        """Of each node those that may change files and end before it begins, in topological order."""
        found: dict[str, set[str]] = {}
        for name in self.order:
            above = self.by_name[name].after
            found[name] = {other for other in above if other in self.writers}.union(*(found[o] for o in above))
        return {name: tuple(w for w in self.writers if w in before) for name, before in found.items()}

    @cached_property
    def filed(self) -> bool:
        """Whether a node of it has anything to do with files."""
        return any(node.workspace is not None for node in self.nodes)

    def passes_over(self, node: Node, *, skipped: Container[str], outputs: Mapping[str, Json]) -> bool:
        """Whether a node whose predecessors have ended is skipped, so that not even its `when` is evaluated.

        It is when its switch was skipped or did not choose it, and when all of its own `after` were skipped and none
        of these has an `otherwise`. `outputs` has the outputs of switches at least.
        """
        if self.not_chosen(node, skipped=skipped, outputs=outputs):
            return True
        return bool(node.control) and all(
            name in skipped and self.by_name[name].otherwise is None for name in node.control
        )

    def not_chosen(self, node: Node, *, skipped: Container[str], outputs: Mapping[str, Json]) -> bool:
        """Whether a node stands in a case of a switch, which has ended, and that case is not the one that runs."""
        choice = node.choice
        return choice is not None and (choice in skipped or node.name not in outputs[choice]["chosen"])


class CompiledGraph(Compiled):
    """The closure of a TaskGraph. `llms` and `servers` hold the specs of the `LLM` and `MCPServer` resources that it
    names, as in manifests, servers without their tools.

    The template `finally`, where there is one, is the scope that runs when all nodes of the root have ended.
    """

    v: Literal[0] = 0
    name: str
    root: Scope
    templates: dict[str, Scope] = Field(default_factory=dict)
    llms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    servers: dict[str, dict[str, Any]] = Field(default_factory=dict, exclude_if=lambda value: not value)
    limits: Limits = Field(default_factory=Limits, exclude_if=lambda value: value == Limits())
    workspace: RunWorkspace | None = Field(None, exclude_if=lambda value: value is None)

    def models(self, first: str) -> tuple[str, ...]:
        """The LLM `first`, and those that are asked in its place when it cannot answer, in order."""
        found = [first]
        while (other := self.llms[found[-1]].get("fallback")) in self.llms and other not in found:
            found.append(other)
        return tuple(found)

    @property
    def final(self) -> Scope | None:
        """The scope of `finally`."""
        return self.templates.get(FINALLY)

    @cached_property
    def sealed(self) -> bool:
        """Whether something in it is sensitive, so that its runs need a key."""
        scopes = (self.root, *self.templates.values())
        return any(s.sealed_input or s.sealed_output or any(n.sealed for n in s.nodes) for s in scopes)

    @cached_property
    def digest(self) -> str:
        return digest("graph/v0", canonical(self.to_json()))

"""What the compiler hands to a driver: one graph with all that it refers to, typed, canonical, named by its digest.

A `CompiledGraph` is plain data. Drivers, runners and readers of a ledger need nothing else to run, resume or explain
a run: resources are copied in, names are resolved, order is explicit, expressions are rewritten. Secrets are in it
by reference only.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from decurion_crds.canonical import Json, canonical, digest

Schema = dict[str, Any]
"""A JSON Schema (2020-12), self-contained: shared names are resolved."""

NodeKind = Literal["transform", "code", "tool", "llm", "agent", "map", "graph", "loop", "switch", "approval"]
OnFailure = Literal["fail", "skip", "otherwise"]
MergeRule = Literal["replace", "append", "union", "sum", "min", "max", "mergeByKey"]
Prefer = Literal["first", "last", "error"]


FINALLY = "finally"
"""The name among a graph's `templates` of the scope of its `finally`; that of the template `one` is `one/finally`. A
keyword of Python: no template and no node has this name."""


WORKSPACE = "workspace"
"""The tool server whose tools read and write the files of the run. It is built in: no resource declares it."""
CONFLICTS = ".conflicts"
"""The folder into which a map puts what its items disagree on."""


class _Compiled(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Expr(_Compiled):
    """One expression.

    `src` is what the author wrote. `py` is the same with field access rewritten (`x.name` to `x.get("name")`: an absent
    property reads as None).
    `reads` are the shortest dotted paths it needs (`input.reports`, `nodes.plan.output.items`, `state.rows`, `report`),
    sorted: an environment pruned to them is enough to evaluate it. `path` is set when the expression is a bare path,
    which is read without an interpreter. `light` names those of `reads` of which only the length and single items are
    wanted, with the constant indexes of these: a wide list there is not loaded.
    """

    src: str
    py: str
    reads: tuple[str, ...] = ()
    path: tuple[str, ...] | None = None
    light: dict[str, tuple[int, ...]] = Field(default_factory=dict, exclude_if=lambda value: not value)


class Text(_Compiled):
    """A text with `{{ }}`: strings and expressions in turn. A string value goes in raw, any other as compact JSON."""

    parts: tuple[str | Expr, ...]


class Code(_Compiled):
    """Source of a `code` node.

    `py` defines one function `def main(<with names>)` whose `return` is the author's last expression, so that no name
    survives a call. `fresh` says that the source uses clock or randomness and needs a session seeded for its path.
    """

    src: str
    py: str
    fresh: bool = False


class LlmCall(_Compiled):
    """One call of a model. `choices` maps text fields of the output to the lists of what one call may answer there."""

    ref: str
    system: Text | None = None
    prompt: Text
    parameters: dict[str, Any] = Field(default_factory=dict)
    choices: dict[str, Expr] = Field(default_factory=dict)


class Argument(_Compiled):
    """A value that is known, computed or put together. Exactly one field is set; `value` where the others are not."""

    value: Json = None
    expr: Expr | None = None
    text: Text | None = None
    items: tuple[Argument, ...] | None = None
    fields: dict[str, Argument] | None = None


class ToolCall(_Compiled):
    """One call of a tool. `input` and `output` are the schemas of the tool, as its server's resource declares them.

    `repeatable` says that a call may be made again: the tool only reads, or knows a repeated call by its key. `result`
    is over `raw`, which is `{text, value}`.
    """

    server: str
    name: str
    arguments: Argument
    result: Expr | None = None
    input: Schema
    output: Schema
    repeatable: bool = False


class AgentTool(_Compiled):
    """A tool as an agent's model is given it: `name`, `description`, and what a call of it does.

    `call` is the tool of a server. `graph` is a scope of the graph's `templates` instead, whose input are the arguments
    and whose output is the result; it runs in a scope of its own at the path of the call: the node `read` of it in the
    second call of the third turn of the agent `/find` is `/find#turn-0003.02/read`. One that is leaf runs on the runner
    of the agent; any other is handed out node by node, as the scopes of nodes are.
    """

    name: str
    description: str = ""
    call: ToolCall | None = None
    graph: str | None = None
    timeout_seconds: float = Field(604_800.0, alias="timeoutSeconds")


class Limits(_Compiled):
    """How much may be used: tokens, nano-dollars (10⁻⁹), answers of models, calls of tools, seconds. None: no limit."""

    tokens: int | None = None
    nano_usd: int | None = Field(default=None, alias="nanoUSD")
    steps: int | None = None
    tool_calls: int | None = Field(default=None, alias="toolCalls")
    seconds: float | None = None

    @property
    def amounts(self) -> dict[str, int]:
        """What is counted of them, by name: not the time."""
        found = {"tokens": self.tokens, "nanoUSD": self.nano_usd, "steps": self.steps, "toolCalls": self.tool_calls}
        return {name: amount for name, amount in found.items() if amount is not None}


class AgentCall(_Compiled):
    """A model that calls `tools` in turns, at most `steps`, until it finishes. `limits` are those of what else it uses
    itself; when one is used up, one more turn is given to finish.
    """

    model: str
    instructions: str = ""
    prompt: Text
    tools: tuple[AgentTool, ...] = ()
    steps: int = 50
    limits: Limits | None = Field(None, exclude_if=lambda value: value is None)


class Tolerate(_Compiled):
    """How many failed items a map accepts: a count, or a percentage of all items (0 to 100). Exactly one is set."""

    count: int | None = None
    percent: float | None = None

    def allows(self, failed: int, total: int) -> bool:
        if self.count is not None:
            return failed <= self.count
        return failed * 100 <= (self.percent or 0.0) * total


LISTED_FILE: Schema = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "uri": {"type": "string"},
        "size": {"type": "integer"},
        "etag": {"type": "string"},
    },
    "required": ["etag", "key", "size", "uri"],
    "additionalProperties": False,
}
"""The schema of one item of a map over `prefix`."""


class Load(_Compiled):
    """A name of a node's snapshot that is read out of a file.

    `from_` gives its URI, or an object with `uri` and, where it must not have changed, `etag`. `as_` says what the
    value is: the text, the JSON value, which is checked by `schema_`, or base64 of the bytes, of which there are at
    most `max_bytes`.
    """

    from_: Expr = Field(alias="from")
    as_: Literal["text", "json", "bytes"] = Field("text", alias="as")
    schema_: Schema = Field(default_factory=dict, alias="schema")
    max_bytes: int = Field(alias="maxBytes")


class NodeWorkspace(_Compiled):
    """The files that a node sees and changes, by globs; of a node that runs scopes, what may be written in these."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


class MapWorkspace(_Compiled):
    """What becomes of the files that branches wrote: see `v1alpha1.MapWorkspace`."""

    merge: Literal["disjoint", "threeWay", "prefer", "namespace"] = "disjoint"
    on_conflict: Literal["fail", "collect"] = Field("fail", alias="onConflict")


class Artefact(_Compiled):
    """Files that a run leaves for others: those that fit the glob `path`, of which there is one at least."""

    name: str
    path: str
    type: str | None = None


class RunWorkspace(_Compiled):
    """The files of a run: those of the folder at `uri`, or at the URI that the input has at `path`, if any."""

    uri: str | None = None
    path: tuple[str, ...] | None = None
    max_bytes: int = Field(alias="maxBytes")
    max_files: int = Field(alias="maxFiles")
    artefacts: tuple[Artefact, ...] = ()


class MapBlock(_Compiled):
    """A fan-out. Exactly one of `items`, `jsonl` and `prefix` is set; `template` names a scope of the graph's
    `templates`. The items of `prefix` are the files below it whose keys fit `glob`; without `key`, theirs are the keys.

    A branch's input is the node's `with`, plus the item under `as_`, plus `index` where the template declares it.
    `item_schema` is the schema of one item. Above `tolerate` no branch starts any more, and the map fails when those
    that run have ended; with `fail_fast` these are stopped, and it fails at once.
    """

    items: Expr | None = None
    jsonl: Expr | None = None
    prefix: Expr | None = Field(None, exclude_if=lambda value: value is None)
    glob: str | None = Field(None, exclude_if=lambda value: value is None)
    as_: str = Field("item", alias="as")
    key: Expr | None = None
    template: str
    item_schema: Schema = Field(default_factory=dict, alias="itemSchema")
    concurrency: int | None = None
    tolerate: Tolerate = Tolerate(count=0)
    fail_fast: bool = Field(False, alias="failFast", exclude_if=lambda value: not value)
    workspace: MapWorkspace | None = Field(None, exclude_if=lambda value: value is None)

    @property
    def keyed(self) -> bool:
        """Whether its branches have keys of their items; else they have the items' positions."""
        return self.key is not None or self.prefix is not None


class GraphBlock(_Compiled):
    """One scope of the graph's `templates`, run once. Its input is the node's `with`, its output is the node's.

    It runs in a scope of its own at the node's path: the node `draft` of the template of the node `/review` is
    `/review/draft`, and `/review!output` is the scope's end. Where `templates[template].leaf` holds, one runner may run
    it whole, as it does a branch of a map; inside a leaf branch it does so always, and such scopes may be nested.
    """

    template: str


ITERATIONS = "iterations"
"""The field of a loop's output that says how many rounds ran."""


class LoopBlock(_Compiled):
    """One scope of the graph's `templates`, run in rounds. The input of the first round is the node's `with`.

    After each round `score`, `until` and `next`, in this order, are evaluated over the node's scope with `output`, that
    of the round, and `iteration`, its number from 1. The round is the last when `until` is true or `max_iterations`
    ran, after which `on_exhausted` says whether the node fails; else `next` replaces what it names in the input of the
    next. The output is that of the last round, or with `keep` of the first one of the highest score, and `iterations`.

    Round 3 of the node `/refine` runs in the scope `/refine@003`. Where `templates[template].leaf` holds, all rounds
    run on one runner.
    """

    template: str
    next: dict[str, Expr] = Field(default_factory=dict)
    until: Expr | None = None
    max_iterations: int = Field(alias="maxIterations")
    on_exhausted: Literal["succeed", "fail"] = Field(alias="onExhausted")
    score: Expr | None = None
    keep: Literal["last", "best"] = "last"


class SwitchCase(_Compiled):
    """The nodes that run when the switch's value is `equals`: a text, a number or a truth value."""

    equals: Json
    nodes: tuple[str, ...] = ()


SWITCH_OUTPUT: Schema = {
    "type": "object",
    "properties": {"value": {}, "chosen": {"type": "array", "items": {"type": "string"}}},
    "required": ["chosen", "value"],
    "additionalProperties": False,
}
"""The schema of what a switch leaves in the ledger. No expression reads it."""


class SwitchBlock(_Compiled):
    """One choice among nodes of the scope. Each of them names the switch as its `choice`.

    `value` sees what `when` sees. `cases` differ in `equals`, and no node stands in two of them or in `default` too.
    """

    value: Expr
    cases: tuple[SwitchCase, ...]
    default: tuple[str, ...] = ()

    def decide(self, value: Json) -> dict[str, Json]:
        """The node's output: `value` and the names of the nodes that run, those of the one case that equals it.

        `1` equals `1.0`; a truth value equals no number. What equals no case, such as null, chooses `default`.
        """
        nodes = next((case.nodes for case in self.cases if _same(case.equals, value)), self.default)
        return {"value": value, "chosen": list(nodes)}


def _same(one: Json, other: Json) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


class ApprovalBlock(_Compiled):
    """A wait for people. The node's output is `{approved, by?, at?, form?}`.

    `form` is the schema of what an approval has to bring. Where `users` or `groups` is given, only these may decide;
    `count` different people have to approve, one rejects. `on_timeout` and `on_reject` say what becomes of the node.
    """

    message: Text
    form: Schema | None = None
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    count: int = 1
    timeout_seconds: float | None = Field(None, alias="timeoutSeconds")
    on_timeout: Literal["fail", "reject", "approve"] = Field("fail", alias="onTimeout")
    on_reject: Literal["fail", "continue"] = Field("fail", alias="onReject")


class JoinBlock(_Compiled):
    """A node that goes on when `count` of `racers`, which are among its `after`, have ended well.

    The other racers are given up then, and what they wrote or would write does not count. A racer that fails does not
    fail its scope; when fewer than `count` can still end well, the node fails, or is skipped where no racer failed. No
    node is a racer of two.
    """

    racers: tuple[str, ...]
    count: int


class Retry(_Compiled):
    """Tries after the first: `transient` for failures of transport, `repair` for outputs that break their schema."""

    transient: int = 3
    repair: int = 2


class Node(_Compiled):
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
    time is in `timeout_seconds`, but that of all tries of an `llm`.
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


class Channel(_Compiled):
    """A channel. `key` and `prefer` belong to `mergeByKey`; `order` holds the writers that come first in merging."""

    name: str
    schema_: Schema = Field(alias="schema")
    merge: MergeRule = "replace"
    key: str = Field("", exclude_if=lambda value: not value)
    prefer: Prefer = Field("first", exclude_if=lambda value: value == "first")
    order: tuple[str, ...] = Field((), exclude_if=lambda value: not value)
    initial: Json = None


class Scope(_Compiled):
    """A graph body: the root, or a template. `nodes` stand in file order; `order` is a topological order of names.

    `input_schema` and `output_schema` are object schemas (`output_schema` is free where `output` is `$value`).
    `output` maps names to expressions, or the single name `$value` to one. `leaf` says that this scope runs whole on
    one runner: no map, approval, `join`, `finally` or limit that the driver watches is reachable from it, also not by
    the templates of its `graph` nodes. `digest` covers everything in the scope and below it. `final` names the scope of
    the `finally` of a template or of a graph that another one runs: it runs when the nodes have ended, before whoever
    runs the scope goes on. `limits` are those of each run of the scope; the root has those of the graph.
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


class CompiledGraph(_Compiled):
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

    @property
    def final(self) -> Scope | None:
        """The scope of `finally`."""
        return self.templates.get(FINALLY)

    @cached_property
    def digest(self) -> str:
        return digest("graph/v0", canonical(self.to_json()))

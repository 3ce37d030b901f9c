"""What a node of a compiled graph does: its block, and the expressions, texts and calls in it. Plain data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from decurion_crds.canonical import Json

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


class Compiled(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Expr(Compiled):
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


class Text(Compiled):
    """A text with `{{ }}`: strings and expressions in turn. A string value goes in raw, any other as compact JSON."""

    parts: tuple[str | Expr, ...]


class Code(Compiled):
    """Source of a `code` node.

    `py` defines one function `def main(<with names>)` whose `return` is the author's last expression, so that no name
    survives a call. `fresh` says that the source uses clock or randomness and needs a session seeded for its path.
    """

    src: str
    py: str
    fresh: bool = False


class ExampleMessage(Compiled):
    """A message of an example: what a user said, or what was answered."""

    role: Literal["user", "assistant"]
    content: Text


class LlmCall(Compiled):
    """One call of a model. `choices` maps text fields of the output to the lists of what one call may answer there;
    `messages` stand between `system` and `prompt`.
    """

    ref: str
    system: Text | None = None
    messages: tuple[ExampleMessage, ...] = Field(default=(), exclude_if=lambda value: not value)
    prompt: Text
    parameters: dict[str, Any] = Field(default_factory=dict)
    choices: dict[str, Expr] = Field(default_factory=dict)


class Argument(Compiled):
    """A value that is known, computed or put together. Exactly one field is set; `value` where the others are not."""

    value: Json = None
    expr: Expr | None = None
    text: Text | None = None
    items: tuple[Argument, ...] | None = None
    fields: dict[str, Argument] | None = None


class ToolCall(Compiled):
    """One call of a tool. `input` and `output` are the schemas of the tool, as its server's resource declares them.

    `repeatable` says that a call may be made again: the tool only reads, or knows a repeated call by its key.
    `concurrency` is how many calls of it its server bears at a time. `result` is over `raw`, which is `{text, value}`.
    """

    server: str
    name: str
    arguments: Argument
    result: Expr | None = None
    input: Schema
    output: Schema
    repeatable: bool = False
    concurrency: int | None = Field(None, exclude_if=lambda value: value is None)


class AgentTool(Compiled):
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


class Limits(Compiled):
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


class AgentCall(Compiled):
    """A model that calls `tools` in turns, at most `steps`, until it finishes. `limits` are those of what else it uses
    itself; when one is used up, one more turn is given to finish.
    """

    model: str
    instructions: str = ""
    prompt: Text
    tools: tuple[AgentTool, ...] = ()
    steps: int = 50
    limits: Limits | None = Field(None, exclude_if=lambda value: value is None)
    parameters: dict[str, Any] = Field(default_factory=dict, exclude_if=lambda value: not value)


class Tolerate(Compiled):
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


class Load(Compiled):
    """A name of a node's snapshot that is read out of a file.

    `from_` gives its URI, or an object with `uri` and, where it must not have changed, `etag`. `as_` says what the
    value is: the text, the JSON value, which is checked by `schema_`, or base64 of the bytes, of which there are at
    most `max_bytes`.
    """

    from_: Expr = Field(alias="from")
    as_: Literal["text", "json", "bytes"] = Field("text", alias="as")
    schema_: Schema = Field(default_factory=dict, alias="schema")
    max_bytes: int = Field(alias="maxBytes")


class NodeWorkspace(Compiled):
    """The files that a node sees and changes, by globs; of a node that runs scopes, what may be written in these."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


class MapWorkspace(Compiled):
    """What becomes of the files that branches wrote: see `v1alpha1.MapWorkspace`."""

    merge: Literal["disjoint", "threeWay", "prefer", "namespace"] = "disjoint"
    on_conflict: Literal["fail", "collect"] = Field("fail", alias="onConflict")


class Artefact(Compiled):
    """Files that a run leaves for others: those that fit the glob `path`, of which there is one at least."""

    name: str
    path: str
    type: str | None = None


class RunWorkspace(Compiled):
    """The files of a run: those of the folder at `uri`, or at the URI that the input has at `path`, if any."""

    uri: str | None = None
    path: tuple[str, ...] | None = None
    max_bytes: int = Field(alias="maxBytes")
    max_files: int = Field(alias="maxFiles")
    artefacts: tuple[Artefact, ...] = ()


class MapBlock(Compiled):
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


class GraphBlock(Compiled):
    """One scope of the graph's `templates`, run once. Its input is the node's `with`, its output is the node's.

    It runs in a scope of its own at the node's path: the node `draft` of the template of the node `/review` is
    `/review/draft`, and `/review!output` is the scope's end. Where `templates[template].leaf` holds, one runner may run
    it whole, as it does a branch of a map; inside a leaf branch it does so always, and such scopes may be nested.
    """

    template: str


ITERATIONS = "iterations"
"""The field of a loop's output that says how many rounds ran."""


class LoopBlock(Compiled):
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


class SwitchCase(Compiled):
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


class SwitchBlock(Compiled):
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


class ApprovalBlock(Compiled):
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


class JoinBlock(Compiled):
    """A node that goes on when `count` of `racers`, which are among its `after`, have ended well.

    The other racers are given up then, and what they wrote or would write does not count. A racer that fails does not
    fail its scope; when fewer than `count` can still end well, the node fails, or is skipped where no racer failed. No
    node is a racer of two.
    """

    racers: tuple[str, ...]
    count: int


class Context(Compiled):
    """What the model of a node sees beside its prompt: values of channels, what the node said in the latest rounds of
    the loop around it, at most `history`, and texts of files by globs.
    """

    ledger: tuple[str, ...] = ()
    history: int = 0
    artefacts: tuple[str, ...] = ()


class Retry(Compiled):
    """Tries after the first: `transient` for failures of transport, `repair` for outputs that break their schema,
    `replan` for approaches of an agent that failed. `errors` are the codes and classes for which there are any.
    """

    transient: int = 3
    repair: int = 2
    replan: int = Field(default=1, exclude_if=lambda value: value == 1)
    errors: tuple[str, ...] | None = Field(default=None, exclude_if=lambda value: value is None)

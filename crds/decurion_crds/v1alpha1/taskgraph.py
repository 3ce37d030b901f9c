"""`TaskGraph`: input, nodes, output; templates are private graphs of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from decurion_crds.v1alpha1.agent import AgentTool
from decurion_crds.v1alpha1.approval import ApprovalBlock
from decurion_crds.v1alpha1.base import (
    MAX_CHANNELS,
    MAX_DESCRIPTION,
    MAX_ENTRIES,
    MAX_FINALS,
    MAX_NODES,
    MAX_TEMPLATES,
    Conditions,
    Expression,
    Expressions,
    FieldName,
    Fields,
    Free,
    FreeObject,
    Identifier,
    Model,
    Resource,
    ResourceName,
    Rule,
    Schema,
    SchemaName,
    Text,
    atomic,
    named,
    one_of,
)
from decurion_crds.v1alpha1.channel import Channel
from decurion_crds.v1alpha1.context import Context
from decurion_crds.v1alpha1.delimiters import Delimiters
from decurion_crds.v1alpha1.files import ItemsFrom, Loads
from decurion_crds.v1alpha1.history import History
from decurion_crds.v1alpha1.limits import AgentLimits, Limits
from decurion_crds.v1alpha1.mcpserver import ToolName
from decurion_crds.v1alpha1.needs import BIND_TEXT as _BIND_TEXT
from decurion_crds.v1alpha1.needs import BODY_TEXT as _BODY_TEXT
from decurion_crds.v1alpha1.needs import RUNS_A_GRAPH, Bindings, Needs
from decurion_crds.v1alpha1.workspace import MapWorkspace, NodeWorkspace, RunWorkspace

BLOCKS = ("transform", "code", "tool", "llm", "agent", "graph", "map", "loop", "switch", "approval")
"""The fields of a node that say how it works; exactly one is set."""

_INPUT_TEXT = (
    "What the graph takes: name → JSON Schema or the name of a shared schema. A ? behind the name makes it optional."
)
_OUTPUT_TEXT = (
    "What the graph gives: name → Python expression over input, state and nodes, "
    "or $value → the one expression of a result that is no object."
)
_STATE_TEXT = "Channels, for values that several nodes write. Most graphs need none: data flows by nodes.NAME.output."
_FINALLY_TEXT = (
    "Nodes that run when all others have ended: after success, failure, a time-out, and cancel: CancelAndFinally. They "
    "also see run.outcome, run.failure, and every node's output, which is None where there is none."
)
_SCOPE_FINALLY_TEXT = (
    "Nodes that run when all others of the template have ended, whether well or not: in each item, each round, each "
    "run of it, before whoever runs it goes on. They also see run.outcome and run.failure, those of the template."
)
_NODES_TEXT = "The nodes. What a node reads orders it; the order in the file decides only merges."


class Tolerate(Model):
    """How many items of a map may fail. One of count and percent."""

    count: int | None = Field(None, ge=0, le=1_000_000, description="Most failed items.")
    percent: float | None = Field(None, ge=0, le=100, description="Most failed items, in percent of all.")

    rules = (one_of("count", "percent"),)


class MapBlock(Model):
    """Runs a template for every item. One of items and itemsFrom."""

    items: Expression | None = Field(None, description="Python expression for the list of items.")
    items_from: ItemsFrom | None = Field(None, description="A file of items, or a folder of files.")
    as_: Identifier = Field("item", description="Name of the item in the template's input. Default item.")
    key: Expression | None = Field(
        None,
        description="Python expression over the item that names it, unique in the map; absent, its index does.",
    )
    template: Identifier | None = Field(
        None, description="The template that runs; its input is the node's with and the item."
    )
    ref: ResourceName | None = Field(
        None, description="Another TaskGraph of the namespace that runs, instead of a template."
    )
    bind: Bindings = Field(default_factory=dict, description=_BIND_TEXT)
    body: FreeObject | None = Field(None, description=_BODY_TEXT)
    concurrency: int | None = Field(
        None, ge=1, le=100_000, description="Most items in work at a time; absent, what the pool has."
    )
    tolerate: Tolerate | None = Field(
        None, description="How many items may fail before the node fails; absent, none may."
    )
    fail_fast: bool = Field(
        False,
        description="Whether more failures than tolerate stop the items in work at once; else these end first. Default "
        "false.",
    )

    workspace: MapWorkspace | None = Field(
        None, description="What becomes of files that its items write. Absent, no two may change one file."
    )

    rules = (one_of("items", "itemsFrom"), *RUNS_A_GRAPH)


class GraphBlock(Model):
    """Runs a template, or another graph, once; its output is the node's."""

    template: Identifier | None = Field(None, description="The template that runs; its input is the node's with.")
    ref: ResourceName | None = Field(
        None, description="Another TaskGraph of the namespace that runs, instead of a template."
    )
    bind: Bindings = Field(default_factory=dict, description=_BIND_TEXT)
    body: FreeObject | None = Field(None, description=_BODY_TEXT)

    rules = RUNS_A_GRAPH


class LoopBlock(Model):
    """Runs a template round after round, until a condition holds or the most rounds have run."""

    template: Identifier | None = Field(
        None, description="The template that runs; the input of its first round is the node's with."
    )
    ref: ResourceName | None = Field(
        None, description="Another TaskGraph of the namespace that runs, instead of a template."
    )
    bind: Bindings = Field(default_factory=dict, description=_BIND_TEXT)
    body: FreeObject | None = Field(None, description=_BODY_TEXT)
    next: Expressions = Field(
        default_factory=dict,
        description="What changes in the input of the next round: name → Python expression over output (of the round), "
        "iteration (its number, from 1), input, state, run and nodes. Other names stay as they were.",
    )
    until: Expression | None = Field(
        None,
        description="Python expression over the same names; when it is true after a round, that round is the last. "
        "Absent, all rounds run.",
    )
    max_iterations: int = Field(ge=1, le=10_000, description="Most rounds.")
    on_exhausted: Literal["succeed", "fail"] = Field(
        description="What becomes of the node when that many rounds ran and until was never true."
    )
    score: Expression | None = Field(
        None, description="Python expression over the same names for a number that says how good a round is."
    )
    keep: Literal["last", "best"] = Field(
        "last",
        description="Which round gives the node's output: the last, or the one of the highest score, the first of "
        "these. Default last.",
    )

    rules = RUNS_A_GRAPH


def _member(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    text = "a case is a text, a number, or true or false; for anything else, write a value that computes one of these"
    raise PydanticCustomError("rule", "{text}", {"text": text, "code": "FIELD-TYPE"})


class Case(Model):
    """The nodes of one value."""

    equals: Annotated[Free, BeforeValidator(_member)] = Field(
        description="The value: a text, a number, or true or false."
    )
    nodes: Annotated[list[Identifier], atomic(max_length=MAX_ENTRIES)] = Field(
        description="Nodes that run when the switch has this value, and are skipped when it has another."
    )


class SwitchBlock(Model):
    """Chooses among nodes by a value. A node of a case runs after the switch; nodes of different cases never both."""

    value: Expression = Field(description="Python expression over input, state, run and nodes.")
    cases: Annotated[list[Case], atomic(min_length=1, max_length=MAX_ENTRIES)] = Field(
        description="Values with their nodes."
    )
    default: Annotated[list[Identifier], atomic(max_length=MAX_ENTRIES)] = Field(
        default_factory=list, description="Nodes that run when no case has the value; absent, none do."
    )


class ExampleMessage(Model):
    """One message of an example."""

    role: Literal["user", "assistant"] = Field(description="Who says it.")
    content: Text = Field(description="What is said, with {{ expression }} over the names of with.")


def _take_turns(block: LlmBlock) -> bool:
    roles = [message.role for message in block.messages]
    return roles == ["user", "assistant"] * (len(roles) // 2)


class LlmBlock(Model):
    """One call of a model; the answer is the node's output."""

    ref: ResourceName = Field(description="Name of the LLM.")
    system: Text | None = Field(None, description="Instructions, with {{ expression }} over the names of with.")
    prompt: Text = Field(description="The prompt, with {{ expression }} over the names of with.")
    parameters: FreeObject = Field(
        default_factory=dict, description="Parameters of this call, laid over those of the LLM: the node's win."
    )
    messages: Annotated[list[ExampleMessage], atomic(max_length=64)] = Field(
        default_factory=list,
        description="Examples that stand between system and prompt: what a user says and what the answer is, in turns.",
    )
    choices: Expressions = Field(
        default_factory=dict,
        description="Text field of the output → Python expression over the names of with for the list of the texts "
        "that this call may answer there. The model gets them as the enum of the field.",
    )

    rules = (
        Rule(
            cel="!has(self.messages) || size(self.messages) % 2 == 0",
            message="examples are a user and an assistant in turns, the assistant last; add or reorder messages",
            check=_take_turns,
        ),
    )
    later: ClassVar[Mapping[str, str]] = {"batch": "remove it; calls are made one by one"}


class ToolBlock(Model):
    """One call of a tool; what it gives is the node's output."""

    server: ResourceName = Field(description="Name of the MCPServer.")
    name: ToolName = Field(description="Name of the tool, one of those that the MCPServer lists.")
    arguments: FreeObject = Field(
        default_factory=dict,
        description="Arguments of the call. Texts may hold {{ expression }} over the names of with; a text that is "
        "exactly one {{ expression }} is its value.",
    )
    result: Expression | None = Field(
        None,
        description="Python expression over raw for the node's output, where raw.text is the text that came and "
        "raw.value the value of the tool's output. Absent, the output is what the tool gives.",
    )


class AgentBlock(Model):
    """A model that works in turns, calling tools, until it finishes. One of ref and model."""

    ref: ResourceName | None = Field(None, description="Name of the Agent.")
    model: ResourceName | None = Field(None, description="Name of the LLM, for an agent that is written here.")
    instructions: Text | None = Field(
        None, description="What the agent is told before the prompt; with model. As it stands, without {{ }}."
    )
    tools: Annotated[list[AgentTool], atomic(max_length=32)] = Field(
        default_factory=list, description="What the agent may call; with model."
    )
    prompt: Text = Field(description="What the agent is to do, with {{ expression }} over the names of with.")
    limits: AgentLimits | None = Field(None, description="How much the agent may do, in place of what the Agent says.")
    parameters: FreeObject = Field(
        default_factory=dict, description="Parameters of every call, laid over those of the LLM: the node's win."
    )

    rules = (
        one_of("ref", "model"),
        Rule(
            cel="has(self.model) || (!has(self.instructions) && !has(self.tools))",
            message="instructions and tools are those of the Agent that ref names; remove them, or write model",
            check=lambda block: block.model is not None or (block.instructions is None and not block.tools),
        ),
    )


RetriedError = Literal[
    "Transient",
    "RateLimited",
    "ModelUnavailable",
    "ModelTimeout",
    "ToolUnavailable",
    "ToolTimeout",
    "Repairable",
    "OutputInvalid",
    "OutputTruncated",
    "Replannable",
    "AgentGaveUp",
    "FailuresInRow",
    "RepeatedCalls",
]
"""Errors after which there is another try, by code; and the classes of these, each of which stands for all of its."""


class Retry(Model):
    """Tries after the first one."""

    transient: int | None = Field(
        None,
        ge=0,
        le=100,
        description="Most further tries after a failure of transport or server. Default 3.",
    )
    repair: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Most further tries, told what was wrong, after an output that is invalid. Default 2.",
    )

    replan: int | None = Field(
        None,
        ge=0,
        le=10,
        description="Of an agent: how often it begins anew, told what was tried and why that failed, when its approach "
        "failed, in the turns that are left. Default 1.",
    )
    errors: Annotated[list[RetriedError], atomic(min_length=1, max_length=32)] | None = Field(
        None,
        description="Which errors are tried again, by their codes or classes; others fail the node at once. Absent, "
        "all for which there is a try.",
    )


class JoinBlock(Model):
    """How many of the nodes that a node waits for have to end well before it runs."""

    mode: Literal["all", "any", "quorum"] = Field(
        description="all: every one has ended, and one that fails fails the run or the item. any: one has ended well; "
        "quorum: count have. The rest is then given up, and what it would have written is discarded."
    )
    count: int | None = Field(None, ge=1, le=MAX_ENTRIES, description="How many have to end well; with quorum.")

    rules = (
        Rule(
            cel="self.mode != 'quorum' || has(self.count)",
            message="a quorum is a number of nodes; add count",
            check=lambda join: join.mode != "quorum" or join.count is not None,
            code="FIELD-MISSING",
        ),
        Rule(
            cel="self.mode == 'quorum' || !has(self.count)",
            message="count belongs to mode: quorum; write that, or remove count",
            check=lambda join: join.mode == "quorum" or join.count is None,
        ),
    )


def _source(value: object) -> object:
    if isinstance(value, dict):
        raise PydanticCustomError(
            "later",
            "{text}",
            {"text": "the object form is not built yet; write the source itself, as a block of text"},
        )
    return value


class Node(Model):
    """One step: with, output and writes are its contract; its block, such as code, llm or map, says how."""

    name: Identifier = Field(description="Name, unique in its graph or template, as it occurs in expressions.")
    description: str | None = Field(None, max_length=MAX_DESCRIPTION, description="What the node is for.")
    with_: Expressions = Field(
        default_factory=dict,
        description="What the node reads: name → Python expression over input, state, run and nodes. "
        "Its block sees these names and nothing else.",
    )
    load: Loads = Field(
        default_factory=dict,
        description="What is read out of files when the node runs: name → file. The names stand beside those of with.",
    )
    after: Annotated[list[Identifier], atomic(max_length=MAX_ENTRIES)] = Field(
        default_factory=list, description="Nodes to wait for, for order that no read expresses."
    )
    join: JoinBlock | None = Field(
        None,
        description="How many of the nodes in after, or where there is none of those whose output it reads, have to "
        "end well before the node runs. Absent, all of them end first.",
    )
    when: Expression | None = Field(
        None, description="Python expression; when it is false the node is skipped. Absent, the node runs."
    )
    otherwise: Fields | None = Field(
        None,
        description="Output of the node when it is skipped, and with onFailure: otherwise when it fails: name → Python "
        "expression. Absent, it is None, and nodes that come only after it are skipped too.",
    )
    on_failure: Literal["fail", "skip", "otherwise"] | None = Field(
        None,
        description="What becomes of a node that fails: fail ends the run or the item; skip makes it a skipped node; "
        "otherwise gives it the output that otherwise says. Default fail.",
    )
    output: Schema | None = Field(
        None,
        description="What the node gives: a JSON Schema (2020-12, see docs), the name of a shared schema, or name → "
        "schema. "
        "Default for llm and agent {text: string}, for tool that of the tool; inferred for transform, graph, map and "
        "loop; required for code.",
    )
    writes: Expressions = Field(
        default_factory=dict,
        description="Channel → Python expression over the names of with, input, state, nodes and output.",
    )
    retry: Retry | None = Field(None, description="Tries after the first one.")
    workspace: NodeWorkspace | None = Field(
        None,
        description="Which files of the run it sees and changes, for tool and agent nodes that call tools of the "
        "server workspace.",
    )
    timeout_seconds: float | None = Field(
        None,
        gt=0,
        le=604_800,
        description="Longest time of one try, in seconds. Default 1 for transform and switch, 30 for code, 600 for "
        "llm and for each turn of agent, that of the MCPServer for tool; none for graph, map and loop. An approval "
        "has one of its own.",
    )
    context: Context | None = Field(
        None, description="What the model of an llm or agent node sees beside its prompt. Absent, nothing."
    )
    limits: Limits | None = Field(
        None,
        description="What the node may use with all that it runs: a map with its items, an agent with its tools.",
    )
    transform: Fields | None = Field(
        None,
        description="The output by expressions: name → Python expression over the names of with, or $value → one "
        "expression.",
    )
    code: Annotated[Text, BeforeValidator(_source)] | None = Field(
        None,
        description="The output by Python source over the names of with; its last expression is the result.",
    )
    tool: ToolBlock | None = Field(None, description="The output by one call of a tool.")
    llm: LlmBlock | None = Field(None, description="The output by one call of a model.")
    agent: AgentBlock | None = Field(None, description="The output by a model that calls tools in turns.")
    graph: GraphBlock | None = Field(None, description="The output by a template or another graph that runs once.")
    map: MapBlock | None = Field(None, description="The output by a template that runs for every item of a list.")
    loop: LoopBlock | None = Field(
        None, description="The output by a template that runs round after round; it has iterations beside."
    )
    switch: SwitchBlock | None = Field(None, description="No output: which of the nodes that it names run, by a value.")

    approval: ApprovalBlock | None = Field(None, description="The output by people, for whose decision the node waits.")

    sensitive: bool | None = Field(
        None,
        description="true: what the node gives is sensitive, and encrypted in the ledger. false: it is not, though the "
        "node reads something that is. Absent, it is when something that the node reads is.",
    )

    rules = (one_of(*BLOCKS),)
    later: ClassVar[Mapping[str, str]] = {
        "assurance": "remove it",
    }


class Template(Model):
    """A private graph: what a graph node runs once, a map for every item, a loop in every round."""

    name: Identifier = Field(description="Name, unique among the templates.")
    description: str | None = Field(
        None,
        max_length=MAX_DESCRIPTION,
        description="What the template is for; what an agent's model is told of it where it is a tool.",
    )
    input: Annotated[dict[FieldName, Schema], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=dict, description=_INPUT_TEXT
    )
    state: Annotated[list[Channel], named(max_length=MAX_CHANNELS)] = Field(
        default_factory=list, description=_STATE_TEXT
    )
    nodes: Annotated[list[Node], named(min_length=1, max_length=MAX_NODES)] = Field(description=_NODES_TEXT)
    output: Fields = Field(default_factory=dict, description=_OUTPUT_TEXT)
    finally_: Annotated[list[Node], named(max_length=MAX_FINALS)] = Field(
        default_factory=list, description=_SCOPE_FINALLY_TEXT
    )
    limits: Limits | None = Field(None, description="What each run of the template may use.")

    later: ClassVar[Mapping[str, str]] = {
        "workspace": "write it into the graph: a template works on the files of the node that runs it",
    }


class TaskGraphSpec(Model):
    """A graph."""

    description: str | None = Field(
        None,
        max_length=MAX_DESCRIPTION,
        description="What the graph is for; what an agent's model is told of it where it is a tool.",
    )
    schemas: Annotated[dict[SchemaName, Schema], Field(max_length=128)] = Field(
        default_factory=dict,
        description="Shared schemas: name → JSON Schema (2020-12, see docs). The name may stand wherever a schema "
        "stands.",
    )
    input: Annotated[dict[FieldName, Schema], Field(max_length=MAX_ENTRIES)] = Field(
        default_factory=dict, description=_INPUT_TEXT
    )
    state: Annotated[list[Channel], named(max_length=MAX_CHANNELS)] = Field(
        default_factory=list, description=_STATE_TEXT
    )
    nodes: Annotated[list[Node], named(min_length=1, max_length=MAX_NODES)] = Field(description=_NODES_TEXT)
    output: Fields = Field(default_factory=dict, description=_OUTPUT_TEXT)
    finally_: Annotated[list[Node], named(max_length=MAX_FINALS)] = Field(
        default_factory=list, description=_FINALLY_TEXT
    )
    limits: Limits | None = Field(None, description="What one run may use.")
    context: Context | None = Field(
        None,
        description="What the models of its llm and agent nodes, and of those in its templates, see beside their "
        "prompts, where neither the node nor its Agent says.",
    )
    workspace: RunWorkspace | None = Field(
        None, description="The files of a run: where they come from, and how many there may be."
    )
    templates: Annotated[list[Template], named(max_length=MAX_TEMPLATES)] = Field(
        default_factory=list, description="Private graphs that graph, map and loop nodes run."
    )
    delimiters: Delimiters | None = Field(
        None,
        description="What opens and closes an expression in texts, where {{ and }} mean something to another tool, as "
        'in ["<<", ">>"].',
    )
    history: History | None = Field(
        None, description="How many ended runs of this graph are kept as resources. Absent, all are kept."
    )
    needs: Needs = Field(
        default_factory=dict,
        description="What whoever uses this graph may swap: name → kind. Unbound, a name means the resource of that "
        "name.",
    )

    sensitive: Annotated[list[Annotated[FieldName, Field(max_length=63)]], atomic(max_length=MAX_ENTRIES)] = Field(
        default_factory=list,
        description="Names of the input that are sensitive: they are encrypted in the ledger with a key of the run, "
        "and so is what nodes make of them. Who destroys the key erases them.",
    )

    kubernetes: ClassVar[Mapping[str, Any]] = {"x-kubernetes-map-type": "atomic"}
    later: ClassVar[Mapping[str, str]] = {
        "expose": "remove it",
    }


class GraphFinding(Model):
    """One thing that the compiler found."""

    code: str = Field(max_length=32, description="Stable code, such as CYCLE.")
    path: str = Field(max_length=1024, description="Place in the spec, by names.")
    message: str = Field(max_length=1024, description="What is wrong and what to do next.")
    severity: Literal["error", "warning"] = Field("error", description="Whether it keeps the graph from running.")


class TaskGraphStatus(Model):
    """What the operator knows of the graph."""

    observed_generation: int | None = Field(None, description="Generation of the spec that the status was made from.")
    conditions: Conditions = Field(
        default_factory=list,
        description="Ready (all of the following), Compiled, ReferencesResolved; Stalled when only a change of the "
        "spec helps.",
    )
    digest: str | None = Field(None, max_length=64, description="Digest of the compiled graph, as runs name it.")
    findings: Annotated[list[GraphFinding], atomic(max_length=10)] = Field(
        default_factory=list, description="The first findings of the compiler."
    )


class TaskGraph(Resource):
    """A graph: its input, nodes, output and templates."""

    kind: Literal["TaskGraph"] = Field(description="Kind of the resource.")
    spec: TaskGraphSpec = Field(description="The graph.")
    status: TaskGraphStatus | None = Field(None, description="What the operator knows of the graph.")

    plural: ClassVar[str] = "taskgraphs"
    short_name: ClassVar[str] = "tg"
    columns = (
        ("Ready", '.status.conditions[?(@.type=="Ready")].status'),
        ("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    )
    wide_columns = (
        ("Digest", ".status.digest"),
        ("Message", '.status.conditions[?(@.type=="Ready")].message'),
    )

"""A graph while it is compiled: names are resolved and sources parsed, types and order are not known yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from decurion_crds.canonical import Json
from decurion_crds.compile.agent_tools import is_agent, shown
from decurion_crds.compile.agents import AgentDraft
from decurion_crds.compile.report import Spot
from decurion_crds.compile.tools import ToolDraft
from decurion_crds.compiled import NodeKind, Schema, Text
from decurion_crds.expressions.code import ParsedCode
from decurion_crds.expressions.syntax import Parsed
from decurion_crds.v1alpha1 import LLM, Agent, Limits, Load, MCPServer, Merge, Node
from decurion_crds.v1alpha1.context import Context

if TYPE_CHECKING:
    from decurion_crds.compile.contexts import ContextDraft

View: TypeAlias = Literal["scope", "work", "item", "writes", "round"]
"""Which names an expression sees: those of the scope (`input nodes state run`), those of the node's `with`, those of
the scope and one item of a map, those of the scope and the node's own `output`, or those of the scope and one round of
a loop.
"""
SCOPE_NAMES = ("input", "nodes", "state", "run")
VALUE = "$value"


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """An accepted expression at its place. `scalar` is the text that it starts in at `line`, `column`."""

    spot: Spot
    view: View
    parsed: Parsed
    scalar: str
    line: int = 1
    column: int = 1

    def reads(self, root: str) -> list[str]:
        """The second names of the paths that it reads below `root`; `""` when it reads `root` itself."""
        return [
            path.partition(".")[2].partition(".")[0]
            for path in self.parsed.expr.reads
            if path == root or path.startswith(f"{root}.")
        ]


@dataclass(frozen=True, slots=True)
class ChannelDraft:
    name: str
    spot: Spot
    schema: Schema
    merge: Merge
    initial: Json


@dataclass(eq=False, slots=True)
class TextDraft:
    """A text with `{{ }}` and its expressions."""

    text: Text
    sites: list[Site]


@dataclass(frozen=True, slots=True)
class Use:
    """A scope that a node runs: `scope` is its name in the draft, and `spot` the field that names it.

    `graph` is the name of another graph, None for a template of the node's own; `bind` says what the needs of the other
    stand for, in names of the graph that the node is in, or where `apart`, in names of resources: those of an Agent.
    """

    scope: str
    spot: Spot
    graph: str | None = None
    bind: Mapping[str, str] = field(default_factory=dict)
    apart: bool = False

    @property
    def shown(self) -> str:
        """`template one`, or `graph lookup`."""
        if self.graph is not None and is_agent(self.graph):
            return shown(self.graph)
        return f"graph {self.graph}" if self.graph is not None else f"template {self.scope.rpartition('/')[2]}"


@dataclass(frozen=True, slots=True)
class Race:
    """The nodes of which `count` have to end well before a node begins; the rest is then given up."""

    racers: tuple[str, ...]
    count: int


@dataclass(frozen=True, eq=False, slots=True)
class LoadDraft:
    """A value out of a file: where `site` says, of the type `schema`."""

    spot: Spot
    site: Site
    model: Load
    schema: Schema


@dataclass(eq=False, slots=True)
class NodeDraft:
    """A node. `names` are those of `with` and `load`; one whose expression was refused is in neither of the two here.

    `choice` is the switch in a case of which the node stands, `arm` the number of that case (`default` is the last),
    and `chosen_at` where it stands there. `output` is what is declared, or the default of the kind; None when it has to
    be inferred. `broken` says that a part of the block was refused, so that nothing is said about the block's type.
    """

    name: str
    kind: NodeKind
    spot: Spot
    model: Node
    names: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    with_: dict[str, Site] = field(default_factory=dict)
    load: dict[str, LoadDraft] = field(default_factory=dict)
    when: Site | None = None
    otherwise: dict[str, Site] | None = None
    choice: str | None = None
    arm: int = 0
    chosen_at: Spot | None = None
    writes: dict[str, Site] = field(default_factory=dict)
    output: Schema | None = None
    transform: dict[str, Site] = field(default_factory=dict)
    code: ParsedCode | None = None
    tool: ToolDraft | None = None
    agent: AgentDraft | None = None
    system: TextDraft | None = None
    prompt: TextDraft | None = None
    message: TextDraft | None = None
    examples: list[TextDraft] = field(default_factory=list)
    form: Schema | None = None
    choices: dict[str, Site] = field(default_factory=dict)
    items: Site | None = None
    jsonl: Site | None = None
    prefix: Site | None = None
    line: Schema | None = None
    key: Site | None = None
    value: Site | None = None
    next: dict[str, Site] = field(default_factory=dict)
    until: Site | None = None
    score: Site | None = None
    body: Use | None = None
    race: Race | None = None
    broken: bool = False
    context: ContextDraft | None = None

    @property
    def template(self) -> str | None:
        """The name in the draft of the scope that it runs."""
        return self.body.scope if self.body is not None else None

    def uses(self) -> Iterator[Use]:
        """All scopes that run below the node."""
        if self.body is not None:
            yield self.body
        if self.agent is not None:
            yield from self.agent.uses()

    def drop(self, use: Use) -> None:
        """Leave out a use that was refused."""
        if use is self.body:
            self.body = None
        if self.agent is not None:
            self.agent = self.agent.without(use)

    def scope_sites(self) -> Iterator[Site]:
        """All expressions that read from the scope."""
        alone = (self.when, self.items, self.jsonl, self.prefix, self.key, self.value, self.until, self.score)
        yield from (site for site in alone if site is not None)
        yield from self.next.values()
        yield from self.with_.values()
        yield from (load.site for load in self.load.values())
        yield from (self.otherwise or {}).values()
        yield from self.writes.values()
        yield from self.context.ledger.values() if self.context is not None else ()

    def texts(self) -> Iterator[TextDraft]:
        """The texts of the block."""
        yield from (text for text in (self.system, *self.examples, self.prompt, self.message) if text is not None)

    def work_sites(self) -> Iterator[Site]:
        """All expressions of the block that read from `with`."""
        yield from self.transform.values()
        yield from self.choices.values()
        if self.tool is not None:
            yield from self.tool.arguments.sites()
        for text in self.texts():
            yield from text.sites


@dataclass(eq=False, slots=True)
class ScopeDraft:
    """The root (`name` is ""), a template, or another graph with its templates: `graph` is "" for the compiled one's.
    `sensitive` are the inputs that it says are. `refused` holds names of output fields that were refused,
    `switches` those of the nodes that are switches. The `input` of an `open` one is inferred from the one node
    that runs it. `final` is the scope of its `finally`, and `outer` of that the scope whose it is. `doubtful`
    says that there is a finding about what runs when, so that nothing is said about what is None because of it.
    `source` is where the files of the run come from.
    """

    name: str
    spot: Spot
    input: Schema
    graph: str = ""
    description: str = ""
    open: bool = False
    sensitive: tuple[str, ...] = ()
    channels: dict[str, ChannelDraft] = field(default_factory=dict)
    nodes: dict[str, NodeDraft] = field(default_factory=dict)
    output: dict[str, Site] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    switches: frozenset[str] = frozenset()
    source: Site | None = None
    final: ScopeDraft | None = None
    outer: ScopeDraft | None = None
    doubtful: bool = False
    limits: Limits | None = None
    """Those of each run of it."""
    context: Context | None = None
    """What its graph says of what models see."""
    top: bool = False
    """Whether it is a graph itself, and no template or `finally`."""


@dataclass(eq=False, slots=True)
class GraphDraft:
    """All scopes by name, the root first; `needs` of its graphs; `resources` by kind and name; all names `known`."""

    name: str
    scopes: dict[str, ScopeDraft] = field(default_factory=dict)
    needs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    resources: dict[str, Mapping[str, LLM | MCPServer | Agent]] = field(default_factory=dict)
    known: dict[str, Sequence[str]] = field(default_factory=dict)

    @property
    def root(self) -> ScopeDraft:
        return self.scopes[""]

"""First pass: names, references, schemas and the syntax of everything that is written in the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from decurion_crds.compile.agents import given_output, resolve_agent
from decurion_crds.compile.approvals import check_approval
from decurion_crds.compile.channels import channel_draft
from decurion_crds.compile.draft import (
    SCOPE_NAMES,
    VALUE,
    ChannelDraft,
    GraphDraft,
    LoadDraft,
    NodeDraft,
    ScopeDraft,
    Site,
    TextDraft,
    Use,
    View,
)
from decurion_crds.compile.files import TEXT, check_items_from, check_load
from decurion_crds.compile.finals import check_finals, final_name
from decurion_crds.compile.loops import ROUND_NAMES, check_block
from decurion_crds.compile.naming import (
    check_channels,
    check_name,
    check_names,
    check_references,
    existing,
    missing_template,
    nodes_after,
)
from decurion_crds.compile.refs import ROOT, Around, Library, Module, scope_name
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compile.retries import check_retry
from decurion_crds.compile.switches import assign_cases
from decurion_crds.compile.tools import resolve_tool
from decurion_crds.compiled import LISTED_FILE, SWITCH_OUTPUT, NodeKind, Schema
from decurion_crds.errors import OutputMismatch, SchemaRefused, ValueRefused
from decurion_crds.expressions.code import parse_code
from decurion_crds.expressions.errors import ExpressionRefused, Problem
from decurion_crds.expressions.shapes import ANY, settled
from decurion_crds.expressions.syntax import parse_expression
from decurion_crds.expressions.text import BRACES, parse_text
from decurion_crds.schemas import expand_fields, expand_schema
from decurion_crds.v1alpha1 import (
    AgentBlock,
    Channel,
    GraphBlock,
    MapBlock,
    Node,
    TaskGraphSpec,
    Template,
    ToolBlock,
)
from decurion_crds.v1alpha1.agent import AgentTool
from decurion_crds.v1alpha1.taskgraph import LoopBlock
from decurion_crds.values import Validator, normalise

LLM_OUTPUT: Schema = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
_KINDS: tuple[NodeKind, ...] = (
    "transform",
    "code",
    "tool",
    "llm",
    "agent",
    "graph",
    "map",
    "loop",
    "switch",
    "approval",
)


def resolve(root: Module, draft: GraphDraft, around: Around, report: Report) -> None:
    """Adds the scopes of a graph, and of those that it refers to, to `draft`. What is refused is in the report and left
    out.
    """
    library = Library(root, around, report, agents=draft.resources.get("Agent", {}))
    for owner, module in library.pending():
        _Resolver(module, owner, draft, library, report).graph()


class _Resolver:
    def __init__(self, module: Module, owner: str, draft: GraphDraft, library: Library, report: Report) -> None:
        graph = module.graph
        self._spec = graph.spec
        self._open = module.open
        self._owner = owner
        self._library = library
        self._report = report
        self._draft = draft
        opening, closing = graph.spec.delimiters or BRACES
        self._delimiters = (opening, closing)
        self._templates = [template.name for template in graph.spec.templates]

    def graph(self) -> None:
        top = Spot(("spec",), "", self._owner)
        self._draft.needs[self._owner] = self._spec.needs
        for name, written in self._spec.schemas.items():
            self._schema(written, top.below("schemas", name))
        check_names(self._templates, top.below("templates"), "template", self._report)
        name = scope_name(self._owner)
        self._draft.scopes[name] = self._scope(name, self._spec, top)
        workspace = self._spec.workspace
        if self._owner == ROOT and workspace is not None:
            spot = top.below("workspace", "from")
            self._draft.root.source = self._optional(workspace.from_, spot, "scope", ("input",))
        for i, template in enumerate(self._spec.templates):
            spot = top.below("templates").item(i, template.name)
            name = scope_name(self._owner, template.name)
            self._draft.scopes.setdefault(name, self._scope(name, template, spot))
        self._final(scope_name(self._owner), self._spec.finally_, top)
        for i, template in enumerate(self._spec.templates):
            spot = top.below("templates").item(i, template.name)
            self._final(scope_name(self._owner, template.name), template.finally_, spot)

    def _scope(self, name: str, body: TaskGraphSpec | Template, spot: Spot) -> ScopeDraft:
        scope = ScopeDraft(name, spot, self._fields(body.input, spot.below("input")), graph=self._owner)
        scope.open = isinstance(body, Template) and body.name in self._open
        scope.sensitive = tuple(body.sensitive) if isinstance(body, TaskGraphSpec) else ()
        scope.description = body.description or ""
        scope.limits = body.limits
        scope.context, scope.top = self._spec.context, not isinstance(body, Template)
        check_names([channel.name for channel in body.state], spot.below("state"), "channel", self._report)
        for i, channel in enumerate(body.state):
            draft = self._channel(channel, spot.below("state").item(i, channel.name))
            scope.channels.setdefault(channel.name, draft)
        check_names([node.name for node in body.nodes], spot.below("nodes"), "node", self._report)
        known = [node.name for node in body.nodes]
        self._nodes(scope, body.nodes, spot.below("nodes"), known)
        scope.output = self._expressions(body.output, spot.below("output"), "scope", SCOPE_NAMES)
        scope.output = existing(scope.output, scope, known, self._report)
        scope.refused = set(body.output) - set(scope.output)
        self._value_alone(body.output, spot.below("output"))
        return scope

    def _nodes(self, scope: ScopeDraft, nodes: Sequence[Node], spot: Spot, known: list[str]) -> None:
        own = frozenset(node.name for node in nodes if node.switch is not None)
        scope.switches = own if scope.outer is None else own | scope.outer.switches
        for i, node in enumerate(nodes):
            scope.nodes.setdefault(node.name, self._node(node, spot.item(i, node.name), scope, known))
        assign_cases(scope, self._report)

    def _final(self, name: str, nodes: Sequence[Node], spot: Spot) -> None:
        """The scope of the `finally` of a scope. It sees what that has, and its own nodes."""
        outer = self._draft.scopes[name]
        if not nodes or outer.final is not None:
            return
        scope = ScopeDraft(final_name(name), spot, outer.input, graph=self._owner, channels=outer.channels, outer=outer)
        outer.final = self._draft.scopes[scope.name] = scope
        scope.context = self._spec.context
        check_finals(nodes, outer, spot.below("finally"), self._report)
        known = [*outer.nodes, *(node.name for node in nodes)]
        self._nodes(scope, nodes, spot.below("finally"), known)

    def _schema(self, written: str | dict[str, Any], spot: Spot) -> Schema:
        try:
            return _settled(expand_schema(written, self._spec.schemas, self._library.schemas))
        except SchemaRefused as refused:
            self._report.schema(refused, spot)
            return ANY

    def _fields(self, written: Mapping[str, Any], spot: Spot) -> Schema:
        try:
            return _settled(expand_fields(written, self._spec.schemas, self._library.schemas))
        except SchemaRefused as refused:
            self._report.schema(refused, spot)
            return {"type": "object"}

    def _channel(self, channel: Channel, spot: Spot) -> ChannelDraft:
        schema = self._schema(channel.schema_, spot.below("schema"))
        draft = channel_draft(channel, schema, spot, self._report)
        if channel.initial is None:
            return draft
        try:
            initial = normalise(channel.initial, draft.schema)
            Validator(draft.schema).check(initial)
        except (OutputMismatch, ValueRefused) as error:
            self._report.add("FIELD-VALUE", spot.below("initial"), f"it breaks the channel's schema: {error}")
            return draft
        return replace(draft, initial=initial)

    def _node(self, node: Node, spot: Spot, scope: ScopeDraft, known: list[str]) -> NodeDraft:
        kind = next(kind for kind in _KINDS if getattr(node, kind) is not None)
        draft = NodeDraft(
            name=node.name, kind=kind, spot=spot, model=node, names=tuple(sorted({*node.with_, *node.load}))
        )
        for name in node.with_:
            check_name(name, spot.below("with", name), self._report)
        self._loads(draft, node)
        draft.with_ = self._expressions(node.with_, spot.below("with"), "scope", SCOPE_NAMES)
        draft.when = self._optional(node.when, spot.below("when"), "scope", SCOPE_NAMES)
        if node.otherwise is not None:
            draft.otherwise = self._expressions(node.otherwise, spot.below("otherwise"), "scope", SCOPE_NAMES)
            self._value_alone(node.otherwise, spot.below("otherwise"))
        names = (*SCOPE_NAMES, "output")
        draft.writes = self._expressions(node.writes, spot.below("writes"), "writes", names)
        check_channels(draft, scope, self._report)
        own = known if scope.outer is None else [name for name in known if name not in scope.outer.nodes]
        draft.after = nodes_after(node.after, spot.below("after"), own, scope.outer, self._report)
        if node.output is not None:
            draft.output = self._schema(node.output, spot.below("output"))
        self._on_failure(node, spot.below("onFailure"))
        self._block(draft, node)
        check_retry(draft, self._report)
        check_references(draft, scope, known, self._report)
        return draft

    def _loads(self, draft: NodeDraft, node: Node) -> None:
        for name, load in node.load.items():
            spot = draft.spot.below("load", name)
            check_name(name, spot, self._report)
            check_load(load, spot, self._report, taken=name in node.with_)
            site = self._optional(load.from_, spot.below("from"), "scope", SCOPE_NAMES)
            schema = self._schema(load.schema_, spot.below("schema")) if load.schema_ is not None else ANY
            if site is not None and name not in node.with_:
                draft.load[name] = LoadDraft(spot, site, load, schema if load.as_ == "json" else TEXT)

    def _on_failure(self, node: Node, spot: Spot) -> None:
        if node.on_failure == "otherwise" and node.otherwise is None:
            remedy = "write onFailure: skip" if node.switch is not None else "add otherwise, or write onFailure: skip"
            message = f"there is no otherwise to go on with when the node fails; {remedy}"
            self._report.add("FIELD-MISSING", spot, message)
        elif node.on_failure == "skip" and node.otherwise is not None and node.switch is None:
            message = "a node that fails and is skipped has no output; write onFailure: otherwise, or remove otherwise"
            self._report.add("FIELD-VALUE", spot, message)

    def _block(self, draft: NodeDraft, node: Node) -> None:
        spot = draft.spot.below(draft.kind)
        if node.transform is not None:
            draft.transform = self._expressions(node.transform, spot, "work", draft.names)
            draft.broken = len(draft.transform) < len(node.transform)
            self._value_alone(node.transform, spot)
        elif node.code is not None:
            self._code(draft, node.code, spot)
        elif node.tool is not None:
            self._tool(draft, node.tool, spot)
        elif node.llm is not None:
            draft.output = LLM_OUTPUT if node.output is None else draft.output
            draft.prompt = self._text(node.llm.prompt, spot.below("prompt"), draft)
            if node.llm.system is not None:
                draft.system = self._text(node.llm.system, spot.below("system"), draft)
            for i, message in enumerate(node.llm.messages):
                text = self._text(message.content, spot.below("messages").at(i).below("content"), draft)
                draft.examples += [text] if text is not None else []
            draft.choices = self._expressions(node.llm.choices, spot.below("choices"), "work", draft.names)
        elif node.agent is not None:
            self._agent(draft, node.agent, spot)
        elif node.map is not None:
            self._map(draft, node, spot)
        elif node.graph is not None:
            draft.body = self._use(node.graph, spot)
        elif node.loop is not None:
            self._loop(draft, node.loop, spot)
        elif node.switch is not None:
            draft.value = self._optional(node.switch.value, spot.below("value"), "scope", SCOPE_NAMES)
            draft.output = SWITCH_OUTPUT
        elif node.approval is not None:
            draft.message = self._text(node.approval.message, spot.below("message"), draft)
            if node.approval.form is not None:
                draft.form = self._schema(node.approval.form, spot.below("form"))
            check_approval(draft, self._report)

    def _code(self, draft: NodeDraft, source: str, spot: Spot) -> None:
        try:
            draft.code = parse_code(source, draft.names)
        except ExpressionRefused as refused:
            self._refused(refused, spot, source)
            draft.broken = True
        if draft.model.output is None:
            message = (
                "code needs an output; declare what its last expression gives, as in output: {total: {type: number}}"
            )
            self._report.add("TYPE-DECLARE", draft.spot, message)
            draft.broken = True

    def _tool(self, draft: NodeDraft, block: ToolBlock, spot: Spot) -> None:
        result = self._optional(block.result, spot.below("result"), "work", ("raw",))
        draft.tool = resolve_tool(
            block,
            spot,
            self._draft.resources["MCPServer"],
            self._report,
            first=self._library.first(self._owner),
            parse=lambda src, at: self._text(src, at, draft),
            result=result,
        )
        draft.broken = draft.broken or draft.tool.tool is None or (block.result is not None and result is None)

    def _agent(self, draft: NodeDraft, block: AgentBlock, spot: Spot) -> None:
        resources = self._draft.resources
        apart = block.ref is not None

        def find(tool: AgentTool, at: Spot) -> Use | None:
            if tool.graph is not None:
                use = self._library.use(tool.graph, tool.bind, at, field="graph", apart=apart)
            elif tool.agent is not None:
                use = self._library.agent(tool.agent, at, apart=apart)
            else:
                use = self._template(tool.template or "", at)
            draft.broken = draft.broken or use is None
            return use

        first = self._library.first(self._owner)
        agents, servers = resources["Agent"], resources["MCPServer"]
        draft.agent = resolve_agent(block, spot, agents, servers, self._report, first=first, find=find)
        draft.prompt = self._text(block.prompt, spot.below("prompt"), draft)
        if draft.model.output is None:
            given = given_output(block.ref or "", draft.agent.spec, spot.below("ref"), self._report)
            # What an Agent that is not there gives is unknown; that it is not is told once.
            draft.output = given or (LLM_OUTPUT if draft.agent.spec is not None else None)

    def _map(self, draft: NodeDraft, node: Node, spot: Spot) -> None:
        block = node.map
        if block is None:
            return
        check_name(block.as_, spot.below("as"), self._report)
        if block.as_ in draft.names:
            field = "with" if block.as_ in node.with_ else "load"
            message = f'"{block.as_}" is the item here, and a name of {field}; rename one of them'
            self._report.add("DUPLICATE-NAME", spot.below("as"), message)
        draft.items = self._optional(block.items, spot.below("items"), "scope", SCOPE_NAMES)
        if block.items_from is not None:
            below = spot.below("itemsFrom")
            check_items_from(block.items_from, below, self._report)
            draft.jsonl = self._optional(block.items_from.jsonl, below.below("jsonl"), "scope", SCOPE_NAMES)
            draft.prefix = self._optional(block.items_from.prefix, below.below("prefix"), "scope", SCOPE_NAMES)
            written = block.items_from.schema_
            draft.line = self._schema(written, below.below("schema")) if written is not None else ANY
            if block.items_from.prefix is not None:
                draft.line = LISTED_FILE
        names = (*SCOPE_NAMES, block.as_, "index")
        draft.key = self._optional(block.key, spot.below("key"), "item", names)
        draft.body = self._use(block, spot)

    def _loop(self, draft: NodeDraft, block: LoopBlock, spot: Spot) -> None:
        names = (*SCOPE_NAMES, *ROUND_NAMES)
        draft.next = self._expressions(block.next, spot.below("next"), "round", names)
        draft.until = self._optional(block.until, spot.below("until"), "round", names)
        draft.score = self._optional(block.score, spot.below("score"), "round", names)
        draft.body = self._use(block, spot)
        check_block(block, spot, self._report)

    def _use(self, block: GraphBlock | MapBlock | LoopBlock, spot: Spot) -> Use | None:
        """The scope that a block at `spot` runs; None when there is none, which is in the report."""
        if block.ref is not None:
            return self._library.use(block.ref, block.bind, spot)
        return self._template(block.template or "", spot)

    def _template(self, name: str, spot: Spot) -> Use | None:
        """The template of a name at `spot.template`; None when there is none, which is in the report."""
        if name in self._templates:
            return Use(scope_name(self._owner, name), spot.below("template"))
        missing_template(name, self._templates, spot.below("template"), self._report)
        return None

    def _value_alone(self, written: Mapping[str, str], spot: Spot) -> None:
        if VALUE in written and len(written) > 1:
            message = f"{VALUE} is the whole result and stands alone; remove the other fields, or give it a name"
            self._report.add("FIELD-VALUE", spot.below(VALUE), message)

    def _expressions(self, written: Mapping[str, str], spot: Spot, view: View, names: Iterable[str]) -> dict[str, Site]:
        sites = {name: self._optional(src, spot.below(name), view, names) for name, src in written.items()}
        return {name: site for name, site in sites.items() if site is not None}

    def _optional(self, src: str | None, spot: Spot, view: View, names: Iterable[str]) -> Site | None:
        if src is None:
            return None
        try:
            return Site(spot=spot, view=view, parsed=parse_expression(src, tuple(names)), scalar=src)
        except ExpressionRefused as refused:
            self._refused(refused, spot, src, work=view == "work")
            return None

    def _text(self, src: str, spot: Spot, draft: NodeDraft) -> TextDraft | None:
        try:
            parsed = parse_text(src, draft.names, self._delimiters)
        except ExpressionRefused as refused:
            self._refused(refused, spot, src, work=True)
            draft.broken = True
            return None
        sites = [Site(spot, "work", e.parsed, src, e.line, e.column) for e in parsed.expressions]
        return TextDraft(text=parsed.text, sites=sites)

    def _refused(self, refused: ExpressionRefused, spot: Spot, scalar: str, *, work: bool = False) -> None:
        for problem in refused.problems:
            name = problem.message.partition(" ")[0]
            if work and problem.code == "EXPR-NAME" and name in SCOPE_NAMES:
                message = f"{name} is not seen inside a block; read it in with, and use that name here"
                problem = Problem(problem.code, message, problem.line, problem.column)
            self._report.problem(problem, spot, scalar)


def _settled(schema: Schema) -> Schema:
    return dict(settled(schema))

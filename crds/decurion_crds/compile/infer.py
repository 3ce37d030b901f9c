"""Second pass: the type of every expression, node and scope, as far as each is known from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decurion_crds.compile.conditions import NOTHING, Known
from decurion_crds.compile.draft import VALUE, GraphDraft, LoadDraft, NodeDraft, ScopeDraft, Site
from decurion_crds.compile.dues import (
    INDEX,
    KEY,
    check_input,
    check_lines,
    choice_dues,
    field_dues,
    input_dues,
    item_of,
    items_due,
    map_output,
)
from decurion_crds.compile.files import check_place, check_template
from decurion_crds.compile.finals import ENDED_RUN
from decurion_crds.compile.loops import ITERATION, SCORE, check_next, loop_output
from decurion_crds.compile.order import Order, channels_read, writers
from decurion_crds.compile.refs import scope_name
from decurion_crds.compile.report import Report
from decurion_crds.compile.rounds import Cell, Rounds, Typing
from decurion_crds.compile.sites import SILENT, Due, SiteTyper, Undetermined
from decurion_crds.compile.switches import check_cases
from decurion_crds.compile.tools import Arguments, result_type
from decurion_crds.compiled import Code, Schema
from decurion_crds.expressions.check import Answer, Checker, Task
from decurion_crds.expressions.enums import probe, strangers
from decurion_crds.expressions.shapes import (
    ANY,
    branches,
    fields,
    holds_enum,
    mismatch,
    nullable,
    record,
    texts_alone,
    union,
)
from decurion_crds.expressions.types import Types
from decurion_crds.expressions.wording import Context, problems, unfit
from decurion_crds.seen import Seen

RUN: Schema = {"title": "run", **record({"id": {"type": "string"}, "scheduledAt": {"type": "string"}})}
_BY_OUTPUT = "declare the node's output"
_BY_TRANSFORM = "compute it in a transform node with an output, and read that"


@dataclass(eq=False, slots=True)
class Typed:
    """What the second pass found: outputs of nodes and scopes, item schemas of maps, sources as functions, and what
    each node sees.

    Keys are (scope, node). What is not known, because of a finding, is the schema of everything.
    """

    nodes: dict[tuple[str, str], Schema] = field(default_factory=dict)
    scopes: dict[str, Schema] = field(default_factory=dict)
    items: dict[tuple[str, str], Schema] = field(default_factory=dict)
    codes: dict[tuple[str, str], Code] = field(default_factory=dict)
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)


def infer(draft: GraphDraft, orders: Mapping[str, Order], checker: Checker, report: Report) -> Typed:
    """Types a graph whose names are resolved. Raises `CheckFailed` when the checker gives no answer."""
    return _Inference(draft, orders, checker, report).run()


class _Inference:
    def __init__(self, draft: GraphDraft, orders: Mapping[str, Order], checker: Checker, report: Report) -> None:
        self._draft = draft
        self._orders = orders
        self._checker = checker
        self._report = report
        self._types = Types()
        self._rounds = Rounds(checker, self._types.definitions)
        self._sites = SiteTyper(self._types, self._rounds, report)
        self._outputs: dict[tuple[str, str], Cell[Schema | None]] = {}
        self._scopes: dict[str, Cell[Schema | None]] = {}
        self._with: dict[tuple[str, str], dict[str, Cell[Schema | None]]] = {}
        self._fields: dict[tuple[str, str], dict[str, Cell[Schema | None]]] = {}
        self._exhausted: dict[tuple[str, str], Cell[bool]] = {}
        """Whether the cases of a switch name every value."""
        self._open: dict[str, Cell[Schema | None]] = {}
        """What bodies in place are given, by scope."""
        self._items_of: dict[tuple[str, str], Cell[Schema | None]] = {}
        self._absent: dict[tuple[str, str], set[str]] = {}
        self._typed = Typed()

    def run(self) -> Typed:
        for scope in self._draft.scopes.values():
            for node in scope.nodes.values():
                self._begin(scope, node)
            self._scopes[scope.name] = self._rounds.spawn(self._scope_output(scope))
            if scope.source is not None:
                self._rounds.spawn(self._fits(scope, None, scope.source, Due({"type": "string"})))
        for scope in self._draft.scopes.values():
            for node in scope.nodes.values():
                self._rounds.spawn(self._node(scope, node))
        self._rounds.run()
        for name, given in self._open.items():
            self._draft.scopes[name].input = ANY if given.value is None else given.value
        for key, cell in self._outputs.items():
            self._typed.nodes[key] = ANY if cell.value is None else cell.value
        for name, result in self._scopes.items():
            self._typed.scopes[name] = ANY if result.value is None else result.value
        for key, names in self._with.items():
            seen = {name: ANY if cell.value is None else cell.value for name, cell in names.items()}
            absent = frozenset(self._absent.get(key, ()))
            self._typed.seen[key] = Seen(seen, absent, _run(self._draft.scopes[key[0]]))
        return self._typed

    def _begin(self, scope: ScopeDraft, node: NodeDraft) -> None:
        """Sets up what other nodes may wait for."""
        key = (scope.name, node.name)
        inner = self._draft.scopes[node.template] if node.template is not None else None
        due = input_dues(inner.input) if inner is not None and not inner.open else None
        self._with[key] = {
            name: self._rounds.spawn(self._with_name(scope, node, name, due))
            for name in node.names
            if name in node.with_
        }
        for name, load in node.load.items():
            self._with[key][name] = self._rounds.spawn(self._loaded(scope, node, load, (due or {}).get(name)))
        if node.items is not None:
            self._items_of[key] = self._rounds.spawn(self._items(scope, node, node.items))
        if inner is not None and inner.open:
            self._open[inner.name] = self._rounds.spawn(self._given(scope, node, inner))
        self._outputs[key] = self._rounds.spawn(self._output(scope, node))
        if node.value is not None:
            self._exhausted[key] = self._rounds.spawn(self._cases(scope, node, node.value))

    # --- what an expression sees

    def _names(self, scope: ScopeDraft, node: NodeDraft | None, site: Site) -> Typing[dict[str, Schema | None]]:
        """The names of the scope that the expression reads, holding no more than it reads of `nodes` and `state`."""
        roots = {path.partition(".")[0] for path in site.parsed.expr.reads}
        names: dict[str, Schema | None] = {}
        if "input" in roots:
            name = scope.name if scope.outer is None else scope.outer.name
            given: Schema | None = (yield self._open[name]) if name in self._open else scope.input
            names["input"] = {"title": "input", **given} if given is not None else None
        if "run" in roots:
            names["run"] = _run(scope)
        if "state" in roots:
            channels: dict[str, Schema] = {}
            for name in channels_read(scope, site):
                channels[name] = yield from self._channel(scope, node, site, name)
                if node is not None and channels[name] is not scope.channels[name].schema:
                    self._absent.setdefault((scope.name, node.name), set()).add(f"state.{name}")
            names["state"] = {"title": "state", **record(channels)}
        if "nodes" in roots:
            names["nodes"] = yield from self._nodes(scope, node, site)
        return names

    def _known(self, scope: ScopeDraft, node: NodeDraft | None, site: Site) -> Known:
        """What holds when the expression is evaluated. `otherwise` is for when the node does not run."""
        if node is None or any(site is other for other in (node.otherwise or {}).values()):
            return NOTHING
        return self._orders[scope.name].conditions.known(node.name)

    def _nodes(self, scope: ScopeDraft, node: NodeDraft | None, site: Site) -> Typing[Schema | None]:
        conditions, known = self._orders[scope.name].conditions, self._known(scope, node, site)
        found: dict[str, Schema] = {}
        for name in dict.fromkeys(site.reads("nodes")):
            outer = scope.outer
            before = outer is not None and name in outer.nodes
            output: Schema | None = yield self._outputs[
                outer.name if outer is not None and before else scope.name, name
            ]
            if output is None:
                return None
            if before or conditions.may_be_none(name, known):
                output = nullable(output)
                if node is not None:
                    self._absent.setdefault((scope.name, node.name), set()).add(f"nodes.{name}")
            found[name] = {"title": f"nodes.{name}", **record({"output": output})}
        return {"title": "nodes", **record(found)}

    def _channel(self, scope: ScopeDraft, node: NodeDraft | None, site: Site, name: str) -> Typing[Schema]:
        """The type of a channel as `node` reads it (the scope's output, when None): None before the first write."""
        channel = scope.channels[name]
        if channel.initial is not None:
            return channel.schema
        if scope.outer is not None:
            return nullable(channel.schema)
        order = self._orders[scope.name]
        before = [writer for writer in writers(scope, name) if node is None or order.before(writer, node.name)]
        exhausted: set[str] = set()
        if any(scope.nodes[writer].choice is not None for writer in before):
            for switch in scope.switches:
                cell = self._exhausted.get((scope.name, switch))
                if cell is not None and (node is None or order.before(switch, node.name)) and (yield cell):
                    exhausted.add(switch)
        if order.conditions.one_runs(before, self._known(scope, node, site), exhausted=exhausted):
            return channel.schema
        return nullable(channel.schema)

    def _work_names(self, scope: ScopeDraft, node: NodeDraft) -> Typing[dict[str, Schema | None]]:
        names: dict[str, Schema | None] = {}
        for name in node.names:
            cell = self._with[scope.name, node.name].get(name)
            names[name] = (yield cell) if cell is not None else None
        return names

    # --- nodes

    def _node(self, scope: ScopeDraft, node: NodeDraft) -> Typing[None]:
        """Everything of a node that no other node waits for."""
        key = (scope.name, node.name)
        spawn = self._rounds.spawn
        if node.when is not None:
            spawn(self._fits(scope, node, node.when, Due({"type": "boolean"})))
        for name, site in node.writes.items():
            spawn(self._written(scope, node, site, Due(scope.channels[name].schema)))
        if node.kind == "code":
            yield from self._code(scope, node)
        elif node.kind in ("llm", "agent", "approval"):
            yield from self._texts(scope, node)
        elif node.tool is not None and node.tool.tool is not None:
            names = yield from self._work_names(scope, node)
            tool = node.tool.tool
            Arguments(names, self._sites, self._rounds, self._report, tool.name).check(node.tool.arguments, tool.input)
        elif node.kind == "map":
            yield from self._map(scope, node)
        elif node.kind == "graph" and node.template is not None and node.template not in self._open:
            check_input(node, self._draft.scopes[node.template].input, self._report)
        elif node.kind == "loop" and node.template is not None:
            yield from self._loop(scope, node, node.template)
        if node.otherwise is not None:
            output: Schema | None = yield self._outputs[key]
            if output is not None:
                due = field_dues(output, node.model.otherwise or {}, node.spot.below("otherwise"), self._report)
                for name, site in node.otherwise.items():
                    spawn(self._fits(scope, node, site, due.get(name, Due(ANY))))

    def _fits(self, scope: ScopeDraft, node: NodeDraft | None, site: Site, due: Due) -> Typing[Schema | None]:
        names = yield from self._names(scope, node, site)
        return (yield from self._sites.fits(site, names, due))

    def _with_name(
        self, scope: ScopeDraft, node: NodeDraft, name: str, due: Mapping[str, Schema] | None
    ) -> Typing[Schema | None]:
        site = node.with_[name]
        if due is not None and name in due:
            return (yield from self._fits(scope, node, site, Due(due[name])))
        names = yield from self._names(scope, node, site)
        # A prompt takes any value: nothing relies on its type.
        silent = node.kind in ("tool", "llm", "agent", "map", "graph", "loop", "approval")
        otherwise = SILENT if silent else Undetermined(_BY_TRANSFORM)
        if node.template in self._open:
            otherwise = Undetermined(by_input(name))
        return (yield from self._sites.infers(site, names, otherwise))

    def _loaded(self, scope: ScopeDraft, node: NodeDraft, load: LoadDraft, due: Schema | None) -> Typing[Schema | None]:
        """The type of what a file gives: it is declared, and checked when the file is read."""
        names = yield from self._names(scope, node, load.site)
        check_place((yield from self._sites.infers(load.site, names, SILENT)), load, self._report)
        why = mismatch(load.schema, due) if due is not None else None
        if why is not None:
            self._report.add("EXPR-TYPE", load.spot, unfit(*why))
        return load.schema

    def _written(self, scope: ScopeDraft, node: NodeDraft, site: Site, due: Due) -> Typing[Schema | None]:
        names = yield from self._names(scope, node, site)
        if any(path.partition(".")[0] == "output" for path in site.parsed.expr.reads):
            output: Schema | None = yield self._outputs[scope.name, node.name]
            names["output"] = output if output is None else {"title": "output", **output}
        return (yield from self._sites.fits(site, names, due))

    def _output(self, scope: ScopeDraft, node: NodeDraft) -> Typing[Schema | None]:
        """The type of a node's output: declared, or made of its parts."""
        if node.kind in ("map", "graph", "loop"):
            return (yield from self._template_output(node))
        if node.kind == "transform":
            return (yield from self._transform(scope, node))
        if node.tool is not None:
            if node.broken:
                return node.output
            return (yield from result_type(node.tool, node.output, self._sites, _BY_OUTPUT, node.spot, self._report))
        return node.output

    def _transform(self, scope: ScopeDraft, node: NodeDraft) -> Typing[Schema | None]:
        names = yield from self._work_names(scope, node)
        if node.output is not None:
            due = field_dues(node.output, node.model.transform or {}, node.spot.below("transform"), self._report)
            for name, site in node.transform.items():
                self._rounds.spawn(self._sites.fits(site, names, due.get(name, Due(ANY))))
            return node.output
        otherwise = Undetermined(_BY_OUTPUT)
        cells = {
            name: self._rounds.spawn(self._sites.infers(site, names, otherwise))
            for name, site in node.transform.items()
        }
        found: dict[str, Schema | None] = {}
        for name, cell in cells.items():
            found[name] = yield cell
            instead = (node.otherwise or {}).get(name)
            if instead is not None and found[name] is not None and texts_alone(found[name]):
                found[name] = yield from self._or_other_text(scope, node, found[name] or ANY, instead)
        return None if node.broken else _together(found)

    def _or_other_text(self, scope: ScopeDraft, node: NodeDraft, text: Schema, instead: Site) -> Typing[Schema]:
        """The type of constant texts, with the text that `otherwise` has in their place: neither is declared."""
        names = yield from self._names(scope, node, instead)
        other = yield from self._sites.infers(instead, names, SILENT)
        return union([text, other]) if other is not None and texts_alone(other) else text

    def _code(self, scope: ScopeDraft, node: NodeDraft) -> Typing[None]:
        names = yield from self._work_names(scope, node)
        if node.code is None:
            return
        spot, source = node.spot.below("code"), node.code.src
        optional = {name for schema in names.values() if schema is not None for name in fields(schema)}
        compiled = node.code.compiled(optional)
        self._typed.codes[scope.name, node.name] = compiled
        refused = self._checker.not_supported(compiled.py)
        if refused is not None:
            self._report.add("EXPR-SYNTAX", spot, f"this is not supported in code: {refused}")
            return
        rendered = node.code.render("check", ())
        parameters = {
            name: self._types.annotation(ANY if schema is None else schema, name) for name, schema in names.items()
        }
        due = node.output
        returns = self._types.annotation(due, f"{node.name}_output") if due is not None else "object"
        counted = any(schema is not None and holds_enum(schema) for schema in names.values())
        probed = probe(rendered.text, is_code=True) if counted else None
        context = Context(
            types=self._types,
            source=rendered,
            generated=rendered.text,
            mismatch_code="OUTPUT-TYPE",
            due=due,
            names=tuple(names),
            is_code=True,
        )
        answer: Answer = yield Task(rendered.text, parameters, returns, is_code=True)
        for problem in problems(answer, context):
            self._report.problem(problem, spot, source)
        if probed is not None:
            asked: Answer = yield Task(probed.text, parameters, returns, is_code=True)
            for problem in strangers(probed, asked, rendered):
                self._report.problem(problem, spot, source)

    def _texts(self, scope: ScopeDraft, node: NodeDraft) -> Typing[None]:
        names = yield from self._work_names(scope, node)
        for text in node.texts():
            for site in text.sites:
                self._rounds.spawn(self._sites.shows(site, names))
        dues = choice_dues(node.output or ANY, node.choices, node.spot.below("llm", "choices"), self._report)
        for name, due in dues.items():
            self._rounds.spawn(self._sites.fits(node.choices[name], names, due))

    # --- maps and scopes

    def _map(self, scope: ScopeDraft, node: NodeDraft) -> Typing[None]:
        block = node.model.map
        if block is None:
            return
        declared = self._declared(node)
        if node.template is not None and node.template not in self._open:
            check_input(node, self._draft.scopes[node.template].input, self._report)
        item = declared
        if node.items is not None:
            item = yield self._items_of[scope.name, node.name]
        elif node.line is not None:
            item = node.line
            if node.jsonl is not None:
                self._rounds.spawn(self._fits(scope, node, node.jsonl, Due({"type": "string"})))
            if node.prefix is not None:
                self._rounds.spawn(self._fits(scope, node, node.prefix, Due({"type": "string"})))
                if declared is not None:
                    check_template(node, declared, self._report)
            elif declared is not None:
                check_lines(node.line, declared, node.spot.below("map", "itemsFrom", "schema"), self._report)
        self._typed.items[scope.name, node.name] = item if isinstance(item, dict) else ANY
        if node.key is not None:
            names = yield from self._names(scope, node, node.key)
            names[block.as_] = item
            names["index"] = INDEX
            self._rounds.spawn(self._sites.fits(node.key, names, Due(KEY)))

    def _declared(self, node: NodeDraft) -> Schema | None:
        """What the template of a map declares of its item."""
        if node.template is None or node.model.map is None or node.template in self._open:
            return None
        found: Schema | None = self._draft.scopes[node.template].input.get("properties", {}).get(node.model.map.as_)
        return found

    def _given(self, scope: ScopeDraft, node: NodeDraft, inner: ScopeDraft) -> Typing[Schema | None]:
        """What a node gives to a body that does not declare its input."""
        found = yield from self._work_names(scope, node)
        if node.kind == "loop":
            # A constant is where a loop begins, not the one value that it may have.
            found = {name: widened(node.with_.get(name), schema) for name, schema in found.items()}
        block = node.model.map
        if block is not None:
            items = self._items_of.get((scope.name, node.name))
            found[block.as_] = (yield items) if items is not None else node.line
            if "index" not in found and reads_index(inner):
                found["index"] = INDEX
        known = {name: schema for name, schema in found.items() if schema is not None}
        return record(known) if len(known) == len(found) else None

    def _loop(self, scope: ScopeDraft, node: NodeDraft, template: str) -> Typing[None]:
        inputs = self._draft.scopes[template].input
        if template in self._open:
            given: Schema | None = yield self._open[template]
            inputs = ANY if given is None else given
        else:
            check_input(node, inputs, self._report)
        check_next(node, inputs, self._report)
        dues = input_dues(inputs)
        for name, site in node.next.items():
            self._rounds.spawn(self._after_round(scope, node, site, Due(dues.get(name, ANY))))
        if node.until is not None:
            self._rounds.spawn(self._after_round(scope, node, node.until, Due({"type": "boolean"})))
        if node.score is not None:
            self._rounds.spawn(self._after_round(scope, node, node.score, Due(SCORE)))

    def _after_round(self, scope: ScopeDraft, node: NodeDraft, site: Site, due: Due) -> Typing[Schema | None]:
        names = yield from self._names(scope, node, site)
        roots = {path.partition(".")[0] for path in site.parsed.expr.reads}
        if "output" in roots:
            output: Schema | None = yield self._scopes[node.template or ""]
            names["output"] = output if output is None else {"title": "output", **output}
        if "iteration" in roots:
            names["iteration"] = ITERATION
        return (yield from self._sites.fits(site, names, due))

    def _items(self, scope: ScopeDraft, node: NodeDraft, site: Site) -> Typing[Schema | None]:
        declared = self._declared(node)
        if declared is not None:
            yield from self._fits(scope, node, site, items_due(declared))
            return declared
        names = yield from self._names(scope, node, site)
        as_ = node.model.map.as_ if node.model.map is not None else ""
        otherwise = Undetermined(by_input(as_)) if node.template in self._open else SILENT
        found = yield from self._sites.infers(site, names, otherwise)
        return item_of(found)

    def _cases(self, scope: ScopeDraft, node: NodeDraft, site: Site) -> Typing[bool]:
        names = yield from self._names(scope, node, site)
        value = yield from self._sites.infers(site, names, SILENT)
        return check_cases(node, value, self._report)

    def _template_output(self, node: NodeDraft) -> Typing[Schema | None]:
        if node.template is None:
            return None
        result: Schema | None = yield self._scopes[node.template]
        if result is None:
            return None
        found: Schema | None = map_output(result, node.model.map) if node.kind == "map" else result
        if node.kind == "loop":
            found = loop_output(node, result, self._report)
        if found is None:
            return None
        why = mismatch(found, node.output) if node.output is not None else None
        if why is not None:
            self._report.add("OUTPUT-TYPE", node.spot.below("output"), unfit(*why))
        return found

    def _scope_output(self, scope: ScopeDraft) -> Typing[Schema | None]:
        """The result of a scope. What cannot be inferred of a graph's result is open: it is right by itself."""
        root = scope.name == scope_name(scope.graph)
        otherwise = Undetermined(_BY_TRANSFORM, severity="warning" if root else "error")
        cells = {
            name: self._rounds.spawn(self._output_field(scope, site, otherwise)) for name, site in scope.output.items()
        }
        found: dict[str, Schema | None] = dict.fromkeys(scope.refused)
        for name, cell in cells.items():
            found[name] = yield cell
        if root:
            found = {name: ANY if schema is None else schema for name, schema in found.items()}
        return _together(found)

    def _output_field(self, scope: ScopeDraft, site: Site, otherwise: Undetermined) -> Typing[Schema | None]:
        names = yield from self._names(scope, None, site)
        return (yield from self._sites.infers(site, names, otherwise))


def _run(scope: ScopeDraft) -> Schema:
    """What `run` has for the nodes of a scope."""
    return RUN if scope.outer is None else ENDED_RUN


def by_input(name: str) -> str:
    return f"declare the input of the body, as in body: {{input: {{{name}: …}}, …}}"


def widened(site: Site | None, schema: Schema | None) -> Schema | None:
    """The type of a computed value without the values that it is known to have; what a path reads is as declared."""
    if site is None or schema is None or site.parsed.expr.path is not None:
        return schema
    return union(
        [{key: part for key, part in branch.items() if key not in ("enum", "const")} for branch in branches(schema)]
    )


def reads_index(scope: ScopeDraft) -> bool:
    """Whether a body reads the number of its item."""
    sites = [*scope.output.values(), *(site for node in scope.nodes.values() for site in node.scope_sites())]
    return any(path == "input.index" or path.startswith("input.index.") for s in sites for path in s.parsed.expr.reads)


def _together(found: Mapping[str, Schema | None]) -> Schema | None:
    """The schema of an object of these fields, or of `$value` alone; None when one of them is not known."""
    if VALUE in found:
        return found[VALUE]
    known = {name: schema for name, schema in found.items() if schema is not None}
    return record(known) if len(known) == len(found) else None

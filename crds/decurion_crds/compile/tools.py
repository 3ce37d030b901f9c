"""Nodes of kind `tool`: which tool of which server, its arguments as a tree, and what each part of them has to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from decurion_crds.canonical import Json
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compile.rounds import Rounds, Typing
from decurion_crds.compiled import Argument, Expr, Schema, ToolCall
from decurion_crds.errors import OutputMismatch, SchemaRefused, ValueRefused
from decurion_crds.expressions.shapes import (
    ANY,
    branches,
    is_any,
    items_of,
    mismatch,
    nullable,
    record,
    settled,
    without_null,
    words,
)
from decurion_crds.expressions.wording import unfit
from decurion_crds.findings import Fix, did_you_mean, listed
from decurion_crds.schemas import expand_schema
from decurion_crds.v1alpha1.base import Resource
from decurion_crds.v1alpha1.mcpserver import MCPServer, ServerTool, ToolPolicy
from decurion_crds.v1alpha1.taskgraph import ToolBlock
from decurion_crds.values import Validator, normalise

if TYPE_CHECKING:
    from decurion_crds.compile.draft import Site, TextDraft
    from decurion_crds.compile.sites import Names, SiteTyper

CALL_SECONDS = 30.0
"""Longest time of one call where neither the node, the tool nor the server says one."""
TEXT: Schema = record({"text": {"type": "string"}})
"""What a tool gives that declares nothing."""
_TEXT_TYPE: Schema = {"type": "string"}
ParseText = Callable[[str, Spot], "TextDraft | None"]


@dataclass(frozen=True, eq=False, slots=True)
class ArgumentDraft:
    """One place of the arguments: a value that is known, an expression, a text with some, or places below it."""

    spot: Spot
    value: Json = None
    site: Site | None = None
    text: TextDraft | None = None
    items: tuple[ArgumentDraft, ...] | None = None
    fields: dict[str, ArgumentDraft] | None = None

    def sites(self) -> Iterator[Site]:
        if self.site is not None:
            yield self.site
        if self.text is not None:
            yield from self.text.sites
        for below in (*(self.items or ()), *(self.fields or {}).values()):
            yield from below.sites()

    def compiled(self) -> Argument:
        if self.site is not None:
            return Argument(expr=self.site.parsed.expr)
        if self.text is not None:
            return Argument(text=self.text.text)
        if self.items is not None:
            return Argument(items=tuple(below.compiled() for below in self.items))
        if self.fields is not None:
            return Argument(fields={name: below.compiled() for name, below in self.fields.items()})
        return Argument(value=self.value)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its server's resource declares it. `output` is None where it declares none."""

    server: str
    name: str
    description: str
    input: Schema
    output: Schema | None
    repeatable: bool
    seconds: float
    concurrency: int | None

    @property
    def owner(self) -> str:
        return f"a tool of {self.server}"


@dataclass(frozen=True, eq=False, slots=True)
class ToolDraft:
    """A call. `tool` is None where there is none of that name, which is in the report."""

    tool: Tool | None
    arguments: ArgumentDraft
    result: Site | None = None

    @property
    def raw(self) -> Schema:
        """What `result` sees as `raw`."""
        value = self.tool.output if self.tool is not None else None
        return {"title": "raw", **record({"text": _TEXT_TYPE, "value": ANY if value is None else value})}

    def output(self, declared: Schema | None) -> Schema | None:
        """The node's output where no `result` makes it."""
        if self.tool is None:
            return declared
        return declared or self.tool.output or TEXT

    def due(self, declared: Schema | None) -> Schema:
        """What the tool itself has to give."""
        if self.tool is not None and self.tool.output is not None:
            return self.tool.output
        return ANY if self.result is not None else declared or TEXT

    def under(self, server: str, servers: Mapping[str, Resource]) -> ToolDraft:
        """The call where `server` is the one that is called, of which it is known that its tool fits."""
        found = servers.get(server)
        if self.tool is None or server == self.tool.server or not isinstance(found, MCPServer):
            return self
        name = self.tool.name
        return replace(self, tool=next(_tool_of(server, found, tool) for tool in found.spec.tools if tool.name == name))

    def compiled(self, declared: Schema | None) -> ToolCall | None:
        tool = self.tool
        if tool is None:
            return None
        return ToolCall(
            server=tool.server,
            name=tool.name,
            arguments=self.arguments.compiled(),
            result=self.result.parsed.expr if self.result is not None else None,
            input=tool.input,
            output=self.due(declared),
            repeatable=tool.repeatable,
            concurrency=tool.concurrency,
        )


def misfit(draft: ToolDraft, other: Tool, declared: Schema | None) -> str | None:
    """Why another tool cannot be called in place of the one by which the call was typed; None when it can be."""
    if draft.tool is None:
        return None
    taken = mismatch(draft.tool.input, other.input)
    if taken is not None:
        return f"it does not take what is given ({_at(*taken)})"
    given = mismatch(replace(draft, tool=other).due(declared), draft.due(declared))
    return f"it does not give what is read ({_at(*given)})" if given is not None else None


def _at(path: str, reason: str) -> str:
    return f"{path}: {reason}" if path else reason


def find_tool(
    ref: str, server: MCPServer, name: str, spot: Spot, report: Report, *, written: bool = True
) -> Tool | None:
    """The tool `name` of `server`, a name that is `written` at `spot`; that it has none, or that its schemas are
    none, is in the report.
    """
    known = [tool.name for tool in server.spec.tools]
    found = next((tool for tool in server.spec.tools if tool.name == name), None)
    if found is None:
        meant = did_you_mean(name, known)
        hint = f'did you mean "{meant}"?' if meant else f"its tools are {listed(known)}"
        fix = Fix(name, meant) if meant and written else None
        report.add("REF-MISSING", spot, f'the MCPServer {ref} lists no tool "{name}"; {hint}', fix=fix)
        return None
    return tool_of(ref, server, found, spot, report)


def tool_of(ref: str, server: MCPServer, tool: ServerTool, spot: Spot, report: Report) -> Tool | None:
    try:
        return _tool_of(ref, server, tool)
    except SchemaRefused as refused:
        message = f"the tool {tool.name} of the MCPServer {ref} has a schema that is none ({refused}); correct it there"
        report.add("SCHEMA", spot, message)
        return None


def _tool_of(ref: str, server: MCPServer, tool: ServerTool) -> Tool:
    policy = tool.policy or ToolPolicy.model_validate({})
    taken = ANY if tool.input is None else expand_schema(tool.input)
    given = None if tool.output is None else expand_schema(tool.output)
    return Tool(
        server=ref,
        name=tool.name,
        description=tool.description or "",
        input=dict(settled(taken)) if taken else {"type": "object"},
        output=None if given is None else dict(settled(given)),
        repeatable=policy.read_only or policy.idempotent,
        seconds=policy.timeout_seconds or server.spec.timeout_seconds or CALL_SECONDS,
        concurrency=policy.concurrency,
    )


def arguments_of(written: Mapping[str, Any], spot: Spot, parse: ParseText) -> ArgumentDraft:
    """The tree of arguments; texts that are refused are in the report, and count as texts that are known."""

    def walk(value: Json, spot: Spot) -> ArgumentDraft:
        if isinstance(value, dict):
            return ArgumentDraft(spot, fields={name: walk(below, spot.below(name)) for name, below in value.items()})
        if isinstance(value, list):
            return ArgumentDraft(spot, items=tuple(walk(below, spot.at(i)) for i, below in enumerate(value)))
        if not isinstance(value, str):
            return ArgumentDraft(spot, value=value)
        text = parse(value, spot)
        if text is None:
            return ArgumentDraft(spot, value=value)
        if not text.sites:
            return ArgumentDraft(spot, value=value)
        if len(text.text.parts) == 1 and isinstance(text.text.parts[0], Expr):
            return ArgumentDraft(spot, site=text.sites[0])
        return ArgumentDraft(spot, text=text)

    return walk(dict(written), spot)


class Arguments:
    """Checks arguments against what a tool takes."""

    def __init__(self, names: Names, sites: SiteTyper, rounds: Rounds, report: Report, tool: str) -> None:
        self._names = names
        self._sites = sites
        self._rounds = rounds
        self._report = report
        self._tool = tool

    def check(self, place: ArgumentDraft, due: Schema) -> None:
        from decurion_crds.compile.sites import Due

        if place.site is not None:
            self._rounds.spawn(self._sites.fits(place.site, self._names, Due(due)))
        elif place.text is not None:
            for site in place.text.sites:
                self._rounds.spawn(self._sites.shows(site, self._names))
            self._fits(_TEXT_TYPE, place.spot, due)
        elif place.fields is not None:
            self._object(place, place.fields, due)
        elif place.items is not None:
            self._list(place.items, place.spot, due)
        else:
            self._value(place, due)

    def _fits(self, found: Schema, spot: Spot, due: Schema) -> bool:
        why = mismatch(found, due)
        if why is not None:
            self._report.add("EXPR-TYPE", spot, unfit(*why))
        return why is None

    def _value(self, place: ArgumentDraft, due: Schema) -> None:
        due = without_null(due)
        try:
            Validator(due).check(normalise(place.value, due))
        except (OutputMismatch, ValueRefused) as error:
            message = f"the tool {self._tool} takes {words(due)} here: {error}"
            self._report.add("FIELD-VALUE", place.spot, message)

    def _object(self, place: ArgumentDraft, given: Mapping[str, ArgumentDraft], due: Schema) -> None:
        due = without_null(due)
        parts = [branch for branch in branches(due) if branch.get("type", "object") == "object"]
        if not parts:
            self._report.add("EXPR-TYPE", place.spot, f"{words(due)} is due here, and this is an object; write that")
        if len(parts) != 1 or is_any(parts[0]):
            for below in given.values():
                self.check(below, ANY)
            return
        known, required = parts[0].get("properties", {}), parts[0].get("required", ())
        missing = [name for name in required if name not in given]
        for name, below in given.items():
            schema = known.get(name, parts[0].get("additionalProperties", True))
            if schema is False:
                self._unknown(name, below.spot, list(known), missing)
            elif isinstance(schema, dict):
                self.check(below, schema if name in required or name not in known else nullable(schema))
            else:
                self.check(below, ANY)
        for name in missing:
            message = f'the tool {self._tool} needs "{name}" here; add it'
            self._report.add("FIELD-MISSING", place.spot, message)

    def _unknown(self, name: str, spot: Spot, known: Sequence[str], missing: list[str]) -> None:
        # One name too many and one too few are one name that is wrong.
        meant = missing.pop() if len(missing) == 1 else did_you_mean(name, known)
        hint = f'did you mean "{meant}"?' if meant else f"it takes {listed(known)}"
        fix = Fix(name, meant) if meant else None
        message = f'the tool {self._tool} has no argument "{name}"; {hint}'
        self._report.add("FIELD-UNKNOWN", spot.key(), message, fix=fix)

    def _list(self, given: Sequence[ArgumentDraft], spot: Spot, due: Schema) -> None:
        due = without_null(due)
        parts = [branch for branch in branches(due) if branch.get("type", "array") == "array"]
        if not parts:
            self._report.add("EXPR-TYPE", spot, f"{words(due)} is due here, and this is a list; write that")
        item = items_of(parts[0]) if len(parts) == 1 else ANY
        for below in given:
            self.check(below, item)


def result_type(
    draft: ToolDraft, declared: Schema | None, sites: SiteTyper, advice: str, spot: Spot, report: Report
) -> Typing[Schema | None]:
    """The type of the node's output."""
    from decurion_crds.compile.sites import Due, Undetermined

    if draft.result is not None:
        names = {"raw": draft.raw if draft.tool is not None else None}
        if declared is not None:
            return (yield from sites.fits(draft.result, names, Due(declared, "OUTPUT-TYPE")))
        return (yield from sites.infers(draft.result, names, Undetermined(advice)))
    given = draft.tool.output if draft.tool is not None else None
    if declared is not None and given is not None:
        why = mismatch(given, declared)
        if why is not None:
            report.add("OUTPUT-TYPE", spot.below("output"), unfit(*why))
    return draft.output(declared)


def resolve_tool(
    block: ToolBlock,
    spot: Spot,
    servers: Mapping[str, Resource],
    report: Report,
    *,
    first: Mapping[str, str],
    parse: ParseText,
    result: Site | None,
) -> ToolDraft:
    """The call that a node makes. What is refused is in the report; that there is no such server is told elsewhere.

    A need without a resource of its name is typed by what it stands for `first`.
    """
    name = typed_by(block.server, servers, first)
    server, tool = servers.get(name), None
    if isinstance(server, MCPServer):
        tool = find_tool(name, server, block.name, spot.below("name"), report)
    return ToolDraft(tool, arguments_of(block.arguments, spot.below("arguments"), parse), result)


def typed_by(ref: str, servers: Mapping[str, Resource], first: Mapping[str, str]) -> str:
    """The name of the server whose tools are those of `ref` where a graph is typed."""
    return ref if ref in servers else first.get(ref, ref)

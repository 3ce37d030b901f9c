"""A node's block as one of another kind: what of it carries over, and what does not.

The contract of the node stays what it is; the block says only how. See "A node" in `docs/graphs.md`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decurion_crds.canonical import Json, canonical
from decurion_crds.compiled import Node as CompiledNode
from decurion_crds.errors import InputError
from decurion_crds.findings import listed

TARGETS = ("transform", "code", "tool", "llm", "agent", "graph", "map")
"""Kinds that a node can be given, from deterministic to agentic, then those that run a scope."""
SOURCES = (*TARGETS, "loop")
"""Kinds of which a node can be given another. A switch or approval has a contract that no other kind fulfils."""
_RUN_A_SCOPE = ("map", "graph", "loop")
_CARRIED = ("template", "ref", "bind", "body")
_PROMPTED = ("llm", "agent")
_FIXED = "the new block gives a fixed value; write what computes it"
_LINE = 88
_SMALL = 100
"""The longest text and list of an example."""


class ChoiceNeeded(InputError):
    """The new block needs something that the old one does not say. The message names the option that says it."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the author, or the files where they leave one choice, say about the new block.

    `known` has the names of what may be referred to: `LLM`, `Agent`, `template`, and `tool` as SERVER/NAME.
    """

    ref: str = ""
    tool: str = ""
    template: str = ""
    items: str = ""
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)
    delimiters: tuple[str, str] = ("{{", "}}")


@dataclass(frozen=True, slots=True)
class Converted:
    """The new block, and what of the old one is not in it, a sentence each."""

    block: Json
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Case:
    written: Mapping[str, Any]
    compiled: CompiledNode
    choices: Choices

    @property
    def kind(self) -> str:
        return self.compiled.kind

    @property
    def block(self) -> Any:
        return self.written[self.kind]

    @property
    def names(self) -> list[str]:
        return [*(self.written.get("with") or {}), *(self.written.get("load") or {})]


def convert(written: Mapping[str, Any], compiled: CompiledNode, kind: str, choices: Choices) -> Converted:
    """The block of kind `kind`, one of `TARGETS`, for a node that is `written` so in its manifest, of one of `SOURCES`.

    Raises `ChoiceNeeded`.
    """
    return _MAKERS[kind](_Case(written, compiled, choices))


def _transform(case: _Case) -> Converted:
    source = _single(case.block) if case.kind == "code" else None
    if isinstance(source, ast.Dict) and source.keys and all(_plain_key(key) for key in source.keys):
        members = zip(source.keys, source.values, strict=True)
        return Converted({k.value: ast.unparse(v) for k, v in members if isinstance(k, ast.Constant)})
    if source is not None:
        return Converted({"$value": ast.unparse(source)})
    value = _example(case.compiled.output)
    fields = value if isinstance(value, dict) and value else {"$value": value}
    return Converted({name: repr(one) for name, one in fields.items()}, (_lost(case), _FIXED))


def _code(case: _Case) -> Converted:
    if case.kind == "transform":
        fields = {name: _subscripts(str(text)) for name, text in case.block.items()}
        return Converted(fields["$value"] if fields.keys() == {"$value"} else _dict(fields))
    value = _example(case.compiled.output)
    text = _dict({k: repr(v) for k, v in value.items()}) if isinstance(value, dict) else repr(value)
    return Converted(text, (_lost(case), _FIXED))


def _llm(case: _Case) -> Converted:
    block = {"ref": _one(case, "LLM", "the LLM", case.choices.ref), **_prompt(case)}
    return Converted(block, _prompt_notes(case))


def _agent(case: _Case) -> Converted:
    block = {"ref": _one(case, "Agent", "the Agent", case.choices.ref), **_prompt(case)}
    return Converted(block, _prompt_notes(case))


def _prompt(case: _Case) -> dict[str, str]:
    if case.kind in _PROMPTED:
        return {"prompt": case.block["prompt"]}
    opening, closing = case.choices.delimiters
    asked = case.written.get("description") or f"Give {listed(_fields(case.compiled.output) or ['the answer'])}."
    return {"prompt": "\n".join([str(asked), *(f"{name}: {opening} {name} {closing}" for name in case.names)])}


def _prompt_notes(case: _Case) -> tuple[str, ...]:
    if case.kind not in _PROMPTED:
        return (_lost(case), "the prompt is a start; say in it what is wanted")
    lost = [name for name in case.block if name not in ("ref", "model", "prompt")]
    return (_not_carried(lost, case.kind),) if lost else ()


def _tool(case: _Case) -> Converted:
    tools = case.choices.known.get("tool", ())
    fitting = [one for one in tools if one.split("/", 1)[0] == (case.choices.ref or one.split("/", 1)[0])]
    fitting = [one for one in fitting if one.split("/", 1)[1] == (case.choices.tool or one.split("/", 1)[1])]
    if len(fitting) == 1:
        server, tool = fitting[0].split("/", 1)
    elif case.choices.ref and case.choices.tool:
        server, tool = case.choices.ref, case.choices.tool
    else:
        among = f"the files have {listed(tools)}" if tools else "the files have none"
        raise ChoiceNeeded(f"which tool is to be called? Say it with --ref SERVER --tool NAME; {among}")
    opening, closing = case.choices.delimiters
    block: dict[str, Any] = {"server": server, "name": tool}
    if case.names:
        block["arguments"] = {name: f"{opening} {name} {closing}" for name in case.names}
    return Converted(block, (_lost(case),))


def _graph(case: _Case) -> Converted:
    if case.kind not in _RUN_A_SCOPE:
        return Converted(_scope(case), (_lost(case),))
    lost = [name for name in case.block if name not in _CARRIED]
    kept = {name: case.block[name] for name in _CARRIED if name in case.block}
    return Converted(kept, (_not_carried(lost, case.kind),) if lost else ())


def _map(case: _Case) -> Converted:
    given = case.written.get("with") or {}
    items = case.choices.items or (str(next(iter(given.values()))) if len(given) == 1 else "")
    if not items:
        raise ChoiceNeeded("a map needs its list; give it with --items EXPRESSION, such as --items input.rows")
    if case.kind not in _RUN_A_SCOPE:
        return Converted({"items": items, **_scope(case)}, (_lost(case),))
    lost = [name for name in case.block if name not in _CARRIED]
    kept = {name: case.block[name] for name in _CARRIED if name in case.block}
    return Converted({"items": items, **kept}, (_not_carried(lost, case.kind),) if lost else ())


_MAKERS: Mapping[str, Callable[[_Case], Converted]] = {
    "transform": _transform,
    "code": _code,
    "llm": _llm,
    "agent": _agent,
    "tool": _tool,
    "graph": _graph,
    "map": _map,
}


def _scope(case: _Case) -> dict[str, str]:
    if case.choices.ref:
        return {"ref": case.choices.ref}
    return {"template": _one(case, "template", "the template", case.choices.template)}


def _one(case: _Case, kind: str, what: str, chosen: str) -> str:
    known = case.choices.known.get(kind, ())
    if chosen or len(known) == 1:
        return chosen or known[0]
    option = "template" if kind == "template" else "ref"
    among = f"the files have {listed(known)}" if known else "the files have none"
    raise ChoiceNeeded(f"which is {what} to use? Say it with --{option} NAME; {among}")


def _lost(case: _Case) -> str:
    what = {
        "transform": "the expressions of the transform",
        "code": "the source of the code",
        "llm": "the prompt of the llm",
        "agent": "the prompt of the agent",
        "tool": "the call of the tool",
        "graph": "what its template does",
        "map": "what its template does",
        "loop": "what its template does",
    }[case.kind]
    return f"{what} is not carried over" if not what.startswith("the expressions") else f"{what} are not carried over"


def _not_carried(names: Sequence[str], kind: str) -> str:
    return f"{listed(names)} of the {kind} {'is' if len(names) == 1 else 'are'} not carried over"


def _fields(schema: Mapping[str, Any]) -> list[str]:
    return list(schema.get("properties", {})) if schema.get("type") == "object" else []


def _single(source: Any) -> ast.expr | None:
    """The expression of a source that is nothing else."""
    try:
        body = ast.parse(str(source)).body
    except SyntaxError:
        return None
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None


def _plain_key(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and not key.value.startswith("$")


class _Subscripts(ast.NodeTransformer):
    """`x.name` → `x["name"]`: code reads fields so. Methods stay."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        else:
            node.func = self.visit(node.func)
        node.args = [self.visit(one) for one in node.args]
        node.keywords = [self.visit(one) for one in node.keywords]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Subscript(value=self.visit(node.value), slice=ast.Constant(node.attr), ctx=node.ctx)


def _subscripts(expression: str) -> str:
    tree = ast.parse(expression.strip(), mode="eval")
    fields = any(isinstance(node, ast.Attribute) for node in ast.walk(tree))
    return ast.unparse(_Subscripts().visit(tree)) if fields else expression.strip()


def _dict(fields: Mapping[str, str]) -> str:
    """Source of a dict of expressions, in one line where it fits."""
    shown = [f"{_text(name)}: {source}" for name, source in fields.items()]
    line = "{" + ", ".join(shown) + "}"
    return line if len(line) <= _LINE else "{\n" + "".join(f"    {one},\n" for one in shown) + "}"


def _text(value: str) -> str:
    return canonical(value).decode()


def _example(schema: Mapping[str, Any]) -> Json:
    """A small value of a schema; where its bounds are beyond that, one of its type."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for word in ("anyOf", "oneOf", "allOf"):
        if schema.get(word):
            return _example(schema[word][0])
    declared = schema.get("type")
    kind = declared if isinstance(declared, str) else next((one for one in declared or [] if one != "null"), "null")
    match kind:
        case "object":
            inner = schema.get("properties", {})
            return {name: _example(inner.get(name, {})) for name in inner if name in schema.get("required", ())}
        case "array":
            return [_example(schema.get("items", {}))] * min(int(schema.get("minItems", 0)), _SMALL)
        case "string":
            return "x" * min(int(schema.get("minLength", 0)), _SMALL)
        case "integer":
            return int(schema.get("minimum", 0))
        case "number":
            return float(schema.get("minimum", 0))
        case "boolean":
            return False
    return None

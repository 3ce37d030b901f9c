"""What changed between two versions of a graph: nodes, their contracts and blocks, inputs, outputs, channels, order.

Compiled graphs are compared, so that the form of a file, comments, and which defaults are written out do not matter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from decurion_crds.canonical import canonical
from decurion_crds.compiled import Channel, Code, CompiledGraph, Expr, Node, Scope, Text
from decurion_crds.show import scope_title

Change: TypeAlias = Literal["added", "removed", "renamed", "moved", "changed"]
Part: TypeAlias = Literal["contract", "block", "order"]

_DERIVED = frozenset({"name", "kind", "digest", "parents", "reads", "control", "choice", "itemSchema"})
"""Fields of compiled nodes that follow from others, or are compared under another name."""
_SCHEMAS = frozenset({"output", "schema", "inputSchema", "outputSchema", "input"})
_OF_KIND = frozenset({"timeoutSeconds"})
GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class Edit:
    """One field that differs. `old` and `new` are in the words of the author; None where there was nothing.

    Of a node, `part` says which side of it: its contract, its block, or the nodes that it runs after.
    """

    field: str
    old: str | None
    new: str | None
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs: a node, channel, template and so on (`what`) of a `scope`.

    `scope` is `graph`, or a template in words. `source` is where or what it was before, when it was moved or renamed.
    `kind` is that of a node that was added or removed.
    """

    scope: str
    what: str
    name: str
    change: Change
    source: str | None = None
    kind: str | None = None
    edits: tuple[Edit, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The sides of a node that changed."""
        return tuple(part for part in ("contract", "block", "order") if any(e.part == part for e in self.edits))

    def to_json(self) -> dict[str, Any]:
        found = {key: value for key, value in asdict(self).items() if value is not None}
        found["edits"] = [{k: v for k, v in edit.items() if v is not None} for edit in found["edits"]]
        return found | ({"parts": list(self.parts)} if self.what == "node" and self.edits else {})


def differences(
    old: CompiledGraph, new: CompiledGraph, *, resources: Iterable[str] | None = None, graphs: bool = True
) -> list[Difference]:
    """What differs, scope by scope, the root first. Empty when both do the same.

    `resources` are the names of models to compare (all, when None). Without `graphs`, other graphs that these run are
    left out: who compares all graphs of a folder finds the differences there.
    """
    scopes_old, scopes_new = _scopes(old, graphs=graphs), _scopes(new, graphs=graphs)
    found: list[Difference] = []
    for name in _both(scopes_old, scopes_new):
        one, other = scopes_old.get(name), scopes_new.get(name)
        if one is None or other is None:
            found.append(Difference(GRAPH, "template", name, "added" if one is None else "removed"))
        else:
            found += _scope(GRAPH if not name else scope_title(name), one, other)
    found = _moved(found, scopes_old, scopes_new)
    found += _fields(GRAPH, "limits", "limits", old.limits, new.limits)
    for what, before, after in (("LLM", old.llms, new.llms), ("MCPServer", old.servers, new.servers)):
        known = before.keys() & after.keys()
        for name in sorted(known if resources is None or what != "LLM" else known & set(resources)):
            found += _fields(GRAPH, what, name, before[name], after[name])
    return found


def _scopes(graph: CompiledGraph, *, graphs: bool) -> dict[str, Scope]:
    below = {name: scope for name, scope in graph.templates.items() if graphs or not name.startswith("graph:")}
    return {"": graph.root, **below}


def _both(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """The names of both, in the order of the first, then those that only the second has."""
    return [*one, *(name for name in other if name not in one)]


def _scope(title: str, old: Scope, new: Scope) -> Iterator[Difference]:
    edits = [*_schema_edits(old.input_schema, new.input_schema, "")]
    yield from _fields_of(title, "input", edits)
    yield from _named(title, "channel", {c.name: c for c in old.channels}, {c.name: c for c in new.channels})
    yield from _nodes(title, old, new)
    kept = old.output.keys() & new.output.keys()
    types = _schema_edits(_only(old.output_schema, kept), _only(new.output_schema, kept), "", "type of ")
    edits = [*_edits(written(old.output), written(new.output), ""), *types]
    yield from _fields_of(title, "output", edits)


def _only(schema: Mapping[str, Any], names: Set[str]) -> Mapping[str, Any]:
    """The schema of an output without the fields of other names, which are told as such."""
    inner = schema.get("properties")
    if not isinstance(inner, Mapping) or "$value" in names:
        return schema
    return {**schema, "properties": {name: below for name, below in inner.items() if name in names}}


def _fields_of(title: str, what: str, edits: Sequence[Edit]) -> Iterator[Difference]:
    if edits:
        yield Difference(title, what, what, "changed", edits=tuple(edits))


def _named(title: str, what: str, old: Mapping[str, Channel], new: Mapping[str, Channel]) -> Iterator[Difference]:
    for name in _both(old, new):
        if name not in new:
            yield Difference(title, what, name, "removed")
        elif name not in old:
            yield Difference(title, what, name, "added")
        else:
            yield from _fields(title, what, name, old[name], new[name])


def _fields(
    title: str, what: str, name: str, old: BaseModel | Mapping[str, Any], new: BaseModel | Mapping[str, Any]
) -> Iterator[Difference]:
    edits = _edits(written(old), written(new), "")
    if edits:
        yield Difference(title, what, name, "changed", edits=tuple(edits))


def _nodes(title: str, old: Scope, new: Scope) -> Iterator[Difference]:
    gone = [node for node in old.nodes if node.name not in new.by_name]
    come = [node for node in new.nodes if node.name not in old.by_name]
    renamed: dict[str, str] = {}
    known = [(one.name, one.kind, _node_fields(one)) for one in gone]
    for node in come:
        fields = _node_fields(node)
        alike = (name for name, kind, other in known if kind == node.kind and not _edits(other, fields, ""))
        same = next((name for name in alike if name not in renamed.values()), None)
        if same is not None:
            renamed[node.name] = same
    displaced = _displaced([n.name for n in old.nodes if n.name in new.by_name], [n.name for n in new.nodes])
    for node in old.nodes:
        if node.name in new.by_name:
            edits = node_edits(node, new.by_name[node.name])
            if edits:
                yield Difference(title, "node", node.name, "changed", edits=tuple(edits))
        elif node.name not in renamed.values():
            yield Difference(title, "node", node.name, "removed", kind=node.kind)
    for node in come:
        if node.name in renamed:
            yield Difference(title, "node", node.name, "renamed", renamed[node.name])
        else:
            yield Difference(title, "node", node.name, "added", kind=node.kind)
    for name in displaced:
        at = [node.name for node in new.nodes].index(name)
        place = f"behind {new.nodes[at - 1].name}" if at else "to the beginning"
        yield Difference(title, "node", name, "moved", f"{place}, which decides the order of merging")


def _displaced(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The fewest names that one moves to make the order of `old` that of `new`."""
    rank = {name: i for i, name in enumerate(old)}
    names = [name for name in new if name in rank]
    best: list[list[str]] = []
    for name in names:
        fitting: list[list[str]] = [one for one in best if rank[one[-1]] < rank[name]]
        best.append([*_longest(fitting), name])
    kept = set(_longest(best))
    return [name for name in names if name not in kept]


def _longest(lists: Sequence[list[str]]) -> list[str]:
    return max(lists, key=len) if lists else []


def _moved(found: list[Difference], old: Mapping[str, Scope], new: Mapping[str, Scope]) -> list[Difference]:
    """One removed and one added node of the same name whose contract or block is the same are a node that was moved."""
    titles = {(GRAPH if not name else scope_title(name)): name for name in _both(old, new)}
    lost: dict[str, list[tuple[str, Node]]] = {}
    won: dict[str, list[tuple[str, Node]]] = {}
    for title, name in titles.items():
        scope, other = old.get(name), new.get(name)
        for node in scope.nodes if scope is not None else ():
            if other is None or node.name not in other.by_name:
                lost.setdefault(node.name, []).append((title, node))
        for node in other.nodes if other is not None else ():
            if scope is None or node.name not in scope.by_name:
                won.setdefault(node.name, []).append((title, node))
    moved: dict[str, Difference] = {}
    for name in lost.keys() & won.keys():
        if len(lost[name]) == len(won[name]) == 1:
            [(source, before)], [(title, after)] = lost[name], won[name]
            one = Difference(title, "node", name, "moved", source, edits=tuple(node_edits(before, after)))
            if not {"contract", "block"} <= set(one.parts):
                moved[name] = one
    kept = [
        one for one in found if not (one.what == "node" and one.name in moved and one.change in ("added", "removed"))
    ]
    return kept + [moved[name] for name in sorted(moved)]


def node_edits(old: Node, new: Node) -> list[Edit]:
    """What differs between two nodes, their names aside: contract, block, and the nodes that they run after."""
    before, after = _node_fields(old), _node_fields(new)
    blocks = {old.kind, new.kind}
    contract = [{key: value for key, value in fields.items() if key not in blocks} for fields in (before, after)]
    edits = [
        # How long a try may take is by default a matter of the kind.
        Edit(edit.field, edit.old, edit.new, "block" if edit.field in _OF_KIND and len(blocks) > 1 else "contract")
        for edit in _edits(contract[0], contract[1], "")
    ]
    if old.kind != new.kind:
        edits.append(Edit("block", old.kind, new.kind, "block"))
    else:
        inner = _edits({old.kind: before.get(old.kind)}, {old.kind: after.get(old.kind)}, "")
        edits += [Edit(edit.field, edit.old, edit.new, "block") for edit in inner]
    order = (set(old.after), set(new.after))
    edits += [Edit("after", name, None, "order") for name in old.after if name in order[0] - order[1]]
    edits += [Edit("after", None, name, "order") for name in new.after if name in order[1] - order[0]]
    return edits


def _node_fields(node: Node) -> dict[str, Any]:
    """The fields of a node as an author has them: `after` is what the author declared."""
    fields = {key: value for key, value in written(node).items() if key not in ("after", *_DERIVED)}
    return fields | ({"after": list(node.control)} if node.control else {})


def written(value: Any) -> Any:
    """A part of a compiled graph as an author would write it: sources of expressions, plain JSON else.

    Two expressions that Python reads alike are the same text. What follows from other parts is left out.
    """
    match value:
        case Expr():
            return _source(value.src, "eval")
        case Code():
            return _source(value.src, "exec")
        case Text():
            return "".join(p if isinstance(p, str) else f"{{{{ {_source(p.src, 'eval')} }}}}" for p in value.parts)
        case BaseModel():
            fields = ((field.alias or name, getattr(value, name)) for name, field in type(value).model_fields.items())
            own = ((key, below) for key, below in fields if below is not None and key not in _DERIVED - {"name"})
            return {key: written(below) for key, below in own}
        case Mapping():
            return {str(key): written(below) for key, below in value.items()}
        case tuple() | list():
            return [written(below) for below in value]
    return value


def _source(text: str, mode: Literal["eval", "exec"]) -> str:
    try:
        return ast.unparse(ast.parse(text.strip() if mode == "eval" else text, mode=mode))
    except SyntaxError:
        return text


def _edits(old: Any, new: Any, path: str) -> list[Edit]:
    """The fields that differ between two JSON values; lists are compared whole."""
    if canonical(old) == canonical(new):
        return []
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return [Edit(path, _shown(old), _shown(new))]
    edits: list[Edit] = []
    for key in _both(old, new):
        below = f"{path}.{key}" if path else key
        if key not in old:
            edits.append(Edit(below, None, _shown(new[key])))
        elif key not in new:
            edits.append(Edit(below, _shown(old[key]), None))
        elif key in _SCHEMAS and isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            edits += _schema_edits(old[key], new[key], below)
        else:
            edits += _edits(old[key], new[key], below)
    return edits


def _schema_edits(old: Mapping[str, Any], new: Mapping[str, Any], path: str, prefix: str = "") -> list[Edit]:
    before, after = _properties(old, path), _properties(new, path)
    return [
        Edit(prefix + (name or "the whole"), before.get(name), after.get(name))
        for name in _both(before, after)
        if before.get(name) != after.get(name)
    ]


def _properties(schema: Any, path: str) -> dict[str, str]:
    """A schema as one line for each value in it: `reports[].text` → `string`; a ? behind what is optional."""
    if not isinstance(schema, Mapping):
        return {path: _shown(schema)}
    inner = [key for key in ("properties", "items") if isinstance(schema.get(key), Mapping)]
    rest = {key: value for key, value in schema.items() if key not in (*inner, "required", "title")}
    if "properties" in inner:
        rest = {key: value for key, value in rest.items() if (key, value) != ("additionalProperties", False)}
    found = {path: str(rest["type"]) if rest.keys() == {"type"} and isinstance(rest["type"], str) else _shown(rest)}
    if "items" in inner:
        found |= _properties(schema["items"], f"{path}[]")
    for name, below in schema["properties"].items() if "properties" in inner else ():
        mark = "" if name in schema.get("required", ()) else "?"
        found |= _properties(below, f"{path}.{name}{mark}" if path else f"{name}{mark}")
    return found


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value).decode()

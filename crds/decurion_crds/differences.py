"""What changed between two versions of a graph, in terms of nodes and contracts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from decurion_crds.canonical import canonical
from decurion_crds.compile.assemble import TIMEOUTS
from decurion_crds.compiled import CompiledGraph, Node, Scope

Sort = Literal["added", "removed", "moved", "contract", "block", "order", "schema", "model", "graph"]

CONTRACT = ("with", "output", "writes", "when", "otherwise", "onFailure", "retry", "timeoutSeconds")
"""What others see of a node, or what decides whether and how often it runs."""
_INNER = ("name", "kind", "digest", "reads", "parents", "after", "control", "choice", "description", *CONTRACT)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs. `path` goes by names; `parts` are the fields of a node that differ.

    `contract`: what others rely on changed. `block`: only the way in which the node makes its output. `order`: it comes
    after other nodes than before. `moved`: a node of that name left one scope and is in another, unchanged in itself.
    """

    sort: Sort
    path: str
    message: str
    parts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sort": self.sort, "path": self.path, "message": self.message}
        return found | ({"parts": list(self.parts)} if self.parts else {})


def differences(one: CompiledGraph, other: CompiledGraph) -> list[Difference]:
    """What is different in `other`, root first, then templates by name. Empty when runs of both are the same."""
    found = list(_graph(one, other))
    scopes = {"": (one.root, other.root)}
    for name in sorted(one.templates.keys() & other.templates.keys()):
        scopes[name] = (one.templates[name], other.templates[name])
    for name, (before, after) in scopes.items():
        found += _scope(name, before, after)
    return _with_moves(found, one, other)


def _graph(one: CompiledGraph, other: CompiledGraph) -> Iterator[Difference]:
    for name in sorted(one.templates.keys() ^ other.templates.keys()):
        sort: Sort = "removed" if name in one.templates else "added"
        yield Difference(sort, f"templates.{name}", f"the template was {sort}")
        scope = (one if name in one.templates else other).templates[name]
        for node in scope.nodes:
            yield Difference(sort, _path(name, node.name), f"{node.kind} node {sort}")
    for kind, before, after in (("llms", one.llms, other.llms), ("servers", one.servers, other.servers)):
        for name in sorted(before.keys() | after.keys()):
            if not _same(before.get(name), after.get(name)):
                verb = "changed" if name in before and name in after else "added" if name in after else "removed"
                yield Difference("model", f"{kind}.{name}", f"what {name} stands for was {verb}")
    if not _same(one.limits.model_dump(), other.limits.model_dump()):
        yield Difference("graph", "limits", "the limits of a run changed")


def _scope(name: str, before: Scope, after: Scope) -> Iterator[Difference]:
    place = f"templates.{name}" if name else ""
    for what, schemas in (("input", (before.input_schema, after.input_schema)),):
        yield from _fields(f"{place}.{what}".lstrip("."), *schemas)
    if not _same(_outputs(before), _outputs(after)):
        yield from _fields(f"{place}.output".lstrip("."), before.output_schema, after.output_schema, always=True)
    channels = ({c.name: c for c in before.channels}, {c.name: c for c in after.channels})
    for channel in sorted(channels[0].keys() | channels[1].keys()):
        pair = [side.get(channel) for side in channels]
        if not _same(*(one.model_dump() if one else None for one in pair)):
            verb = "changed" if all(pair) else "added" if pair[1] else "removed"
            yield Difference("schema", f"{place}.state.{channel}".lstrip("."), f"the channel was {verb}")
    for node in [*before.nodes, *(node for node in after.nodes if node.name not in before.by_name)]:
        path = _path(name, node.name)
        if node.name not in after.by_name:
            yield Difference("removed", path, f"{node.kind} node removed")
        elif node.name not in before.by_name:
            yield Difference("added", path, f"{node.kind} node added")
        else:
            yield from _node(path, node, after.by_name[node.name])


def _outputs(scope: Scope) -> Any:
    return [{name: expr.src for name, expr in scope.output.items()}, scope.output_schema]


def _fields(
    path: str, before: Mapping[str, Any], after: Mapping[str, Any], *, always: bool = False
) -> Iterator[Difference]:
    """Fields of an object's schema that differ."""
    if _same(before, after) and not always:
        return
    one, other = before.get("properties", {}), after.get("properties", {})
    required = (set(before.get("required", ())), set(after.get("required", ())))
    told = False
    for name in sorted(one.keys() | other.keys()):
        if name not in other or name not in one:
            verb = "removed" if name not in other else "added"
            needed = ", and is required" if verb == "added" and name in required[1] else ""
            yield Difference("schema", f"{path}.{name}", f"the field was {verb}{needed}")
        elif not _same(one[name], other[name]):
            yield Difference("schema", f"{path}.{name}", "its type changed")
        elif (name in required[0]) != (name in required[1]):
            verb = "required" if name in required[1] else "optional"
            yield Difference("schema", f"{path}.{name}", f"it became {verb}")
        else:
            continue
        told = True
    if not told:
        yield Difference("schema", path, "what it is made of changed" if always else "its schema changed")


def _node(path: str, before: Node, after: Node) -> Iterator[Difference]:
    one, other = _plain(before), _plain(after)
    for node, plain in ((before, one), (after, other)):
        if node.timeout_seconds == TIMEOUTS.get(node.kind):
            del plain["timeoutSeconds"]  # the default of the kind: nobody wrote it
    contract = tuple(part for part in CONTRACT if not _same(one.get(part), other.get(part)))
    if contract:
        yield Difference("contract", path, f"its {' and '.join(contract)} changed", contract)
    inner = sorted({*one, *other} - {*_INNER})
    block = tuple(part for part in inner if not _same(one.get(part), other.get(part)))
    if before.kind != after.kind:
        yield Difference("block", path, f"it became {after.kind}, and was {before.kind}", block)
    elif block:
        yield Difference("block", path, f"its {' and '.join(block)} changed", block)
    gone, come = (sorted({*a.after} - {*b.after}) for a, b in ((before, after), (after, before)))
    if gone or come:
        told = [f"after {name} no longer" for name in gone] + [f"after {name}" for name in come]
        yield Difference("order", path, f"it now runs {', '.join(told)}", ("after",))


def _plain(node: Node) -> dict[str, Any]:
    """A node's fields, expressions as their author wrote them."""
    found: dict[str, Any] = _written(node.to_json())
    return found


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        if "src" in value and "py" in value:
            return value["src"]
        return {name: _written(member) for name, member in value.items()}
    return [_written(item) for item in value] if isinstance(value, list) else value


def _with_moves(found: list[Difference], one: CompiledGraph, other: CompiledGraph) -> list[Difference]:
    """A node that was removed in one scope and added, the same, in another, was moved."""
    gone = {d.path: d for d in found if d.sort == "removed"}
    nodes = (dict(_all(one)), dict(_all(other)))
    kept = list(found)
    for new in [d for d in found if d.sort == "added" and d.path in nodes[1]]:
        name = new.path.rpartition(".")[2]
        for path in gone:
            same_name = path.rpartition(".")[2] == name and path in nodes[0]
            if same_name and _same(_own(nodes[0][path]), _own(nodes[1][new.path])):
                kept = [d for d in kept if d is not new and d is not gone[path]]
                kept.append(Difference("moved", new.path, f"it was {path}"))
                del gone[path]
                break
    return kept


def _all(graph: CompiledGraph) -> Iterator[tuple[str, Node]]:
    for name, scope in {"": graph.root, **graph.templates}.items():
        for node in scope.nodes:
            yield _path(name, node.name), node


def _own(node: Node) -> dict[str, Any]:
    return {key: value for key, value in _plain(node).items() if key not in ("digest", "reads", "parents", "after")}


def _path(scope: str, node: str) -> str:
    return f"templates.{scope}.nodes.{node}" if scope else f"nodes.{node}"


def _same(one: Any, other: Any) -> bool:
    return canonical(one) == canonical(other)

"""The house style of manifests: `formatted` writes a document so, comments kept, and what it means the same.

Two spaces of indentation, items indented below their list; keys of a node in one order; `with`, `writes` and `map` in
block form but where they hold one entry, or nothing but paths and numbers; expressions with signs that YAML may take
for its own in double quotes; what stood in one line between braces stays so where it fits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from decurion_crds.loader.compose import compose
from decurion_crds.loader.inline import SIGNS, flow, scalar
from decurion_crds.loader.layout import Element, Layout, NotLaidOut, Value, layout
from decurion_crds.loader.source import Source
from decurion_crds.v1alpha1.taskgraph import BLOCKS

Path: TypeAlias = tuple[str, ...]

WIDTH = 120
NODE_ORDER = (
    "name",
    "description",
    "when",
    "after",
    "join",
    "with",
    "load",
    *BLOCKS,
    "output",
    "writes",
    "retry",
    "timeoutSeconds",
    "onFailure",
    "otherwise",
)
_DOCUMENT_ORDER = ("apiVersion", "kind", "metadata", "spec")
_IN_BLOCKS = ("with", "writes", "map")
_EXPRESSIONS = frozenset({"when", "items", "key", "until", "score", "value", "result", "jsonl", "prefix", "from"})
_MAPS_OF_EXPRESSIONS = frozenset({"with", "writes", "transform", "otherwise", "next", "choices"})
_FREE = frozenset({"schemas", "schema", "input", "parameters", "arguments", "form", "metadata"})
"""What is inside these is data of the author, in which no word is ours."""
_SIMPLE = re.compile(r"[\w.-]+")


class FormRefused(Exception):
    """The document is not written in another form. The text says why."""


def formatted(text: str) -> str:
    """A document without mistakes in the house style. Raises `FormRefused`."""
    try:
        found = layout(text)
    except NotLaidOut as left:
        raise FormRefused(f"it has {left}, whose form is left alone") from left
    return text if found is None else rewritten(found, text)


def rewritten(found: Layout, text: str, *, same: bool = True) -> str:
    """A layout as text. With `same` it must mean what `text`, of which it was read, means.

    Raises `FormRefused` where it would not, or would lose a comment.
    """
    lines = [*_value(found.root, (), 0), *found.end]
    new = "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"
    meaning = compose(Source("", new))
    if any(problem.code == "YAML" for problem in meaning.problems):
        raise FormRefused("another form would be no YAML; its form is left alone")
    if same and meaning.value != compose(Source("", text)).value:
        raise FormRefused("another form would change what it means; its form is left alone")
    if _comments(layout(new)) != _comments(layout(text)):
        raise FormRefused("another form would lose a comment; its form is left alone")
    return new


def _comments(found: Layout | None) -> Counter[str]:
    counted: Counter[str] = Counter()

    def count(value: Value) -> None:
        for element in value.elements:
            counted.update(line for line in (*element.above, *element.below, element.behind) if line)
            count(element.value)

    if found is not None:
        count(found.root)
        counted.update(line for line in found.end if line)
    return counted


def _value(value: Value, path: Path, indent: int) -> Iterator[str]:
    """The lines of a map or list in block form, or of a scalar that is a whole document."""
    if value.kind == "scalar":
        yield from _scalar("", value, path, indent)
        return
    for position, element in enumerate(_ordered(value, path)):
        yield from _above(element, indent, first=position == 0)
        yield from _element(element, path, indent)
        yield from (f"{' ' * indent}{line}" for line in element.below)


def _above(element: Element, indent: int, *, first: bool) -> Iterator[str]:
    """Comments and at most one blank line at a time; none at the beginning of a collection."""
    blank = first
    for line in element.above:
        if line or not blank:
            yield f"{' ' * indent}{line}" if line else ""
        blank = not line


def _element(element: Element, path: Path, indent: int) -> Iterator[str]:
    below = (*path, element.name if element.key is not None else "*")
    head = " " * indent + (f"{element.key}:" if element.key is not None else "-")
    lines = list(_after(head, element.value, below, indent))
    if element.behind:
        # A comment keeps its distance where its line is what it was, so that columns of comments stay columns.
        left_braces = element.value.flow and len(lines) > 1
        column = 0 if left_braces else element.behind_column - element.column + indent
        at = next((i for i, line in enumerate(lines) if not line.lstrip().startswith("#")), 0)
        lines[at] = f"{lines[at].rstrip().ljust(max(len(lines[at].rstrip()) + 2, column))}{element.behind}"
    yield from lines


def _after(head: str, value: Value, path: Path, indent: int) -> Iterator[str]:
    """A value behind its key or dash."""
    if value.anchor:
        head = f"{head} &{value.anchor}"
    if value.kind == "scalar":
        yield from _scalar(f"{head} " if value.text or value.content or value.style else head, value, path, indent)
        return
    line = f"{head} {_flow(value, path)}"
    if not value.elements or (value.flow and not value.wide and len(line) <= WIDTH and not _wants_block(value, path)):
        yield line
        return
    if path[-1] != "*" or value.anchor:
        yield head
        yield from _value(value, path, indent + 2)
        return
    first, *rest = _value(value, path, indent + 2)
    above = []
    while first.lstrip().startswith("#") and rest:
        above.append(first[2:])
        first, *rest = rest
    yield from above
    yield f"{head} {first.lstrip()}"
    yield from rest


def _scalar(head: str, value: Value, path: Path, indent: int) -> Iterator[str]:
    if value.style in ("|", ">"):
        mark, *lines = value.text
        yield f"{head}{mark}"
        yield from (f"{' ' * (indent + 2)}{line}" if line else "" for line in lines)
        return
    yield f"{head}{_word(value, path)}"


def _word(value: Value, path: Path) -> str:
    """A scalar as written, or in double quotes where these are due."""
    if not value.text:
        return scalar(value.content) if value.style else ""
    [written] = value.text
    expression = _is_expression(path)
    if value.style == "'" or (expression and not value.style and SIGNS & set(value.content)):
        return scalar(value.content)
    return written


def _flow(value: Value, path: Path) -> str:
    if value.kind == "scalar":
        if value.style in ("|", ">"):
            return scalar(value.content)
        return _word(value, path)
    inside = []
    for element in _ordered(value, path):
        below = _flow(element.value, (*path, element.name if element.key is not None else "*"))
        below = f"&{element.value.anchor} {below}" if element.value.anchor else below
        inside.append(f"{element.key}: {below}".rstrip() if element.key is not None else below)
    joined = ", ".join(inside)
    return f"{{{joined}}}" if value.kind == "map" else f"[{joined}]"


def _wants_block(value: Value, path: Path) -> bool:
    """Whether a value between braces has to leave them, for itself or for what is inside."""
    if value.kind == "map" and path[-1] in _IN_BLOCKS and _is_node(path[:-1]) and len(value.elements) > 1:
        return not _is_simple(value)
    return any(
        _wants_block(one.value, (*path, one.name if one.key is not None else "*")) or one.above or one.behind
        for one in value.elements
    )


def _is_simple(value: Value) -> bool:
    if value.kind == "scalar":
        return _SIMPLE.fullmatch(value.content) is not None
    return all(_is_simple(element.value) for element in value.elements)


def _ordered(value: Value, path: Path) -> Sequence[Element]:
    order = NODE_ORDER if _is_node(path) else _DOCUMENT_ORDER if not path else ()
    if value.kind != "map" or not order:
        return value.elements
    found = sorted(value.elements, key=lambda one: order.index(one.name) if one.name in order else len(order))
    last = value.elements[-1] if value.elements else None
    if last is not None and found[-1] is not last:
        found[-1].below, last.below = [*found[-1].below, *last.below], []
    if found and found[0] is not value.elements[0]:
        # A blank line and comments before a collection are before its first member, whichever that is.
        first = value.elements[0]
        first.above, found[0].above = [], [*first.above, *(line for line in found[0].above if line)]
    value.elements = list(found)
    return found


def _is_node(path: Path) -> bool:
    return path[-2:] in (("nodes", "*"), ("finally", "*")) and path[0] == "spec" and not _FREE & set(path)


def _is_scope(path: Path) -> bool:
    return path in (("spec",), ("spec", "templates", "*")) or path[-1:] == ("body",)


def _is_expression(path: Path) -> bool:
    """Whether an expression stands at a place of a TaskGraph."""
    if path[:1] != ("spec",) or len(path) < 2 or _FREE & set(path[:-1]):
        return False
    if path[-2] == "output":
        return _is_scope(path[:-2])
    if path[-2] in _MAPS_OF_EXPRESSIONS:
        return _is_node(path[:-2]) or _is_node(path[:-3])
    return path[-1] in _EXPRESSIONS and (_is_node(path[:-1]) or _is_node(path[:-2]) or _is_node(path[:-3]))


def written_value(value: object) -> Value:
    """A layout for a JSON value that nobody wrote."""
    if isinstance(value, dict):
        members = [Element(written_value(below), scalar(name, key=True), name) for name, below in value.items()]
        return Value("map", flow=len(flow(value)) < WIDTH, wide=False, elements=members)
    if isinstance(value, list):
        return Value("list", flow=True, elements=[Element(written_value(item)) for item in value])
    return Value("scalar", [scalar(value)], str(value))

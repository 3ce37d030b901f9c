"""A document of a manifest as its author laid it out: members and items with their comments and blank lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from decurion_crds.loader.compose import Node, tree
from decurion_crds.loader.source import Source


class NotLaidOut(Exception):
    """The document uses a part of YAML whose form is left alone. The text says which."""


@dataclass(slots=True, eq=False)
class Value:
    """A value. `kind` is scalar, map or list; `text` is that of a scalar as written, its lines behind the first without
    their common indentation. `flow` says that it stands between braces, `wide` that it takes several lines there.
    """

    kind: str
    text: list[str] = field(default_factory=list)
    content: str = ""
    style: str = ""
    anchor: str = ""
    flow: bool = False
    wide: bool = False
    elements: list[Element] = field(default_factory=list)

    def member(self, name: str) -> Element | None:
        return next((one for one in self.elements if one.name == name), None)


@dataclass(slots=True, eq=False)
class Element:
    """A member of a map, or an item of a list (without `key`).

    `above` are the comments and blank lines before it, `below` the comments that stand behind all of it, indented like
    it. `behind` is the comment on its first line, with the column where it stood, 0 where
    that is none that an author chose.
    """

    value: Value
    key: str | None = None
    name: str = ""
    line: int = 0
    column: int = 0
    above: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    behind: str = ""
    behind_column: int = 0


@dataclass(slots=True)
class Layout:
    """A document: its root, and the comments behind everything."""

    root: Value
    end: list[str] = field(default_factory=list)


def layout(text: str) -> Layout | None:
    """The layout of one document, None where there is none. Raises `NotLaidOut`."""
    source = Source("", text)
    root = tree(source)
    if root is None:
        return None
    return _Reader(source, text).read(root)


class _Reader:
    def __init__(self, source: Source, text: str) -> None:
        self._source = source
        self._lines = text.split("\n")
        self._taken: dict[int, list[tuple[int, int]]] = {}
        """Columns of scalars by line: from and to, counted from 1."""

    def read(self, root: Node) -> Layout:
        found = Layout(self._value(root))
        elements = list(_in_order(found.root))
        self._comments(elements, found)
        return found

    def _value(self, node: Node) -> Value:
        if node.tag is not None:
            raise NotLaidOut("tags")
        value = self._alias(node) if node.target is not None else self._bare(node)
        value.anchor = node.anchor if node.target is None else ""
        return value

    def _alias(self, node: Node) -> Value:
        word = f"*{node.anchor}"
        self._take(node.spot.line, node.spot.column, node.spot.end_column)
        return Value("scalar", [word], word, "*")

    def _bare(self, node: Node) -> Value:
        if node.kind == "scalar":
            return self._scalar(node)
        spot = node.spot
        value = Value(node.kind, flow=node.flow, wide=node.flow and spot.end_line > spot.line)
        if node.kind == "list":
            value.elements = [self._item(child, node) for child in node.children]
        else:
            pairs = zip(node.children[::2], node.children[1::2], strict=True)
            value.elements = [self._member(key, child) for key, child in pairs]
        return value

    def _item(self, node: Node, above: Node) -> Element:
        column = node.spot.column
        if not above.flow:
            line = self._lines[node.spot.line - 1]
            dash = line.rfind("-", 0, column - 1)
            if dash < 0 or line[dash + 1 : column - 1].strip():
                raise NotLaidOut("items that start on another line than their dash")
            column = dash + 1
        return Element(self._value(node), line=node.spot.line, column=column)

    def _member(self, key: Node, node: Node) -> Element:
        if key.kind != "scalar" or key.target is not None or key.anchored or key.tag is not None:
            raise NotLaidOut("keys that are no words")
        if key.spot.line != key.spot.end_line:
            raise NotLaidOut("keys of several lines")
        self._take(key.spot.line, key.spot.column, key.spot.end_column)
        written = self._source.between(key.spot)
        return Element(self._value(node), written, key.value, key.spot.line, key.spot.column)

    def _scalar(self, node: Node) -> Value:
        spot = node.spot
        if spot.style in ("|", ">"):
            return self._block(node)
        if spot.line == spot.end_line:
            self._take(spot.line, spot.column, spot.end_column)
            return Value("scalar", [_bare_word(self._source.between(spot), node)], node.value, spot.style)
        for line in range(spot.line, spot.end_line + 1):
            first = spot.column if line == spot.line else 1
            last = spot.end_column if line == spot.end_line else len(self._lines[line - 1]) + 1
            self._take(line, first, last)
        return Value("scalar", [], node.value, spot.style or '"')

    def _block(self, node: Node) -> Value:
        spot = node.spot
        head = self._lines[spot.line - 1][spot.column - 1 :]
        mark = _bare_word(head, node).split()[0]
        if "+" in mark or any(c.isdigit() for c in mark):
            raise NotLaidOut(f"texts after {mark}")
        self._take(spot.line, spot.column, spot.column + head.index(mark) + len(mark))
        number, lines, indent = spot.line, [], 0
        while number < len(self._lines):
            line = self._lines[number].rstrip("\r")
            deep = len(line) - len(line.lstrip(" "))
            if line.strip():
                indent = indent or deep
                if deep < indent or not indent or number + 1 > spot.end_line:
                    break
            lines.append(line[indent:] if line.strip() else "")
            self._take(number + 1, 1, len(line) + 2)
            number += 1
        while lines and not lines[-1]:
            lines.pop()
            self._taken.pop(number, None)
            number -= 1
        return Value("scalar", [mark, *lines], node.value, spot.style)

    def _take(self, line: int, first: int, last: int) -> None:
        self._taken.setdefault(line, []).append((first, last))

    def _comments(self, elements: list[Element], into: Layout) -> None:
        """Hang every comment and blank line on the element that it stands by."""
        pending: list[tuple[int, str]] = []
        place = 0
        for number, line in enumerate(self._lines, 1):
            starting = []
            while place < len(elements) and elements[place].line == number:
                starting.append(elements[place])
                place += 1
            at = self._comment(number, line)
            if not starting and number not in self._taken and (at is not None or not line.strip()):
                pending.append((at if at is not None else 0, line.strip()))
                continue
            if starting:
                self._above(starting[0], elements[: place - len(starting)], pending)
                pending = []
            if at is not None:
                owner = starting[-1] if starting else elements[place - 1]
                owner = self._owner(owner, starting)
                if owner.behind:
                    raise NotLaidOut("several comments inside one value")
                gap = at - 1 - len(line[: at - 1].rstrip())
                owner.behind, owner.behind_column = line[at - 1 :].rstrip(), at if gap > 2 else 0
        self._above(None, elements, pending)
        into.end = [text for _, text in pending]

    def _owner(self, last: Element, starting: list[Element]) -> Element:
        """Who has the comment of a line: of elements between braces that start on it, what holds them all."""
        return next((one for one in starting if one.value.flow and not one.value.wide), last)

    def _comment(self, number: int, line: str) -> int | None:
        """The column of the comment of a line."""
        at = -1
        while (at := line.find("#", at + 1)) >= 0:
            inside = any(first <= at + 1 < last for first, last in self._taken.get(number, ()))
            if not inside and (at == 0 or line[at - 1] in " \t"):
                return at + 1
        return None

    def _above(self, element: Element | None, before: list[Element], pending: list[tuple[int, str]]) -> None:
        """What is indented further than the next element stands behind one before it."""
        column = element.column if element is not None else 1
        deeper = [i for i, (at, _) in enumerate(pending) if at > column]
        cut = deeper[-1] + 1 if deeper else 0
        for at, text in pending[:cut]:
            owner = next((one for one in reversed(before) if one.column <= at), None)
            if owner is not None and text:
                owner.below.append(text)
        rest = [text for _, text in pending[cut:]]
        if element is not None:
            element.above = rest
        pending[:] = pending[cut:]


def _bare_word(text: str, node: Node) -> str:
    """A scalar as written, without the anchor before it."""
    return text.removeprefix(f"&{node.anchor}").lstrip() if node.anchored else text


def _in_order(value: Value) -> Iterator[Element]:
    for element in value.elements:
        yield element
        yield from _in_order(element.value)

"""Source text from syntax trees: field access rewritten, format strings taken apart, and the way back to the author's
text.

There are two readings of one expression. The interpreter gets `x.get("name")` for `x.name`, so that an optional
property that is absent reads as None. The checker gets `x["name"]`, which it types by the schema, narrows by tests, and
refuses where there is no such field.
"""

from __future__ import annotations

import ast
import bisect
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from decurion_crds.expressions.wide import index_of, length_of

Reading: TypeAlias = Literal["run", "check"]

_CONVERSIONS = {-1: "", 97: "!a", 114: "!r", 115: "!s"}


def refused_format(nodes: Iterable[ast.AST]) -> ast.AST | None:
    """The first of `nodes` that is a format specification with braces in it, which cannot be taken apart."""
    for node in nodes:
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            texts = [str(part.value) for part in node.format_spec.values if isinstance(part, ast.Constant)]
            if any("{" in text or "}" in text for text in texts):
                return node
    return None


def field_name(node: ast.expr) -> str | None:
    """The constant key that `node` reads from its value: `x.name` and `x["name"]`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return None


class Rewriter(ast.NodeTransformer):
    """Makes the tree for one reading. The given tree is changed; new nodes keep the place of what they stand for.

    `is_field` says of an attribute or subscript with a constant key, in a place that reads and is not called, whether
    it is a field of a JSON object; `is_light` of what `len` or a constant index is asked of, whether it may be a list
    that stands elsewhere: then a function of ours is asked.
    """

    def __init__(
        self,
        reading: Reading,
        is_field: Callable[[ast.expr], bool],
        is_light: Callable[[ast.expr], bool] = lambda node: False,
    ) -> None:
        self._reading = reading
        self._is_field = is_field
        self._is_light = is_light

    def visit_Call(self, node: ast.Call) -> ast.expr:
        measured = length_of(node)
        if measured is not None and isinstance(node.func, ast.Name) and self._is_light(measured):
            node.func = ast.copy_location(ast.Name(id="_len", ctx=ast.Load()), node.func)
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        else:
            node.func = self.visit(node.func)
        node.args = [self.visit(arg) for arg in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return _extreme(node) if self._reading == "check" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._field(node, _name_place(node))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        item = index_of(node)
        if item is not None and isinstance(node.ctx, ast.Load) and self._is_light(item[0]):
            name = ast.copy_location(ast.Name(id="_item", ctx=ast.Load()), node)
            return ast.copy_location(ast.Call(func=name, args=[self.visit(item[0]), node.slice], keywords=[]), node)
        if field_name(node) is None:
            self.generic_visit(node)
            return node
        return self._field(node, node.slice)

    def _field(self, node: ast.Attribute | ast.Subscript, place: ast.expr) -> ast.expr:
        is_field = isinstance(node.ctx, ast.Load) and self._is_field(node)
        node.value = self.visit(node.value)
        if not is_field:
            return node
        key = ast.copy_location(ast.Constant(value=field_name(node)), place)
        if self._reading == "check":
            return ast.copy_location(ast.Subscript(value=node.value, slice=key, ctx=ast.Load()), node)
        get = ast.copy_location(ast.Attribute(value=node.value, attr="get", ctx=ast.Load()), node)
        return ast.copy_location(ast.Call(func=get, args=[key], keywords=[]), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        """`f"{a!r:>{w}}"` is `"{!r:>{}}".format(a, w)`, which every version of Python writes back in the same way."""
        fields: list[ast.expr] = []
        template = self._template(node, fields)
        if not fields:
            return ast.copy_location(ast.Constant(value=template.format()), node)
        text = ast.copy_location(ast.Constant(value=template), node)
        method = ast.copy_location(ast.Attribute(value=text, attr="format", ctx=ast.Load()), node)
        return ast.copy_location(ast.Call(func=method, args=fields, keywords=[]), node)

    def _template(self, node: ast.JoinedStr, fields: list[ast.expr]) -> str:
        parts: list[str] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value).replace("{", "{{").replace("}", "}}"))
            elif isinstance(part, ast.FormattedValue):
                fields.append(self.visit(part.value))
                spec = part.format_spec
                tail = ":" + self._template(spec, fields) if isinstance(spec, ast.JoinedStr) else ""
                parts.append("{" + _CONVERSIONS[part.conversion] + tail + "}")
        return "".join(parts)


def _extreme(node: ast.Call) -> ast.expr:
    """`max(rows, key=f)` as `sorted(rows, key=f)[0]`, of which the checker knows what `f` gets wherever it stands."""
    keywords = {keyword.arg: keyword for keyword in node.keywords}
    named = isinstance(node.func, ast.Name) and node.func.id in ("max", "min")
    if not named or not keywords.keys() <= {"key", "default"} or "key" not in keywords or not node.args:
        return node
    rows = node.args[0] if len(node.args) == 1 else ast.copy_location(ast.List(elts=node.args, ctx=ast.Load()), node)
    if isinstance(rows, ast.Starred):
        return node
    name = ast.copy_location(ast.Name(id="sorted", ctx=ast.Load()), node.func)
    found: ast.expr = ast.copy_location(ast.Call(func=name, args=[rows], keywords=[keywords["key"]]), node)
    if "default" in keywords:
        elements = [ast.Starred(value=found, ctx=ast.Load()), keywords["default"].value]
        found = ast.copy_location(ast.List(elts=elements, ctx=ast.Load()), node)
        ast.copy_location(elements[0], node)
    first = ast.copy_location(ast.Constant(value=0), node)
    return ast.copy_location(ast.Subscript(value=found, slice=first, ctx=ast.Load()), node)


def _name_place(node: ast.Attribute) -> ast.expr:
    """A node that stands where the attribute's name stands."""
    place = ast.Constant(value=node.attr)
    place.lineno = place.end_lineno = node.end_lineno or node.lineno
    place.end_col_offset = node.end_col_offset or node.col_offset
    place.col_offset = place.end_col_offset - len(node.attr.encode())
    return place


class Columns:
    """Converts the byte offsets of `ast` to character offsets in one text."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")

    def characters(self, line: int, byte_offset: int) -> int:
        if line > len(self._lines):
            return byte_offset
        return len(self._lines[line - 1].encode()[:byte_offset].decode(errors="ignore"))


class SourceMap:
    """Leads from places of a generated text to places and nodes of the author's text.

    Places are (line, column), from 1. `tree` is the rewritten tree, whose nodes carry the author's places;
    `generated` is what `ast.unparse` made of it. The two are walked side by side.
    """

    def __init__(self, tree: ast.AST, generated: str, author: str) -> None:
        mine = Columns(generated)
        self._tree = tree
        self._theirs = Columns(author)
        self._author = author
        self._spans: dict[tuple[int, int, int, int], ast.AST] = {}
        self._starts: dict[tuple[int, int], ast.AST] = {}
        mode: Literal["eval", "exec"] = "eval" if isinstance(tree, ast.Expression) else "exec"
        for old, new in zip(ast.walk(tree), ast.walk(ast.parse(generated, mode=mode)), strict=False):
            if type(old) is not type(new):
                break
            if isinstance(old, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.excepthandler):
                self._add(old, new, mine)
        self._order = sorted(self._starts)

    def _add(self, old: ast.AST, new: ast.AST, columns: Columns) -> None:
        line, end_line = getattr(new, "lineno", 1), getattr(new, "end_lineno", 1)
        column = columns.characters(line, getattr(new, "col_offset", 0)) + 1
        end = columns.characters(end_line, getattr(new, "end_col_offset", 0)) + 1
        self._spans.setdefault((line, column, end_line, end), old)
        self._starts[line, column] = old

    def node(self, line: int, column: int, end_line: int = 0, end_column: int = 0) -> ast.AST | None:
        """The node at a span of the generated text, or the nearest one that starts at or before it."""
        exact = self._spans.get((line, column, end_line, end_column)) or self._starts.get((line, column))
        if exact:
            return exact
        before = bisect.bisect_right(self._order, (line, column))
        return self._starts[self._order[before - 1]] if before else None

    def place(self, line: int, column: int, end_line: int = 0, end_column: int = 0) -> tuple[int, int]:
        """The author's place of `node`."""
        node = self.node(line, column, end_line, end_column)
        line = getattr(node, "lineno", 1)
        return line, self._theirs.characters(line, getattr(node, "col_offset", 0)) + 1

    def is_joined(self, node: ast.AST | None) -> bool:
        """Whether `node` is one side of a `|`, which makes one object of two."""
        joins = (n for n in ast.walk(self._tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitOr))
        return any(node is join.left or node is join.right for join in joins)

    def segment(self, node: ast.AST | None) -> str:
        """The author's text of `node`, on one line and not longer than 60 characters."""
        text = ast.get_source_segment(self._author, node) if isinstance(node, ast.expr) else None
        text = " ".join((text or "this").split())
        return text if len(text) <= 60 else f"{text[:57]}…"


def depth(nodes: Iterable[ast.AST], limit: int) -> int:
    """Levels of nesting below `nodes`, counted without recursion; stops counting beyond `limit`."""
    level, current = 0, list(nodes)
    while current and level <= limit:
        current = [child for node in current for child in ast.iter_child_nodes(node)]
        level += 1
    return level

"""Parsing of expressions: what the language allows, what an expression reads, and the forms for interpreter and
checker.

The language is a pure part of Python: no statements, assignments, imports or methods that change a value. `x.name` that
is not called is a field of a JSON object, `x.name(…)` a method of str, list or dict.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from decurion_crds.compiled import Expr
from decurion_crds.expressions import foreign
from decurion_crds.expressions.errors import ExpressionRefused, Problem
from decurion_crds.expressions.rewrite import (
    Columns,
    Reading,
    Rewriter,
    SourceMap,
    depth,
    field_name,
    refused_format,
)
from decurion_crds.expressions.wide import index_of, length_of, light_uses
from decurion_crds.expressions.words import BUILTINS, FUNCTIONS, MUTATORS
from decurion_crds.findings import Fix
from decurion_crds.values import MAX_INTEGER

MAX_DEPTH = 100
"""Levels of nesting of a syntax tree that are accepted."""
REMEMBERED = 4096
"""Parsed expressions that are kept, each of a few KB."""

_ALLOWED = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Call, ast.Attribute, ast.Subscript, ast.Slice,
    ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp,
    ast.GeneratorExp, ast.comprehension, ast.Lambda, ast.arguments, ast.arg, ast.keyword, ast.Starred, ast.JoinedStr,
    ast.FormattedValue, ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
_REFUSED: dict[type[ast.AST], str] = {
    ast.NamedExpr: "an expression assigns nothing; remove := and write the value twice, or use a code node",
    ast.Await: "await has no meaning in an expression; remove it",
    ast.Yield: "yield has no meaning in an expression; write a list",
    ast.YieldFrom: "yield has no meaning in an expression; write a list",
    ast.MatMult: "the operator @ has no meaning for JSON values; remove it",
}


@dataclass(frozen=True)
class Parsed:
    """An accepted expression. `check` is its text for the checker; `tree` the author's syntax tree."""

    expr: Expr
    check: str
    tree: ast.Expression

    def place_of(self, path: str) -> tuple[int, int]:
        """Line and column, from 1, of the last name of a dotted path where the text first reads it."""
        keys = tuple(path.split("."))
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.expr) and path_of(node) == keys)
        return self.place_of_field(next(nodes, self.tree.body))

    def place_of_field(self, node: ast.expr) -> tuple[int, int]:
        """Line and column, from 1, of the name of the field that `node` reads; of `node` itself when it reads none."""
        columns = Columns(self.expr.src)
        if isinstance(node, ast.Attribute):
            line, end = node.end_lineno or 1, node.end_col_offset or 0
            return line, columns.characters(line, end - len(node.attr.encode())) + 1
        place = node.slice if isinstance(node, ast.Subscript) else node
        return place.lineno, columns.characters(place.lineno, place.col_offset) + 1

    @functools.cached_property
    def source_map(self) -> SourceMap:
        """From places of `check` to places of the author's text."""
        return SourceMap(_rewritten(self.expr.src, "check"), self.check, self.expr.src)


def parse_expression(src: str, names: Collection[str]) -> Parsed:
    """Parses one expression over `names`, which go before builtins of the same name.

    The same text over the same names is parsed once, of the last `REMEMBERED` ones: graphs are compiled again whenever
    something beside them changes. Raises `ExpressionRefused` with every problem of the text: what does not parse
    (EXPR-SYNTAX), what the language does not have (EXPR-SYNTAX), and names that are not visible (EXPR-NAME).
    """
    return _parsed(src, frozenset(names))


@functools.lru_cache(REMEMBERED)
def _parsed(src: str, names: frozenset[str]) -> Parsed:
    tree = _tree(src)
    if depth([tree], MAX_DEPTH) > MAX_DEPTH:
        message = f"the expression is nested deeper than {MAX_DEPTH} levels; use a code node"
        raise ExpressionRefused([Problem("EXPR-SYNTAX", message)])
    reader = _Reader(src, names)
    reader.check(tree)
    refused = refused_format(ast.walk(tree)) if "{" in src else None
    if refused is not None:
        message = "braces inside a format specification are not supported; write str.format, or use a code node"
        reader.problems.append(reader.problem(refused, "EXPR-SYNTAX", message))
    if reader.problems:
        raise ExpressionRefused(reader.sorted_problems())
    path = path_of(tree.body)
    if path is not None:
        py, check = (path[0] + "".join(form.format(key) for key in path[1:]) for form in (".get({!r})", "[{!r}]"))
    else:
        light = light_uses(reader.uses)
        run = _rewritten(src, "run", lambda node: path_of(node) in light)
        py, check = ast.unparse(run), ast.unparse(_rewritten(src, "check"))
    reads = tuple(".".join(read) for read in shortest(reader.reads))
    bare = path if path is not None and path[0] in reader.names else None
    lights = {} if path is not None else {".".join(read): indexes for read, indexes in sorted(light.items())}
    return Parsed(Expr(src=src, py=py, reads=reads, path=bare, light=lights), check, tree)


def shortest(paths: Collection[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """`paths` without those that another one covers, sorted."""
    kept: list[tuple[str, ...]] = []
    for path in sorted(paths):
        if not (kept and path[: len(kept[-1])] == kept[-1]):
            kept.append(path)
    return kept


def _tree(src: str) -> ast.Expression:
    text = src.rstrip()
    stripped = text.lstrip()
    if not stripped:
        raise ExpressionRefused([Problem("EXPR-SYNTAX", "the expression is empty; write a value")])
    # Blanks before the text would be an indentation error: they become part of the brackets.
    for candidate, shift in ((text, 0), (f"({text}\n)", 1)):
        if candidate is text and text[0].isspace():
            continue
        try:
            tree = ast.parse(candidate, mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            if "\n" in text and not shift:
                continue
            raise ExpressionRefused([foreign.not_python(stripped, error, shift)]) from None
        return _shifted(tree, shift)
    raise AssertionError("unreachable")


def _rewritten(src: str, reading: Reading, is_light: Callable[[ast.expr], bool] = lambda node: False) -> ast.Expression:
    """The tree for one reading. Parsing again is a tenth of the cost of copying a tree."""
    tree = _tree(src)
    tree.body = Rewriter(reading, _is_field, is_light).visit(tree.body)
    return tree


def _shifted(tree: ast.Expression, shift: int) -> ast.Expression:
    if shift:
        for node in ast.walk(tree):
            if isinstance(node, ast.expr | ast.arg | ast.keyword):
                node.col_offset -= shift if node.lineno == 1 else 0
                if node.end_col_offset is not None:
                    node.end_col_offset -= shift if node.end_lineno == 1 else 0
    return tree


def _is_field(node: ast.expr) -> bool:
    """In an expression every attribute that is not called is a field, and so is every constant key of a value that is
    read.
    """
    return not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict | ast.DictComp))


def path_of(node: ast.expr) -> tuple[str, ...] | None:
    """`("input", "rows", "id")` of `input.rows["id"]`; None of anything that is no chain of fields from a name."""
    segments: list[str] = []
    while True:
        if isinstance(node, ast.Name):
            return (node.id, *reversed(segments))
        name = field_name(node)
        if name is None or not isinstance(node, ast.Attribute | ast.Subscript):
            return None
        segments.append(name)
        node = node.value


def is_dunder(name: str) -> bool:
    return name.startswith("__")


class _Reader:
    """One walk over an expression: what is refused, and which paths are read, names that it binds itself left out."""

    def __init__(self, src: str, names: frozenset[str]) -> None:
        self.names = names
        self.reads: set[tuple[str, ...]] = set()
        self.uses: list[tuple[tuple[str, ...], int | None, bool]] = []
        """Path, constant index and whether nothing but that, or its length, is wanted, of every use of a path."""
        self.problems: list[Problem] = []
        self._src = src
        self._columns = Columns(src)

    def problem(self, node: ast.AST, code: str, message: str, fix: Fix | None = None) -> Problem:
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return Problem(code, message, line, self._columns.characters(line, offset) + 1, fix)

    def sorted_problems(self) -> list[Problem]:
        return sorted(self.problems, key=lambda problem: (problem.line, problem.column))

    def check(self, tree: ast.Expression) -> None:
        self._visit(tree.body, frozenset())

    def _refuse(self, node: ast.AST, message: str) -> None:
        self.problems.append(self.problem(node, "EXPR-SYNTAX", message))

    def _visit(self, node: ast.AST, bound: frozenset[str]) -> None:
        if not isinstance(node, _ALLOWED) or type(node) in _REFUSED:
            self._refuse(node, _REFUSED.get(type(node), "this has no meaning in an expression; remove it"))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            self._comprehension(node, bound)
        elif isinstance(node, ast.Lambda):
            self._refuse(node, "a function is no value; hand it to a call, such as sorted(…, key=lambda x: …)")
        elif isinstance(node, ast.Call):
            self._call(node, bound)
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            self._read(node, bound)
        elif (habit := self._habit(node, bound)) is not None:
            self.problems.append(habit)
        else:
            if isinstance(node, ast.Constant):
                self._constant(node)
            for child in ast.iter_child_nodes(node):
                self._visit(child, bound)

    def _habit(self, node: ast.AST, bound: frozenset[str]) -> Problem | None:
        """What Python takes for something that nobody means: braces of a template, and its filters."""
        if isinstance(node, ast.Set) and len(node.elts) == 1 and isinstance(node.elts[0], ast.Set):
            inner = [ast.get_source_segment(self._src, one) or "" for one in node.elts[0].elts]
            whole = ast.get_source_segment(self._src, node) or ""
            fix = Fix(whole, inner[0]) if len(inner) == 1 and "\n" not in whole else None
            message = f"expressions stand here without braces; write {inner[0] if len(inner) == 1 else 'one value'}"
            return self.problem(node, "EXPR-SYNTAX", message, fix)
        said = foreign.filtered(node, self._src, self.names | bound) if isinstance(node, ast.BinOp) else None
        return self.problem(node, "EXPR-SYNTAX", *said) if said is not None else None

    def _read(self, node: ast.expr, bound: frozenset[str], index: int | None = None, light: bool = False) -> None:
        item = index_of(node)
        if item is not None and path_of(item[0]) is not None:
            self._read(item[0], bound, item[1], light=True)
            return
        if isinstance(node, ast.Attribute) and is_dunder(node.attr):
            self._refuse(node, f"{node.attr} is no field; read a field of the data")
            return
        path = path_of(node)
        if path is None:
            for child in ast.iter_child_nodes(node):
                self._visit(child, bound)
            return
        root = path[0]
        if root in bound:
            return
        if root in self.names:
            # A key with a dot cannot stand in a dotted path: the object that holds it is read whole.
            keys = path[1:]
            read = (root, *keys[: next((i for i, key in enumerate(keys) if "." in key), len(keys))])
            self.reads.add(read)
            self.uses.append((read, index, light and read == path))
        elif root in BUILTINS or root in FUNCTIONS:
            if len(path) > 1:
                method = ".".join(path)
                self._refuse(node, f"{method} is a method used as a value; write lambda x: x.{path[1]}() instead")
        else:
            self._unknown(node, root, bound)

    def _unknown(self, node: ast.AST, name: str, bound: frozenset[str]) -> None:
        known = sorted({*self.names, *bound})
        own = foreign.suggested(name, known)
        if own is None and "output" in self.names and name not in foreign.NO_VALUES:
            message = f"{name} is not known here; write output.{name} for a field of the result"
            self.problems.append(self.problem(node, "EXPR-NAME", message, Fix(name, f"output.{name}")))
            return
        meant = own or foreign.suggested(name, sorted(BUILTINS | FUNCTIONS))
        visible = ", ".join(known) or "no names"
        hint = f"did you mean {meant}?" if meant else f"visible here: {visible}"
        if name in foreign.NO_VALUES:
            meant, hint = None, foreign.NO_VALUES[name]
        fix = Fix(name, meant) if meant else None
        self.problems.append(self.problem(node, "EXPR-NAME", f"{name} is not known here; {hint}", fix))

    def _call(self, node: ast.Call, bound: frozenset[str]) -> None:
        if isinstance(node.func, ast.Attribute):
            method = node.func.attr
            if is_dunder(method):
                self._refuse(node.func, f"{method} is no method of JSON values; remove it")
            elif method in MUTATORS:
                self._refuse(node.func, f"{method}() changes a value, and values are shared; build a new one instead")
            self._visit(node.func.value, bound)
        else:
            self._callee(node.func, bound)
        measured = length_of(node)
        if measured is not None and path_of(measured) is not None and "len" not in self.names | bound:
            self._read(measured, bound, light=True)
            return
        for argument in (*node.args, *(named.value for named in node.keywords)):
            self._callee(argument, bound)

    def _callee(self, node: ast.expr, bound: frozenset[str]) -> None:
        """A place where a function may stand."""
        if isinstance(node, ast.Lambda):
            self._lambda(node, bound)
        else:
            self._visit(node, bound)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, bound: frozenset[str]
    ) -> None:
        for generator in node.generators:
            if generator.is_async:
                self._refuse(generator.target, "async has no meaning in an expression; remove it")
            self._visit(generator.iter, bound)
            bound = bound | self._targets(generator.target)
            for condition in generator.ifs:
                self._visit(condition, bound)
        if isinstance(node, ast.DictComp):
            self._visit(node.key, bound)
            self._visit(node.value, bound)
        else:
            self._visit(node.elt, bound)

    def _targets(self, target: ast.expr) -> frozenset[str]:
        found: set[str] = set()
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                found.add(node.id)
                if is_dunder(node.id):
                    self._refuse(node, f"{node.id} is no name here; choose another")
            elif not isinstance(node, ast.Tuple | ast.List | ast.Starred | ast.expr_context):
                self._refuse(target, "a comprehension binds plain names only; choose a name")
                break
        return frozenset(found)

    def _lambda(self, node: ast.Lambda, bound: frozenset[str]) -> None:
        arguments = node.args
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self._visit(default, bound)
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        names += [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
        self._visit(node.body, bound | {arg.arg for arg in names})

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bytes | complex) or value is Ellipsis:
            self._refuse(node, f"{value!r} is no JSON value; write a string or a number")
        elif isinstance(value, float) and not math.isfinite(value):
            self._refuse(node, "this number is beyond what readers of JSON hold; write a smaller one, or a string")
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            self._refuse(node, "this integer is beyond ±(2^53 − 1), which JSON readers round; use a string")
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                self._refuse(node, "this string holds half of a surrogate pair; write the character itself")

"""Source of `code` nodes: what it may use, and its form as one function.

Source is plain Python. The names of `with` are the parameters of a function `main`, the last expression is what it
returns, and no name of one call is seen by another.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from decurion_crds.compiled import Code
from decurion_crds.expressions.errors import ExpressionRefused, Problem
from decurion_crds.expressions.foreign import source_not_python
from decurion_crds.expressions.rewrite import (
    Columns,
    Reading,
    Rewriter,
    SourceMap,
    depth,
    field_name,
    refused_format,
)
from decurion_crds.expressions.syntax import MAX_DEPTH
from decurion_crds.expressions.words import (
    CODE_REFUSED,
    FRESH_ATTRIBUTES,
    FRESH_BUILTINS,
    FRESH_MODULES,
    MODULES,
)

MAIN = "main"
_DUNDERS = frozenset({"__init__", "__name__", "__repr__", "__str__", "__eq__", "__lt__", "__len__"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_REFUSED: dict[type[ast.AST], str] = {
    ast.Global: "global would let one call see another; pass values as arguments",
    ast.AsyncFunctionDef: "async has no meaning in code; write def",
    ast.AsyncFor: "async has no meaning in code; write for",
    ast.AsyncWith: "async has no meaning in code; write with",
    ast.Await: "await has no meaning in code; remove it",
    ast.Yield: "yield is not supported in code; build a list",
    ast.YieldFrom: "yield is not supported in code; build a list",
    ast.Delete: "del is not supported in code; use pop, or build a new value",
}


@dataclass(frozen=True)
class Rendered:
    """One form of a source. `author` is the text that the nodes of `tree` have their places in."""

    text: str
    tree: ast.Module
    author: str

    @functools.cached_property
    def source_map(self) -> SourceMap:
        """From places of `text` to places of the author's text."""
        return SourceMap(self.tree, self.text, self.author)


@dataclass(frozen=True)
class ParsedCode:
    """An accepted source. `names` are the parameters of `main`, sorted; `reads` those that occur in it."""

    src: str
    names: tuple[str, ...]
    reads: frozenset[str]
    fresh: bool

    def render(self, reading: Reading, optional: Collection[str]) -> Rendered:
        """The source as `def main(<names>)`. `optional` are the names of properties that may be absent.

        A constant key among them reads as None when it is absent (`x["unit"]` is run as `x.get("unit")`); any other
        key behaves as in Python.
        """
        body = ast.parse(self.src).body
        last = body[-1]
        if isinstance(last, ast.Expr):
            body[-1] = ast.copy_location(ast.Return(value=last.value), last)
        parameters = [ast.arg(arg=name, lineno=1, col_offset=0) for name in self.names]
        arguments = ast.arguments(posonlyargs=[], args=parameters, kwonlyargs=[], kw_defaults=[], defaults=[])
        main = ast.FunctionDef(name=MAIN, args=arguments, body=body, decorator_list=[], lineno=1, col_offset=0)
        module = ast.Module(body=[main], type_ignores=[])
        module = Rewriter(reading, lambda node: _is_optional(node, optional)).visit(module)
        return Rendered(ast.unparse(module), module, self.src)

    def compiled(self, optional: Collection[str]) -> Code:
        return Code(src=self.src, py=self.render("run", optional).text, fresh=self.fresh)


def _is_optional(node: ast.expr, optional: Collection[str]) -> bool:
    return isinstance(node, ast.Subscript) and field_name(node) in optional


def parse_code(src: str, names: Collection[str]) -> ParsedCode:
    """Parses the source of a `code` node over the names of its `with`.

    Raises `ExpressionRefused` with every problem of the source (all EXPR-SYNTAX).
    """
    try:
        module = ast.parse(src)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ExpressionRefused([source_not_python(src, error)]) from None
    if depth([module], MAX_DEPTH) > MAX_DEPTH:
        message = f"the source is nested deeper than {MAX_DEPTH} levels; split it into functions"
        raise ExpressionRefused([Problem("EXPR-SYNTAX", message)])
    nodes = list(ast.walk(module))
    own = frozenset(names) | _bound(nodes)
    problems = list(_problems(src, module, nodes, own))
    if problems:
        raise ExpressionRefused(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return ParsedCode(
        src=src, names=tuple(sorted(names)), reads=frozenset(used & set(names)), fresh=_is_fresh(nodes, own)
    )


def author_line(code: Code, line: int) -> int | None:
    """The line of the author's source whose statement runs at `line` of `code.py`."""
    generated = [node for node in ast.walk(ast.parse(code.py)) if isinstance(node, ast.stmt)][1:]
    author = [node for node in ast.walk(ast.parse(code.src)) if isinstance(node, ast.stmt)]
    before = [
        (mine.lineno, theirs.lineno) for mine, theirs in zip(generated, author, strict=False) if mine.lineno <= line
    ]
    return max(before)[1] if before else None


def _problems(src: str, module: ast.Module, nodes: Sequence[ast.AST], own: Collection[str]) -> Iterator[Problem]:
    """What a source may not do; `own` are the names that it is given or binds itself."""
    columns = Columns(src)
    found = [(node, message) for node in nodes for message in _messages(node, own)]
    found += _top_level(module)
    unformatted = refused_format(nodes)
    if unformatted is not None:
        found.append((unformatted, "braces inside a format specification are not supported; write str.format"))
    for node, message in found:
        line = getattr(node, "lineno", 1)
        column = columns.characters(line, getattr(node, "col_offset", 0)) + 1
        yield Problem("EXPR-SYNTAX", message, line, column)


def _messages(node: ast.AST, own: Collection[str]) -> Iterator[str]:
    if type(node) in _REFUSED:
        yield _REFUSED[type(node)]
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield from _module_message(alias.name)
    elif isinstance(node, ast.ImportFrom):
        yield from _module_message("." * node.level + (node.module or ""))
        if any(alias.name == "*" for alias in node.names):
            yield "import * hides names; import them one by one"
    elif isinstance(node, ast.Name):
        if node.id in CODE_REFUSED and node.id not in own:
            yield f"{node.id} is not available in code; its inputs are the names of with"
        elif node.id.startswith("__") and node.id not in _DUNDERS:
            yield f"{node.id} is not available in code; choose another name"
    elif isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr not in _DUNDERS:
        yield f"{node.attr} is not available in code; remove it"


def _module_message(name: str) -> Iterator[str]:
    if name.split(".")[0] not in MODULES:
        yield f"the module {name} is not available in code; there are {', '.join(sorted(MODULES))}"


def _top_level(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """What only the outermost scope may not hold, and what its last statement must be."""
    pending: list[ast.AST] = list(module.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            yield node, "return stands outside a function; the last line is the result, write the value there"
        elif isinstance(node, ast.Nonlocal):
            yield node, "nonlocal has no meaning outside a function; remove it"
        if not isinstance(node, _SCOPES):
            pending.extend(ast.iter_child_nodes(node))
    last = module.body[-1] if module.body else module
    if not isinstance(last, ast.Expr | ast.Return):
        yield last, "the last statement is the result and must be an expression; write the value as last line"


def _bound(nodes: Sequence[ast.AST]) -> frozenset[str]:
    """All names that a source binds itself, in any scope."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
    return frozenset(names)


def _is_fresh(nodes: Sequence[ast.AST], own: Collection[str]) -> bool:
    for node in nodes:
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] in FRESH_MODULES for a in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FRESH_MODULES:
            return True
        if isinstance(node, ast.Attribute) and node.attr in FRESH_ATTRIBUTES:
            return True
        if isinstance(node, ast.Name) and node.id in FRESH_BUILTINS and node.id not in own:
            return True
    return False

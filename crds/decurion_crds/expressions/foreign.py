"""What people write who know other languages, and what to write instead; and what is wrong with a text that is no
Python, with a remedy.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection

from decurion_crds.expressions.errors import Problem
from decurion_crds.findings import Fix, did_you_mean

NAMES = {"true": "True", "false": "False", "null": "None", "undefined": "None", "nil": "None"}
NO_VALUES = {
    "NaN": "JSON has no such number; write None",
    "Infinity": "JSON has no such number; write None",
    "AND": "write `and` for AND, between two values",
    "OR": "write `or` for OR, between two values",
    "NOT": "write `not` for NOT, in front of a value",
    "print": "nothing is printed here; write the value itself",
}
"""Names that stand for nothing here, with a remedy that is no other name."""

_STATEMENT = "a statement stands where an expression is due"
_SIGNS = (
    (r"\$", "write the name alone, as in input.rows"),
    (r"\{\{|\}\}", "expressions stand here without braces; leave {{ }} away"),
    (r"`", "write a text in quotes, and a name without any"),
    (r"&&", "write `and` for &&"),
    (r"\|\|", "write `or` for ||"),
    (r"===", "write == for ==="),
    (r"!==", "write != for !=="),
    (r"=>", "write `lambda x: …` for =>"),
    (r"->", "write `lambda x: …` for ->"),
    (r"<>", "write != for <>"),
    (r"\+\+|--", "nothing is changed in place here; write … + 1"),
    (r"\?\.", "write `a.b if a is not None else …` for a?.b"),
    (r"\?", "write `a if condition else b` for condition ? a : b"),
    (r"![^=]", "write `not` for !"),
    (r"\b(contains|includes)\b", "write `x in list` for list contains x"),
    (r"^\.|[\s([,]\.", "a field is read of a name, as in input.rows"),
    (r":=", "nothing is assigned here; write the value itself"),
)
"""Signs that Python has not, or not there, with what to write; the first that a text has is told."""
_WORDS = (
    (r"'(.)' was never closed", "close it"),
    (r"unterminated .*", "close the quotes"),
    (r"unmatched '(.)'", "remove it, or open it before"),
    (r"closing parenthesis .*", "close them in the order in which they were opened"),
    (r"f-string: .*", "look at the braces in the text"),
    (r"expected 'else' .*", "write what holds otherwise, as in a if condition else b"),
    (r".*(indent|unindent).*", "indent all lines of one block alike"),
    (r"expected ':'", "put a : at the end of that line"),
)
"""Messages of Python that say what is wrong, and no remedy."""
_LOGIC = {"&&": "and", "||": "or", "AND": "and", "OR": "or", "NOT": "not"}
_LOGICAL = re.compile(r"&&|\|\||\b(?:AND|OR|NOT)\b")
_FIELD = re.compile(r"\.\s*([a-z]+)\b")
_TEXTS = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")


def suggested(word: str, known: Collection[str]) -> str | None:
    """What an unknown name was probably meant to be."""
    return NAMES.get(word) or did_you_mean(word, known)


def not_python(text: str, error: Exception, shift: int = 0) -> Problem:
    """What to say of an expression that does not parse. The first line stood `shift` characters further on."""
    line, column, message = _told(text, error, shift)
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        logical = _logical(text)
        if logical is not None:
            at, hint, fix = logical
            return Problem("EXPR-SYNTAX", f"{message}; {hint}", *at, fix)
        return Problem("EXPR-SYNTAX", f"{message}; {_remedy(text, message)}", line, column)
    hint = "write a value, or use a code node"
    if not body:
        hint = "# begins a comment, so nothing is left of it; write a value"
    elif isinstance(body[0], ast.Assign):
        hint = "write == to compare, or the value alone"
    return Problem("EXPR-SYNTAX", f"{_STATEMENT}; {hint}", line, column)


def source_not_python(source: str, error: Exception) -> Problem:
    """What to say of a source of `code` that does not parse."""
    line, column, message = _told(source, error, 0)
    lines = source.split("\n")
    there = lines[line - 1] if line <= len(lines) else ""
    instead = next((new for old, new in _LOGIC.items() if old in _bare(there)), None)
    remedy = f"write `{instead}`" if instead else _remedy(there, message, "look at this line and the one above")
    return Problem("EXPR-SYNTAX", f"{message}; {remedy}", line, column)


def filtered(node: ast.BinOp, text: str, names: Collection[str]) -> tuple[str, Fix | None] | None:
    """`rows | length`, as templates have it: what to say of it, None where | is the operator of Python."""
    if not isinstance(node.op, ast.BitOr) or not isinstance(node.right, ast.Name) or node.right.id in names:
        return None
    name, left = node.right.id, ast.get_source_segment(text, node.left) or "x"
    method = next((name for kind in (str, list, dict) if hasattr(kind, name)), None)
    call = f"{left}.{method}()" if method else f"{suggested(name, ('len', 'json', 'sorted', 'sum')) or name}({left})"
    return f"| hands nothing on to a filter; write {call}", None


def _told(text: str, error: Exception, shift: int) -> tuple[int, int, str]:
    """Line, column and words of an error of the parser."""
    if not isinstance(error, SyntaxError):
        return 1, 1, "it is nested too deeply"
    line = error.lineno or 1
    # An end of text that comes too early has no offset.
    column = max(1, (error.offset or len(text) + shift + 1) - (shift if line == 1 else 0))
    return line, column, error.msg


def _logical(text: str) -> tuple[tuple[int, int], str, Fix] | None:
    """The first operator of logic that another language has, with its place and what to write."""
    found = _LOGICAL.search(text)
    if found is None or re.search("[\"']", text[: found.start()]) or _reserved(text):
        return None
    instead, before = _LOGIC[found[0]], text[: found.start()]
    spaced = before[-1:].isspace() and text[found.end() :][:1].isspace()
    fix = Fix(found[0], instead if spaced or found[0].isalpha() else f" {instead} ")
    at = before.count("\n") + 1, found.start() - before.rfind("\n")
    return at, f"write `{instead}` for {found[0]}", fix


def _reserved(text: str) -> str | None:
    """A field that has the name of a word of Python."""
    return next((match[1] for match in _FIELD.finditer(text) if keyword.iskeyword(match[1])), None)


def _remedy(text: str, message: str, otherwise: str = "an expression is Python, such as len(input.rows) > 0") -> str:
    word = _reserved(text)
    if word is not None:
        return f'{word} is a word of Python; read that field as ["{word}"]'
    said = next((remedy for pattern, remedy in _WORDS if re.fullmatch(pattern, message)), None)
    return said or next((hint for sign, hint in _SIGNS if re.search(sign, _bare(text))), otherwise)


def _bare(text: str) -> str:
    """The text with nothing in its quotes."""
    return _TEXTS.sub(lambda found: found[0][0] + " " * (len(found[0]) - 2) + found[0][0], text)

"""What the language of expressions, texts and code accepts, refuses, reads and rewrites."""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decurion_crds.expressions.code import author_line, parse_code
from decurion_crds.expressions.errors import ExpressionRefused
from decurion_crds.expressions.syntax import parse_expression, shortest
from decurion_crds.expressions.text import parse_text

NAMES = {"input", "nodes", "state", "x"}


def parsed(src: str):
    return parse_expression(src, NAMES)


def refused(src: str) -> list[tuple[str, int, int]]:
    with pytest.raises(ExpressionRefused) as caught:
        parsed(src)
    return [(problem.code, problem.line, problem.column) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("src", "run", "check"),
    [
        ("input.a", "input.get('a')", "input['a']"),
        ("input . a", "input.get('a')", "input['a']"),
        ("input.a.b[0].c", "_item(input.get('a').get('b'), 0).get('c')", "input['a']['b'][0]['c']"),
        ("input['k-1'].z", "input.get('k-1').get('z')", "input['k-1']['z']"),
        ("input.a.upper()", "input.get('a').upper()", "input['a'].upper()"),
        ("input.items.items()", "input.get('items').items()", "input['items'].items()"),
        ("f'{x.a!r:>{x.w}} {{}}'", "'{!r:>{}} {{}}'.format(x.get('a'), x.get('w'))", None),
        ("f'{x}' 'b'", "'{}b'.format(x)", None),
        ("f'a{{'", "'a{'", "'a{'"),
        ("{'a': x}['a']", "{'a': x}['a']", "{'a': x}['a']"),
        ("(\n  x.a\n)", "x.get('a')", "x['a']"),
        ("x.a\n + x.b", "x.get('a') + x.get('b')", None),
        ("  x.a  ", "x.get('a')", None),
    ],
)
def test_fields_are_rewritten_and_methods_are_not(src: str, run: str, check: str | None) -> None:
    result = parsed(src)
    assert result.expr.py == run
    assert check is None or result.check == check


@pytest.mark.parametrize(
    ("src", "reads"),
    [
        ("1", ()),
        ("input", ("input",)),
        ("input.a.b + input.a", ("input.a",)),
        ("nodes.p.output.items[0].id", ("nodes.p.output.items",)),
        ("[r.id for r in input.rows if r.n > state.min]", ("input.rows", "state.min")),
        ("[x.id for x in x.rows]", ("x.rows",)),
        ("[input.z for r in x.rows for input in r.rows]", ("x.rows",)),
        ("[i for i in x.a for j in input.b]", ("input.b", "x.a")),
        ("sorted(x.rows, key=lambda x: x.id + input.n)", ("input.n", "x.rows")),
        ("sorted(x.rows, key=lambda r, y=x.d: r.id)", ("x.d", "x.rows")),
        ("{k: v.a for k, v in x.items()}", ("x",)),
        ("x.text.upper()", ("x.text",)),
        ("input['a.b'].c", ("input",)),
        ("input['k-1'].c", ("input.k-1.c",)),
        ("len(x.a) if x.a else input.n", ("input.n", "x.a")),
        ("f'{x.a} {input.b:>{input.c}}'", ("input.b", "input.c", "x.a")),
        ("x.a[input.i]['k'].z", ("input.i", "x.a")),
    ],
)
def test_reads_are_the_shortest_paths_outside_what_is_bound(src: str, reads: tuple[str, ...]) -> None:
    assert parsed(src).expr.reads == reads


@pytest.mark.parametrize(
    ("src", "path"),
    [
        ("input", ("input",)),
        ("nodes.p.output.items", ("nodes", "p", "output", "items")),
        ("x['a.b'].c", ("x", "a.b", "c")),
        ("x.a[0]", None),
        ("x.a.upper()", None),
        ("x.a + 1", None),
        ("1", None),
    ],
)
def test_bare_paths_are_found(src: str, path: tuple[str, ...] | None) -> None:
    assert parsed(src).expr.path == path


@pytest.mark.parametrize(
    ("src", "code", "line", "column"),
    [
        ("", "EXPR-SYNTAX", 1, 1),
        ("a +", "EXPR-SYNTAX", 1, 4),
        ("y = 3", "EXPR-SYNTAX", 1, 3),
        ("import os", "EXPR-SYNTAX", 1, 1),
        ("(y := 3)", "EXPR-SYNTAX", 1, 2),
        ("a && b", "EXPR-SYNTAX", 1, 3),
        ("x.__class__", "EXPR-SYNTAX", 1, 1),
        ("x.__len__()", "EXPR-SYNTAX", 1, 1),
        ("__import__('os')", "EXPR-NAME", 1, 1),
        ("sorted(x, key=str.lower)", "EXPR-SYNTAX", 1, 15),
        ("x.rows.append(1)", "EXPR-SYNTAX", 1, 1),
        ("[0 for x['a'] in [1]]", "EXPR-SYNTAX", 1, 8),
        ("[0 for x.a in [1]]", "EXPR-SYNTAX", 1, 8),
        ("lambda: 1", "EXPR-SYNTAX", 1, 1),
        ("[lambda r: r]", "EXPR-SYNTAX", 1, 2),
        ("b'x'", "EXPR-SYNTAX", 1, 1),
        ("1j", "EXPR-SYNTAX", 1, 1),
        ("...", "EXPR-SYNTAX", 1, 1),
        ("x + 9007199254740992", "EXPR-SYNTAX", 1, 5),
        ("'é' + y", "EXPR-NAME", 1, 7),
        ("x.a\n + y.b", "EXPR-NAME", 2, 4),
        ("open('f')", "EXPR-NAME", 1, 1),
        ("[i for i in x async for j in i]", "EXPR-SYNTAX", 1, 25),
        ("await x", "EXPR-SYNTAX", 1, 1),
        ("(yield x)", "EXPR-SYNTAX", 1, 2),
        ("x @ x", "EXPR-SYNTAX", 1, 1),
        ("-" * 4000 + "1", "EXPR-SYNTAX", 1, 1),
        ("(" * 250 + "1" + ")" * 250, "EXPR-SYNTAX", 1, None),
        ("+".join("1" * 300), "EXPR-SYNTAX", 1, 1),
        ("x\0", "EXPR-SYNTAX", 1, None),
    ],
)
def test_what_the_language_does_not_have_is_refused_at_its_place(
    src: str, code: str, line: int, column: int | None
) -> None:
    [(found, at_line, at_column)] = refused(src)
    assert found == code
    assert at_line == line
    assert column is None or at_column == column


def test_every_problem_of_an_expression_is_found_at_once() -> None:
    assert refused("y.a + x.__dict__ + z") == [
        ("EXPR-NAME", 1, 1),
        ("EXPR-SYNTAX", 1, 7),
        ("EXPR-NAME", 1, 20),
    ]


@pytest.mark.parametrize(
    ("src", "new"), [("inputt.a", "input"), ("true", "True"), ("null", "None"), ("lenn(x)", "len")]
)
def test_an_unknown_name_is_told_what_was_meant(src: str, new: str) -> None:
    with pytest.raises(ExpressionRefused) as caught:
        parsed(src)
    [problem] = caught.value.problems
    assert problem.fix is not None
    assert problem.fix.new == new


@pytest.mark.parametrize(
    ("src", "words"),
    [
        ("x.class + 1", 'read that field as ["class"]'),
        ("x ? 1 : 2", "a if condition else b"),
        ("x && x", "`and`"),
        ("x = 2", "a statement stands where an expression is due"),
        ("y + 1", "visible here: input, nodes, state, x"),
    ],
)
def test_a_refusal_says_what_to_write(src: str, words: str) -> None:
    with pytest.raises(ExpressionRefused, match=re.escape(words)):
        parsed(src)


def test_a_name_goes_before_a_builtin_of_the_same_name() -> None:
    assert parse_expression("len(id)", {"id"}).expr.reads == ("id",)
    assert parse_expression("sum.total", {"sum"}).expr.path == ("sum", "total")


IDENTIFIERS = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True).filter(
    lambda name: name not in {"if", "in", "is", "or", "as", "def", "del", "for", "not", "and", "try", "with", "from"}
)
ROOTS = st.sampled_from(sorted(NAMES))


@st.composite
def expressions(draw: st.DrawFn, depth: int = 0) -> tuple[str, set[tuple[str, ...]]]:
    """An expression as text, and the paths it reads."""
    kind = draw(st.sampled_from(["path", "const"] if depth > 3 else ["path", "binary", "list", "call", "comp", "if"]))
    if kind == "const":
        return repr(draw(st.one_of(st.integers(-99, 99), st.text(max_size=5)))), set()
    if kind == "path":
        path = (draw(ROOTS), *draw(st.lists(IDENTIFIERS, max_size=3)))
        return ".".join(path), {path}
    first, reads = draw(expressions(depth=depth + 1))
    second, more = draw(expressions(depth=depth + 1))
    if kind == "binary":
        return f"({first} + {second})", reads | more
    if kind == "list":
        return f"[{first}, {{'k': {second}}}]", reads | more
    if kind == "call":
        return f"max({first}, key=lambda q: ({second}, q.z))", reads | more
    if kind == "if":
        return f"({first} if {second} else None)", reads | more
    return f"[(q.f, {second}) for q in {first}]", reads | more


@settings(max_examples=40, deadline=None)
@given(expressions())
def test_reads_of_any_expression_are_what_it_was_made_of(made: tuple[str, set[tuple[str, ...]]]) -> None:
    src, reads = made
    result = parsed(src)
    assert result.expr.reads == tuple(".".join(path) for path in shortest(reads))


@settings(max_examples=40, deadline=None)
@given(expressions())
def test_rewriting_keeps_the_structure_and_every_place(made: tuple[str, set[tuple[str, ...]]]) -> None:
    src, _ = made
    result = parsed(src)
    names = [node for node in ast.walk(ast.parse(result.check, mode="eval")) if isinstance(node, ast.Name)]
    author = src.encode()
    for node in names:
        line, column = result.source_map.place(1, len(result.check.encode()[: node.col_offset].decode()) + 1)
        assert line == 1
        written = "max" if node.id == "sorted" else node.id
        assert author.decode()[column - 1 :].startswith(written)


@settings(max_examples=40, deadline=None)
@given(expressions())
def test_rewriting_is_a_fixed_point_of_formatting(made: tuple[str, set[tuple[str, ...]]]) -> None:
    src, _ = made
    spaced = ast.unparse(ast.parse(src, mode="eval"))
    assert parsed(src).expr.py == parsed(spaced).expr.py


@given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple), max_size=8))
def test_shortest_paths_cover_all_and_never_one_another(paths: set[tuple[str, ...]]) -> None:
    kept = shortest(paths)
    assert all(any(path[: len(k)] == k for k in kept) for path in paths)
    assert not any(a != b and b[: len(a)] == a for a in kept for b in kept)


@pytest.mark.parametrize(
    ("src", "parts"),
    [
        ("plain", ["plain"]),
        ("", []),
        ("a {{ x }} b", ["a ", "x", " b"]),
        ("{{x}}{{ input.a }}", ["x", "input.get('a')"]),
        ("{{ {'a': {'b': 1}} }}", ["{'a': {'b': 1}}"]),
        ("{{ '}}' }}", ["'}}'"]),
        ("{{x}}}", ["x", "}"]),
        ('{{ "{{" }}', ["'{{'"]),
        ("don't {{ x.y }} don't", ["don't ", "x.get('y')", " don't"]),
        ("{{ '''}}''' + x }}", ["'}}' + x"]),
        ("{{ x\n  .y }}", ["x.get('y')"]),
    ],
)
def test_texts_are_split_where_an_expression_ends(src: str, parts: list[str]) -> None:
    text = parse_text(src, NAMES).text
    assert [part if isinstance(part, str) else part.py for part in text.parts] == parts


def test_problems_of_a_text_are_placed_in_the_text() -> None:
    with pytest.raises(ExpressionRefused) as caught:
        parse_text("a {{ nope }}\n  {{ x.b ? }} {{ x", NAMES)
    assert [(p.code, p.line, p.column) for p in caught.value.problems] == [
        ("EXPR-NAME", 1, 6),
        ("EXPR-SYNTAX", 2, 10),
        ("EXPR-SYNTAX", 2, 15),
    ]


def test_code_becomes_one_function_that_returns_the_last_expression() -> None:
    code = parse_code('a = [f for f in facts if f["value"]]\nlen(a)\n', ["n", "facts"])
    assert code.compiled(()).py == ("def main(facts, n):\n    a = [f for f in facts if f['value']]\n    return len(a)")
    assert code.names == ("facts", "n")
    assert code.reads == {"facts"}


def test_code_reads_optional_properties_as_none_and_leaves_other_keys_alone() -> None:
    source = 'd["unit"] = 1\nd["unit"] += 1\n[d["unit"], d["value"], d.unit]'
    text = parse_code(source, ["d"]).compiled({"unit"}).py
    assert text.splitlines()[1:] == [
        "    d['unit'] = 1",
        "    d['unit'] += 1",
        "    return [d.get('unit'), d['value'], d.unit]",
    ]


def test_multi_line_strings_of_code_keep_their_text() -> None:
    text = parse_code('s = """a\n   b\n"""\ns', []).compiled(()).py
    scope: dict[str, object] = {}
    exec(text, scope)
    assert scope["main"]() == "a\n   b\n"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("src", "line"),
    [
        ("", 1),
        ("y = 1", 1),
        ("y = 1\nif y:\n    y", 2),
        ("import os\n1", 1),
        ("from math import *\n1", 1),
        ("from . import a\n1", 1),
        ("open('f')", 1),
        ("eval('1')", 1),
        ("main()", 1),
        ("return 1\n2", 1),
        ("global y\n1", 1),
        ("def f():\n    global y\n    return 1\nf()", 2),
        ("nonlocal y\n1", 1),
        ("x.__class__", 1),
        ("def f():\n    yield 1\nlist(f())", 2),
        ("async def f():\n    pass\n1", 1),
        ("del x\n1", 1),
        ("x +", 1),
        ("-" * 4000 + "1", 1),
    ],
)
def test_what_code_may_not_do_is_refused(src: str, line: int) -> None:
    with pytest.raises(ExpressionRefused) as caught:
        parse_code(src, ["x"])
    assert caught.value.problems[0].code == "EXPR-SYNTAX"
    assert caught.value.problems[0].line == line


def test_nested_functions_of_code_may_return_and_bind_freely() -> None:
    source = "def f(n):\n    t = 0\n    def g():\n        nonlocal t\n        t = n\n    g()\n    return t\nf(x)"
    assert parse_code(source, ["x"]).fresh is False


@pytest.mark.parametrize(
    ("src", "fresh"),
    [
        ("1", False),
        ("import random\nrandom.random()", True),
        ("from time import time\ntime()", True),
        ("from datetime import datetime\ndatetime.now().isoformat()", True),
        ("from datetime import date\ndate.fromisoformat(x).isoformat()", False),
        ("id(x)", True),
        ("hash(x)", True),
        ("id = 3\nid", False),
        ("import re\nlen(re.findall('a', x))", False),
    ],
)
def test_use_of_clock_or_randomness_is_seen(src: str, fresh: bool) -> None:
    assert parse_code(src, ["x"]).compiled(()).fresh is fresh


def test_lines_of_the_function_lead_back_to_the_source() -> None:
    source = "# first\n\nx = [\n    1,\n]\n\nif x:\n    y = 2\n\ny"
    code = parse_code(source, []).compiled(())
    lines = code.py.splitlines()
    found = {text.strip(): author_line(code, n) for n, text in enumerate(lines, 1)}
    assert found["x = [1]"] == 3
    assert found["y = 2"] == 8
    assert found["return y"] == 10

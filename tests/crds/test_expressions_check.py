"""What the type checker says of expressions and code, in our words and at the author's place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decurion_crds.compiled import Schema
from decurion_crds.expressions import parse_code, parse_expression
from decurion_crds.expressions.check import Checker, CheckFailed, Task
from decurion_crds.expressions.enums import probe, strangers
from decurion_crds.expressions.errors import Problem
from decurion_crds.expressions.shapes import mismatch, words
from decurion_crds.expressions.types import NotJson, Types, Undeclared
from decurion_crds.expressions.wording import Context, problems
from decurion_crds.expressions.words import BUILTINS, MODULES

S: Schema = {"type": "string"}
INT: Schema = {"type": "integer"}
N: Schema = {"type": "number"}
B: Schema = {"type": "boolean"}
OPTIONAL: Schema = {"type": ["string", "null"]}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def record(title: str, **properties: Schema) -> Schema:
    required = [name for name in properties if not name.endswith("_")]
    return {
        "title": title,
        "type": "object",
        "properties": {name.removesuffix("_"): schema for name, schema in properties.items()},
        "required": required,
    }


REPORT = record(
    "Report", id=S, text=S, pages=INT, score=N, kind={"enum": ["10-K", "10-Q"]}, note=OPTIONAL, tags=array(array(S))
)
REPORT["properties"]["k-1"] = INT
REPORT["required"].append("k-1")
ROW = record("Row", id=S, value=N, unit_=OPTIONAL)
INPUT = record("input", reports=array(REPORT), n=INT, open={"type": "object"}, maybe_=array(ROW))
STATE = record("state", rows=array(ROW))


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def checked(checker: Checker, src: str, due: Schema) -> list[Problem]:
    types = Types()
    names = {"input": types.annotation(INPUT, "input"), "state": types.annotation(STATE, "state")}
    parsed = parse_expression(src, names)
    returns = types.annotation(due, "due")
    [answer] = checker.check([Task(parsed.check, names, returns)], types.definitions())
    return problems(answer, Context(types, parsed, parsed.check, due=due, names=tuple(names)))


def inferred(checker: Checker, src: str, *, dicts: bool = False) -> Schema | Undeclared | NotJson:
    types = Types()
    names = {"input": types.annotation(INPUT, "input"), "state": types.annotation(STATE, "state")}
    [answer] = checker.check([Task(parse_expression(src, names).check, names)], types.definitions())
    assert not answer.diagnostics
    return types.schema_of(answer.revealed[0], dicts=dicts)


@pytest.mark.parametrize(
    ("src", "due"),
    [
        ("len(input.reports)", INT),
        ("[{'id': r.id, 'value': r.score} for r in input.reports]", array(ROW)),
        ("[r for r in state.rows if r.value > 3] + [{'id': 'x', 'value': 1}]", array(ROW)),
        ("input.reports[0].note or 'none'", S),
        ("input.reports[0].note.upper() if input.reports[0].note else ''", S),
        ("state.rows[0].unit", OPTIONAL),
        ("input.n > 3.5 and input.n in [1, 2]", B),
        ("sum(r.score for r in input.reports)", N),
        ("sorted(state.rows, key=lambda r: r.value)[:10]", array(ROW)),
        ("{r.id: r.pages for r in input.reports}", {"type": "object", "additionalProperties": INT}),
        ("max((r.score for r in input.reports), default=0.0)", N),
        ("max(input.reports, key=lambda r: r.score).id", S),
        ("str(max(input.reports, key=lambda r: r.score))", S),
        ("json(min(state.rows, key=lambda r: r.value, default=None))", S),
        ("input.open.x.y", INT),
        ("input.reports[0]['k-1'] + 1", INT),
        ("[t for r in input.reports for g in r.tags for t in g]", array(S)),
        ("', '.join(r.id for r in input.reports)", S),
        ("state.rows[0] if state.rows else {'id': 'none', 'value': 0.0}", ROW),
        ("None if input.n else 'a'", OPTIONAL),
        ("f'{input.n} of {len(state.rows)}'", S),
        ("[r.unit.upper() for r in state.rows if r.unit]", array(S)),
        ("[r.unit.upper() for r in state.rows if r.unit is not None]", array(S)),
        ("len(input.maybe or [])", INT),
        ("(input.maybe or []) + state.rows", array(ROW)),
        ("{**state.rows[0], 'value': 2}", ROW),
        ("date('2024-01-01').year", INT),
        ("parse_json('[]')", array(ROW)),
        ("truncate(input.reports[0].text, 10)", S),
        ("(1, 2)", array(INT)),
        ("input.n", N),
    ],
)
def test_what_is_right_is_accepted(checker: Checker, src: str, due: Schema) -> None:
    assert checked(checker, src, due) == []


@pytest.mark.parametrize(
    ("src", "due", "code", "column", "said"),
    [
        ("[r.idd for r in input.reports]", array(S), "EXPR-FIELD", 4, 'Report has no field "idd"; did you mean "id"?'),
        ("input.staet", INT, "EXPR-FIELD", 7, 'input has no field "staet"; it has reports, n, open and maybe'),
        ("[{'id': r.id, 'valu': r.score} for r in input.reports]", array(ROW), "EXPR-TYPE", 15, 'no field "valu"'),
        (
            "[{'id': r.id, 'value': r.text} for r in input.reports]",
            array(ROW),
            "EXPR-TYPE",
            24,
            "number, and this is a st",
        ),
        ("[{'id': r.id} for r in input.reports]", array(ROW), "EXPR-TYPE", 2, 'the field "value" of Row is missing'),
        ("input.reports[0].note", S, "EXPR-NONE", 1, "input.reports[0].note may be None here"),
        ("input.reports[0].note.upper()", S, "EXPR-NONE", 1, "input.reports[0].note may be None here"),
        ("state.rows[0].unit.upper()", S, "EXPR-NONE", 1, "state.rows[0].unit may be None here"),
        ("state.rows[0].unit + 'x'", S, "EXPR-NONE", 1, "state.rows[0].unit may be None here"),
        ("'x' + state.rows[0].unit", S, "EXPR-NONE", 1, "state.rows[0].unit may be None here"),
        ("'a' in state.rows[0].unit", B, "EXPR-NONE", 1, "state.rows[0].unit may be None here"),
        ("len(state.rows[0].unit)", INT, "EXPR-NONE", 5, "state.rows[0].unit may be None here"),
        ("[c for c in input.maybe]", array(ROW), "EXPR-NONE", 13, "input.maybe may be None here"),
        ("None.x", S, "EXPR-NONE", 1, "None has no fields and cannot be computed with; write the value that is meant"),
        ("input.maybe[0].id", S, "EXPR-NONE", 1, "input.maybe may be None here"),
        ("[r for r in state.rows if r.unit > 'a']", array(ROW), "EXPR-NONE", 27, "r.unit may be None here"),
        ("next((r for r in state.rows if r.id == 'a'), None).id", S, "EXPR-NONE", 1, "may be None here"),
        ("input.n / 2", INT, "EXPR-TYPE", 1, "number where integer is due"),
        ("{'summary': 'a', 'rows': state.rows}", STATE, "EXPR-TYPE", 2, 'state has no field "summary"; it has rows'),
        ("input.reports.lenght()", INT, "EXPR-FIELD", 1, "a list of Report has no method lenght"),
        ("input.reports[0].text.uper()", S, "EXPR-FIELD", 1, "did you mean upper?"),
        ("input.reports.id", S, "EXPR-FIELD", 1, "read the field of its items: [x.id for x in input.reports]"),
        ("input.n.x", S, "EXPR-FIELD", 1, "input.n is an integer, which has no fields"),
        ("input.n + 'a'", INT, "EXPR-TYPE", 1, '+ cannot be used on an integer and "a"'),
        ("len(input.n)", INT, "EXPR-TYPE", 5, "len() does not take an integer"),
        ("[r for r in input.n]", array(INT), "EXPR-TYPE", 13, "input.n is an integer, which has no items"),
        ("input.n(3)", INT, "EXPR-FIELD", 1, "n is a field and no method"),
        ("sum(r.unit for r in state.rows)", N, "EXPR-TYPE", 1, "sum() does not take these values"),
        ("max(input.reports, key=lambda r: r.sscore).id", S, "EXPR-FIELD", 36, 'did you mean "score"?'),
        ("input.reports", array(ROW), "EXPR-TYPE", 1, "[].value: missing"),
        ("{1}", array(INT), "EXPR-TYPE", 1, "write sorted(…)"),
        ("'é' + input.reports[0].idd", S, "EXPR-FIELD", 24, 'did you mean "id"?'),
        ("len()", INT, "EXPR-TYPE", 1, "No argument provided"),
    ],
)
def test_what_is_wrong_is_told_once_in_the_words_of_the_schema(
    checker: Checker, src: str, due: Schema, code: str, column: int, said: str
) -> None:
    [problem] = checked(checker, src, due)
    assert (problem.code, problem.column) == (code, column)
    assert said in problem.message


def test_causes_that_do_not_touch_are_all_told(checker: Checker) -> None:
    found = checked(checker, "{'id': input.n, 'value': state.rows[0].valeu}", ROW)
    assert [(problem.code, problem.column) for problem in found] == [("EXPR-TYPE", 8), ("EXPR-FIELD", 40)]


def test_a_mistyped_key_comes_with_its_fix(checker: Checker) -> None:
    [problem] = checked(checker, "[r.idd for r in input.reports]", array(S))
    assert problem.fix is not None
    assert (problem.fix.old, problem.fix.new) == ("idd", "id")


@pytest.mark.parametrize(
    ("src", "schema"),
    [
        ("input.n + 1", INT),
        ("sum(r.score for r in input.reports)", N),
        ("sum(r.value for r in state.rows if r.value)", N),
        ("[r for r in input.reports if r.note]", array(REPORT)),
        ("[r.kind for r in input.reports]", array({"type": "string", "enum": ["10-K", "10-Q"]})),
        ("input.maybe or []", array(ROW)),
        ("state.rows[0].unit", {"anyOf": [{"type": "null"}, S]}),
        ("'a' if input.n else 'b'", {"type": "string", "enum": ["a", "b"]}),
        ("-1", INT),
        ("input.n > 1", B),
        ("date('a')", None),
        ("[]", Undeclared("list[Unknown]")),
        ("{'a': 1, 'b': 'x'}", Undeclared("dict[str, int | str]")),
        ("[{'a': r.id} for r in input.reports]", Undeclared("list[dict[str, str]]")),
        ("input.open.x", Undeclared("Any")),
        ("{1}", NotJson("set[int]", "sorted(…)")),
        ("(r for r in state.rows)", None),
        ("zip([1], [2])", NotJson("zip[tuple[int, int]]", "list(…)")),
    ],
)
def test_types_are_inferred_where_that_is_sound(checker: Checker, src: str, schema: object) -> None:
    found = inferred(checker, src)
    if schema is not None:
        assert found == schema
    elif src.startswith("date"):
        assert isinstance(found, dict)
        assert words(found) == "Date"
    else:
        assert isinstance(found, NotJson)


def test_a_dict_made_by_comprehension_may_be_relied_on(checker: Checker) -> None:
    found = inferred(checker, "{r.id: r for r in state.rows}", dicts=True)
    assert found == {"type": "object", "additionalProperties": ROW}


FACT = record("Fact", field=S, value={"type": ["number", "null"]}, unit=S, period_=S)
OUT = record("Out", ok=INT, bad=array(FACT))


def code_problems(checker: Checker, source: str) -> list[Problem]:
    types = Types()
    names = {"facts": types.annotation(array(FACT), "facts"), "text": "str"}
    rendered = parse_code(source, names).render("check", ())
    returns = types.annotation(OUT, "out")
    [answer] = checker.check([Task(rendered.text, names, returns, is_code=True)], types.definitions())
    context = Context(types, rendered, rendered.text, "OUTPUT-TYPE", OUT, tuple(names), is_code=True)
    return problems(answer, context)


@pytest.mark.parametrize(
    "source",
    [
        'bad = [f for f in facts if f["value"] is None]\n{"ok": len(facts) - len(bad), "bad": bad}',
        'rows = []\nfor f in facts:\n    rows.append({"field": f["field"], "value": 1.0, "unit": "x"})\n'
        '{"ok": 1, "bad": rows}',
        'row = {"field": "a"}\nrow["value"] = 1.0\nrow["unit"] = "x"\n{"ok": 1, "bad": [row]}',
        'out = {"ok": 0, "bad": []}\nfor f in facts:\n    out["ok"] += 1\n    out["bad"].append(f)\nout',
        'import re\nm = re.search(r"\\d+", text)\n{"ok": int(m.group(0)) if m else 0, "bad": []}',
        'from collections import Counter\nc = Counter(f["unit"] for f in facts)\n{"ok": c["USD"], "bad": facts}',
        'state = None\nfor i, l in enumerate(text.split()):\n    state = {"n": i, "l": l}\n'
        'if state:\n    state["n"] + 1\n{"ok": 1, "bad": []}',
        'r = dict(facts[0])\nr["value"] = 3\n{"ok": 1, "bad": [r]}',
        'rest = {"bad": facts}\n{"ok": 1} | rest',
        'def total(rows: list[Fact]) -> float:\n    return sum(r["value"] or 0 for r in rows)\n'
        '{"ok": round(total(facts)), "bad": []}',
    ],
)
def test_ordinary_code_is_accepted(checker: Checker, source: str) -> None:
    assert code_problems(checker, source) == []


@pytest.mark.parametrize(
    ("source", "code", "line", "column", "said"),
    [
        ('{"ok": "a", "bad": []}', "OUTPUT-TYPE", 1, 8, 'the field "ok" is an integer, and this is "a"'),
        ('{"ok": 1}', "OUTPUT-TYPE", 1, 1, 'the field "bad" of Out is missing'),
        ('x = 1\n\n{"ok": x,\n "bda": []}', "OUTPUT-TYPE", 4, 2, 'did you mean "bad"?'),
        ('{"ok": 1, "bad": [facts[0]["value"]]}', "OUTPUT-TYPE", 1, 18, 'the field "bad" is a list of Fact'),
        ("3", "OUTPUT-TYPE", 1, 1, "integer where Out is due"),
        ('x = facts[0]["feild"]\n{"ok": 1, "bad": []}', "EXPR-FIELD", 1, 14, 'did you mean "field"?'),
        (
            '# one\nx = facts[0]["period"].upper()\n{"ok": 1, "bad": []}',
            "EXPR-NONE",
            2,
            5,
            'facts[0]["period"] may be None',
        ),
        ('import re\nre.search("a", text).group(0)\n{"ok": 1, "bad": []}', "EXPR-NONE", 2, 1, "may be None"),
        (
            'x = facts[0].field\n{"ok": 1, "bad": []}',
            "EXPR-FIELD",
            1,
            5,
            'in code a field is read as facts[0]["field"]',
        ),
        ('{"ok": len(fcts), "bad": []}', "EXPR-NAME", 1, 12, "did you mean facts?"),
    ],
)
def test_what_is_wrong_in_code_is_told_at_its_line(
    checker: Checker, source: str, code: str, line: int, column: int, said: str
) -> None:
    [problem] = code_problems(checker, source)
    assert (problem.code, problem.line, problem.column) == (code, line, column)
    assert said in problem.message


@pytest.mark.parametrize(
    ("src", "column"),
    [
        ("input.reports[0].kind == '10-X'", 1),
        ("'10-X' != input.reports[0].kind", 1),
        ("[r.id for r in input.reports if r.kind in ['10-K', '10-X']]", 33),
        ("input.n > 1 and input.reports[0].kind == '10-X'", 17),
        ("input.reports[0].kind == '10-Q' or input.reports[0].kind == '10-X'", 36),
        ("input.reports[0].kind == '10-Q'", None),
        ("input.reports[0].id == '10-X'", None),
        ("(input.reports[0].note or 'x') == 'y'", None),
    ],
)
def test_a_comparison_with_what_is_no_member_is_told(checker: Checker, src: str, column: int | None) -> None:
    types = Types()
    names = {"input": types.annotation(INPUT, "input")}
    parsed = parse_expression(src, names)
    probed = probe(parsed.check, is_code=False)
    assert probed is not None
    [answer] = checker.check([Task(probed.text, names)], types.definitions())
    answer.revealed = answer.revealed[: len(probed.comparisons)]
    found = strangers(probed, answer, parsed)
    assert [problem.column for problem in found] == ([column] if column else [])


def test_texts_that_compare_nothing_have_no_probe() -> None:
    assert probe("input['a'] + 1 > 2", is_code=False) is None


def test_what_the_interpreter_does_not_support_is_found_without_running_it(checker: Checker) -> None:
    assert checker.not_supported("def main():\n    return 1") is None
    assert "yield" in (checker.not_supported("def main():\n    yield 1") or "")


def test_the_checker_runs_nothing_and_forgets_what_it_was_told(checker: Checker) -> None:
    task = Task("1 / 0", {})
    assert checker.check([task], "")[0].revealed == ["float*"]
    assert checker.check([Task("leftover", {})], "")[0].diagnostics[0].rule == "unresolved-reference"


def test_a_worker_that_ends_is_replaced() -> None:
    with Checker() as checker:
        assert checker.check([Task("1", {})], "")[0].revealed == ["Literal[1]"]
        session = checker._session
        assert session is not None
        assert session.worker_pid is not None
        os.kill(session.worker_pid, signal.SIGKILL)
        with pytest.raises(CheckFailed, match="gave no answer"):
            checker.check([Task("1", {})], "")
        assert checker.check([Task("2", {})], "")[0].revealed == ["Literal[2]"]


def test_the_words_of_the_language_are_known_to_the_checker(checker: Checker) -> None:
    answers = checker.check([Task(name, {}) for name in sorted(BUILTINS)], "")
    assert [answer.diagnostics for answer in answers] == [[]] * len(answers)
    modules = [
        Task(f"def main():\n    import {name}\n    return {name}", {}, "object", is_code=True) for name in MODULES
    ]
    assert [answer.diagnostics for answer in checker.check(modules, "")] == [[]] * len(modules)


def test_three_hundred_expressions_are_one_check(checker: Checker) -> None:
    types = Types()
    names = {"input": types.annotation(INPUT, "input")}
    texts = [
        parse_expression(f"[r.id + '{i}' for r in input.reports if r.pages > {i}]", names).check for i in range(300)
    ]
    before = checker.checks
    started = time.perf_counter()
    answers = checker.check([Task(text, names) for text in texts], types.definitions())
    assert checker.checks == before + 1
    assert {tuple(answer.revealed) for answer in answers} == {("list[str]",)}
    assert time.perf_counter() - started < 20


SCALARS = st.sampled_from([S, INT, N, B, OPTIONAL, {"enum": ["a", "b"]}, {"type": "null"}])
SCHEMAS = st.recursive(
    SCALARS,
    lambda below: st.one_of(
        below.map(array),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), below, min_size=1, max_size=3).map(
            lambda fields: {"type": "object", "properties": fields, "required": sorted(fields)[:1]}
        ),
        st.lists(below, min_size=2, max_size=2).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=8,
)


@given(SCHEMAS)
def test_every_schema_fits_itself(schema: Schema) -> None:
    assert mismatch(schema, schema) is None
    assert mismatch(schema, {}) is None
    assert mismatch({}, schema) is None


@given(SCHEMAS)
def test_every_schema_is_a_type_and_comes_back_from_it(schema: Schema) -> None:
    types = Types()
    back = types.schema_of(types.annotation(schema, "root"), dicts=True)
    assert isinstance(back, dict)
    assert mismatch(back, schema) is None
    assert mismatch(schema, back) is None


@pytest.mark.parametrize(
    ("source", "target", "path"),
    [
        (INT, N, None),
        (N, INT, ""),
        (S, OPTIONAL, None),
        (OPTIONAL, S, ""),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, None),
        ({"enum": ["a", "c"]}, {"enum": ["a", "b"]}, ""),
        (S, {"enum": ["a"]}, ""),
        ({"enum": ["a"]}, S, None),
        (record("A", x=INT, y=S), record("B", x=N), None),
        (record("A", x=INT), record("B", x=N, y_=S), None),
        (record("A", x=INT), record("B", x=N, y=S), "y"),
        (record("A", x_=INT), record("B", x=N), "x"),
        (record("A", x=INT, y=S), {**record("B", x=N), "additionalProperties": False}, "y"),
        (array(record("A", x=array(S))), array(record("B", x=array(INT))), "[].x[]"),
        ({"type": "object"}, record("B", x=INT), ""),
        (record("A", x=INT), {"type": "object"}, None),
        ({"allOf": [record("A", x=INT), record("B", y=S)]}, record("C", x=INT, y=S), None),
        ({"oneOf": [S, INT]}, {"type": ["string", "integer"]}, None),
        ({"oneOf": [S, B]}, {"type": ["string", "integer"]}, ""),
    ],
)
def test_one_schema_fits_another_by_structure(source: Schema, target: Schema, path: str | None) -> None:
    found = mismatch(source, target)
    assert (found[0] if found else None) == path

"""Evaluation on real worker processes: values, failures, limits, clock and randomness, many callers, cancelling."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from decurion_crds.compiled import Code, Expr
from decurion_crds.expressions import Evaluator, ExpressionFailed, parse_code, parse_expression, parse_text
from decurion_crds.expressions.words import BUILTINS, CODE_REFUSED, MODULES

NAMES = {"input", "nodes", "x"}
ENV = {
    "input": {"rows": [{"id": "q"}, {"id": "r", "n": 3}], "text": "word", "open": {}},
    "nodes": {"p": {"output": {"k": 1.5}}, "skipped": {"output": None}},
    "x": 3,
}
CLOCK = "2024-05-06T07:08:09Z"


def expr(src: str) -> Expr:
    return parse_expression(src, NAMES).expr


def code(src: str, *names: str, optional: tuple[str, ...] = ()) -> Code:
    return parse_code(src, names).compiled(optional)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def evaluator() -> AsyncIterator[Evaluator]:
    async with Evaluator(1) as opened:
        yield opened


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def value(evaluator: Evaluator, src: str) -> object:
    return (await evaluator.expressions({"e": expr(src)}, ENV))["e"]


async def run(evaluator: Evaluator, source: Code, *, seed: str = "s", clock: str = CLOCK, **inputs: object) -> object:
    return await evaluator.code(source, inputs, seconds=2.0, seed=seed, clock=clock)


async def until_code_runs(evaluator: Evaluator) -> None:
    deadline = time.monotonic() + 20
    while not any(job.session for job in evaluator._running):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("src", "expected"),
    [
        ("input.rows[0].id", "q"),
        ("[r.n for r in input.rows]", [None, 3]),
        ("input.absent", None),
        ("input.absent or 'none'", "none"),
        ("nodes.skipped.output", None),
        ("nodes.skipped.output.k if nodes.skipped.output else 0", 0),
        ("nodes.p.output.k * 2", 3.0),
        ("(1, [2, (3,)])", [1, [2, [3]]]),
        ("f'{x:03d} {input.text!r}'", "003 'word'"),
        ("sorted(input.rows, key=lambda r: r.n or 0)[-1].id", "r"),
        ("json({'b': 1, 'a': 'é'})", '{"a":"é","b":1}'),
        ("parse_json('[1, 2.5]')", [1, 2.5]),
        ("date('2024-03-01').ordinal - date('2024-02-28T10:00:00').ordinal", 2),
        ("date('2024-02-29').year", 2024),
        ("truncate('abcdef', 3) + truncate('abc', 3)", "ab…abc"),
        ("{r.id: len(r) for r in input.rows}", {"q": 1, "r": 2}),
    ],
)
async def test_expressions_give_json(evaluator: Evaluator, src: str, expected: object) -> None:
    found = await value(evaluator, src)
    assert found == expected
    assert repr(found) == repr(expected)


async def test_several_expressions_are_evaluated_together_in_their_order(evaluator: Evaluator) -> None:
    exprs = {"when": expr("len(input.rows) > 1"), "with.rows": expr("input.rows"), "a": expr("x + 1")}
    assert list((await evaluator.expressions(exprs, ENV)).items()) == [
        ("when", True),
        ("with.rows", ENV["input"]["rows"]),
        ("a", 4),
    ]


async def test_a_path_that_one_expression_reads_whole_is_not_cut_for_another(evaluator: Evaluator) -> None:
    exprs = {"a": expr("len(input)"), "b": expr("input.text + ''")}
    assert await evaluator.expressions(exprs, ENV) == {"a": 3, "b": "word"}


@pytest.mark.parametrize(
    ("src", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("input.rows[7]", "IndexError"),
        ("nodes.skipped.output.k", "nodes.skipped.output is None, which has no field k"),
        ("input.text.k", "input.text is a str, which has no field k"),
        ("nodes.skipped.output.k + 1", "reads a field of None"),
        ("{1, 2}", "sorted"),
        ("float('nan')", "nan, which is no JSON number; write one, or None where that may stand"),
        ("float('inf')", "inf"),
        ("10 ** 30", "2\\^53"),
        ("{1: 2}", "keys are strings"),
        ("len", "no JSON value"),
        ("[i for i in range(10 ** 9) if i < 0]", "longer than 1 s"),
        ("'a' * 10 ** 10", "more than 256 MiB"),
    ],
)
async def test_what_fails_says_why_and_which(evaluator: Evaluator, src: str, words: str) -> None:
    with pytest.raises(ExpressionFailed, match=words) as caught:
        await evaluator.expressions({"fine": expr("x"), "bad": expr(src)}, ENV)
    assert caught.value.name == "bad"


async def test_a_failure_or_a_limit_strikes_nobody_else(evaluator: Evaluator) -> None:
    sources = ["x + 1", "1 / 0", "input.rows[9]", "[i for i in range(10 ** 9) if i < 0]", "'a' * 10 ** 10", "x + 2"]
    calls = (value(evaluator, source) for source in sources * 3)
    found = await asyncio.gather(*calls, return_exceptions=True)
    kinds = [4, "ZeroDivisionError", "IndexError", "longer", "256 MiB", 5]
    for outcome, kind in zip(found, kinds * 3, strict=True):
        assert outcome == kind or (isinstance(outcome, ExpressionFailed) and str(kind) in outcome.message)


async def test_thousands_of_callers_at_once_all_get_their_own_value(evaluator: Evaluator) -> None:
    doubled = expr("x + x")
    calls = (evaluator.expressions({"e": doubled}, {"x": i}) for i in range(4000))
    assert [found["e"] for found in await asyncio.gather(*calls)] == [2 * i for i in range(4000)]


async def test_more_groups_and_sources_than_a_session_holds_are_fine(evaluator: Evaluator) -> None:
    sums = [evaluator.expressions({"e": expr(f"x + {i}")}, {"x": 1}) for i in range(600)]
    assert [found["e"] for found in await asyncio.gather(*sums)] == [i + 1 for i in range(600)]
    sources = [run(evaluator, code(f"m + {i}", "m"), m=1) for i in range(300)]
    assert await asyncio.gather(*sources) == [i + 1 for i in range(300)]


async def test_the_event_loop_goes_on_while_an_expression_runs(evaluator: Evaluator) -> None:
    task = asyncio.ensure_future(value(evaluator, "sum(i for i in range(2000000))"))
    turns = 0
    while not task.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert turns > 3


async def test_code_gets_its_inputs_and_returns_json(evaluator: Evaluator) -> None:
    source = code("bad = [f for f in facts if f['value'] is None]\n{'n': len(facts), 'bad': (bad,)}", "facts")
    facts = [{"value": 1}, {"value": None}]
    assert await run(evaluator, source, facts=facts) == {"n": 2, "bad": [[{"value": None}]]}


async def test_code_reads_an_absent_optional_property_as_none(evaluator: Evaluator) -> None:
    source = code("[f['unit'] for f in facts]", "facts", optional=("unit",))
    assert await run(evaluator, source, facts=[{}, {"unit": "USD"}]) == [None, "USD"]


async def test_code_has_our_functions_until_it_imports_over_them(evaluator: Evaluator) -> None:
    assert await run(evaluator, code("json({'a': 1})")) == '{"a":1}'
    assert await run(evaluator, code("import json\njson.dumps({'a': 1})")) == '{"a": 1}'
    assert await run(evaluator, code("json({'a': 2})")) == '{"a":2}'


@pytest.mark.parametrize(
    ("source", "words", "line"),
    [
        ("y = []\ny[0]\n1", "line 2: IndexError", 2),
        ("def f():\n    z = 1\n    return {}['k']\n\n\nf()", "line 3: KeyError: k", 3),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RecursionError", 2),
        ("while True:\n    pass\n1", "longer than 0.5 s", None),
        ("y = 'a' * 10 ** 10\n1", "more than 256 MiB", None),
        ("{3}", "sorted", None),
        ("import decimal\ndecimal.Decimal('1')", "Decimal", None),
        ("from datetime import date\ndate(2024, 1, 1)", "isoformat", None),
        ("assert 1 == 2\n1", "line 1: AssertionError: assert 1 == 2", 1),
    ],
)
async def test_code_that_fails_says_where(evaluator: Evaluator, source: str, words: str, line: int | None) -> None:
    with pytest.raises(ExpressionFailed, match=words) as caught:
        await evaluator.code(code(source), {}, seconds=0.5, seed="s", clock=CLOCK)
    assert words.startswith(("longer", "more")) or caught.value.line == line
    assert await run(evaluator, code("1 + 1")) == 2


async def test_clock_and_randomness_are_those_of_the_call(evaluator: Evaluator) -> None:
    now = code("from datetime import datetime\nimport time\n[datetime.now().isoformat(), time.time()]")
    assert await run(evaluator, now) == ["2024-05-06T07:08:09", 1714979289.0]
    draw = code("import random\n[random.random(), random.randint(0, 10 ** 9)]")
    first = await run(evaluator, draw, seed="a")
    assert await run(evaluator, draw, seed="a") == first
    assert await run(evaluator, draw, seed="b") != first


async def test_sleeping_takes_no_time(evaluator: Evaluator) -> None:
    started = time.monotonic()
    await run(evaluator, code("import time\ntime.sleep(60)\n1"))
    assert time.monotonic() - started < 5


async def test_one_call_of_code_sees_nothing_of_another(evaluator: Evaluator) -> None:
    assert await run(evaluator, code("seen = [1]\nseen.append(2)\nlen(seen)")) == 2
    with pytest.raises(ExpressionFailed, match="NameError"):
        await run(evaluator, code("len(seen)"))


async def test_a_clock_that_is_no_time_is_refused(evaluator: Evaluator) -> None:
    with pytest.raises(ValueError, match="isoformat"):
        await run(evaluator, code("1"), clock="yesterday")


async def test_texts_hold_strings_as_they_are_and_other_values_as_json(evaluator: Evaluator) -> None:
    text = parse_text("{{ input.text }}: {{ input.rows }} {{ x }} {{ x > 1 }} {{ nodes.p.output.k }}", NAMES).text
    assert await evaluator.render(text, ENV) == 'word: [{"id":"q"},{"id":"r","n":3}] 3 true 1.5'


async def test_a_text_with_none_or_a_failure_names_the_expression(evaluator: Evaluator) -> None:
    with pytest.raises(ExpressionFailed, match=r"\{\{ input.absent \}\}: it is None"):
        await evaluator.render(parse_text("a {{ input.absent }}", NAMES).text, ENV)
    with pytest.raises(ExpressionFailed, match=r"\{\{ 1 / 0 \}\}: ZeroDivisionError"):
        await evaluator.render(parse_text("a {{ 1 / 0 }}", NAMES).text, ENV)


async def test_a_cancelled_call_of_code_ends_at_once_and_frees_its_process(evaluator: Evaluator) -> None:
    endless = code("while True:\n    pass\n1")
    task = asyncio.ensure_future(evaluator.code(endless, {}, seconds=60.0, seed="s", clock=CLOCK))
    await until_code_runs(evaluator)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await run(evaluator, code("1 + 1")) == 2
    assert time.monotonic() - started < 20


async def test_closing_fails_what_waits_and_ends_what_runs() -> None:
    endless = code("while True:\n    pass\n1")
    async with Evaluator(1) as closing:
        await run(closing, code("1"))
        tasks = [
            asyncio.ensure_future(closing.code(endless, {}, seconds=60.0, seed="s", clock=CLOCK)) for _ in range(3)
        ]
        await until_code_runs(closing)
        started = time.monotonic()
    assert time.monotonic() - started < 20
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, ExpressionFailed) for outcome in outcomes)
    with pytest.raises(ExpressionFailed, match="closed"):
        await run(closing, code("1"))


async def test_the_words_of_the_language_exist_in_the_interpreter(evaluator: Evaluator) -> None:
    for name in sorted(BUILTINS):
        await run(evaluator, code(f"{name}\n1"))
    for name in sorted(MODULES):
        await run(evaluator, code(f"import {name}\n1"))
    assert not BUILTINS & CODE_REFUSED


async def test_a_result_without_bottom_fails_alone_and_the_next_one_is_evaluated() -> None:
    deep = "def main():\n    x = []\n    for _ in range(100000):\n        x = [x]\n    return x\n"
    one = Code(src="1", py="def main():\n    return 1\n")
    async with Evaluator(processes=1) as evaluator:
        for _ in range(6):
            with pytest.raises(ExpressionFailed, match="nested deeper"):
                await evaluator.code(Code(src="x", py=deep), {}, seconds=5, seed="s", clock=CLOCK)
            assert await evaluator.code(one, {}, seconds=5, seed="s", clock=CLOCK) == 1


async def test_an_evaluation_may_have_a_time_of_its_own(evaluator: Evaluator) -> None:
    slow = parse_expression("len([i for i in range(10_000_000) if i < 0])", set()).expr
    with pytest.raises(ExpressionFailed, match=r"0\.05 s"):
        await evaluator.expressions({"x": slow}, {}, seconds=0.05)
    quick = parse_expression("1 + 1", set()).expr
    assert await evaluator.expressions({"x": quick}, {}) == {"x": 2}
    with pytest.raises(ExpressionFailed, match=r"\b1 s"):
        await evaluator.expressions({"x": parse_expression("len([i for i in range(10**12) if i < 0])", set()).expr}, {})


def _interpreters() -> set[int]:
    """The processes of interpreters that this process has started."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    children = {int(pid) for task in tasks for pid in (task / "children").read_text().split()}
    return {pid for pid in children if b"monty" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in /proc")
async def test_what_an_interpreter_was_to_do_that_is_killed_is_done_by_the_next() -> None:
    before = _interpreters()
    source = code("a + 1", "a")
    async with Evaluator(1) as opened:
        for number in range(2):
            assert await opened.expressions({"n": expr("x + 1")}, ENV) == {"n": 4}
            assert await opened.code(source, {"a": number}, seconds=9.0, seed="s", clock=CLOCK) == number + 1
            killed = _interpreters() - before
            assert killed
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

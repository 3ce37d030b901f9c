"""The grammar of paths: parser and printer are inverse, constructors stay inside it, orders are orders of
texts.
"""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decurion_ledger.errors import BadPath
from decurion_ledger.path import ROOT, LedgerPath, Step, branch_key

names = st.from_regex(r"[a-z][a-zA-Z0-9_]{0,20}", fullmatch=True)
branches = st.one_of(
    st.none(),
    st.integers(0, 10**12 - 1),
    st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
)
rounds = st.builds(Step, names, round=st.integers(1, 10**12 - 1))
calls = st.tuples(st.integers(1, 10**9 - 1), st.integers(1, 10**9 - 1))
in_calls = st.builds(Step, names, call=calls)
steps = st.lists(st.one_of(st.builds(Step, names, branches), rounds, in_calls), max_size=8).map(tuple)
marks = st.sampled_from(["open", "join", "output"])
plain = steps.filter(lambda steps: not steps or steps[-1].call is None)
turns = st.builds(
    lambda steps, name, turn: LedgerPath((*steps, Step(name)), turn=turn),
    steps,
    names,
    st.one_of(calls, st.tuples(st.integers(1, 10**9 - 1), st.none())),
)
paths = st.one_of(st.builds(LedgerPath, steps, marks), st.builds(LedgerPath, plain), turns)


@given(paths)
def test_a_printed_path_parses_to_itself(path: LedgerPath) -> None:
    assert LedgerPath.parse(str(path)) == path


@given(st.one_of(st.text(max_size=40), st.from_regex(r"/[a-c/\[\]!k:0-9open@]{0,24}", fullmatch=True)))
def test_whatever_parses_prints_as_it_was_written(text: str) -> None:
    try:
        path = LedgerPath.parse(text)
    except BadPath:
        return
    assert str(path) == text


@given(paths, paths)
def test_different_paths_have_different_texts(a: LedgerPath, b: LedgerPath) -> None:
    assert (a == b) == (str(a) == str(b))


@given(paths)
def test_ancestors_end_at_the_root_and_are_proper(path: LedgerPath) -> None:
    up = list(path.ancestors())
    assert (up[-1] if up else path) == ROOT
    assert len({str(p) for p in (path, *up)}) == len(up) + 1


def test_constructors_write_the_canonical_text() -> None:
    extract = ROOT.child("extract")
    assert str(ROOT) == "/"
    assert str(ROOT.output) == "/!output"
    assert str(extract.open) == "/extract!open"
    assert str(extract.join) == "/extract!join"
    assert str(extract.branch(17).child("read")) == "/extract[00017]/read"
    assert str(extract.branch(123_456).output) == "/extract[123456]!output"
    assert str(extract.keyed(branch_key("K-1"))) == "/extract[k:50fb226959364617c9d9233e1034e993]"
    assert extract.branch(0).parent == extract
    assert str(extract.nth(3).child("read")) == "/extract@003/read"
    assert str(extract.nth(1234).output) == "/extract@1234!output"
    assert extract.nth(1).parent == extract
    assert extract.open.parent == extract


def test_the_scope_of_a_call_lies_below_the_call() -> None:
    call = LedgerPath.parse("/find#turn-0003.02")
    assert str(call.child("read").child("deep")) == "/find#turn-0003.02/read/deep"
    assert str(call.output) == "/find#turn-0003.02!output"
    assert [str(path) for path in call.child("read").output.ancestors()] == [
        "/find#turn-0003.02/read",
        "/find#turn-0003.02",
        "/find#turn-0003",
        "/find",
        "/",
    ]
    assert call.open.parent == call
    inner = call.child("ask")
    assert LedgerPath.parse("/find#turn-0003.02/ask#turn-0001.01/read").parent == LedgerPath.parse(
        f"{inner}#turn-0001.01"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plan",
        "//",
        "/plan/",
        "/Plan",
        "/plan[1]",
        "/plan[000001]",
        "/plan[00001",
        "/plan[k:9F]",
        "/plan[k:" + "0" * 31 + "]",
        "/plan[00001][00002]",
        "/[00001]",
        "/plan!",
        "/plan!done",
        "/plan@000",
        "/plan@01",
        "/plan@0001",
        "/plan@001@002",
        "/plan[00001]@001",
        "/@001",
        "/plan!open/read",
        "/plan#turn-0001/read",
        "/plan#turn-0001!open",
        "/plan#turn-0001.01#turn-0002",
        "/plan#turn-0001.01[00001]",
        "/plan#turn-0001.1/read",
        "/plan!open#turn-0001",
        "/#turn-0001.01/read",
        "/plan!open!join",
        "/plan\n",
        "/plan[0000١]",
        "/../plan",
        "/" + "a" * 64,
        "/a" * 600,
    ],
)
def test_texts_outside_the_grammar_are_refused(text: str) -> None:
    with pytest.raises(BadPath):
        LedgerPath.parse(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROOT.child("Plan"),
        lambda: ROOT.branch(1),
        lambda: ROOT.nth(1),
        lambda: ROOT.child("a").nth(0),
        lambda: ROOT.child("a").nth(1).nth(2),
        lambda: ROOT.child("a").branch(1).nth(2),
        lambda: ROOT.child("a").nth(1).branch(2),
        lambda: ROOT.child("a").branch(-1),
        lambda: ROOT.child("a").branch(1).branch(2),
        lambda: ROOT.child("a").keyed("xyz"),
        lambda: ROOT.output.child("a"),
        lambda: LedgerPath.parse("/a#turn-0001").child("b"),
        lambda: LedgerPath.parse("/a#turn-0001").output,
        lambda: LedgerPath.parse("/a#turn-0001.01").branch(1),
        lambda: ROOT.child("a").open.join,
        lambda: LedgerPath(tuple(Step("a" * 60) for _ in range(17))).child("b"),
    ],
)
def test_constructors_refuse_what_the_grammar_cannot_say(make) -> None:
    with pytest.raises(BadPath):
        make()


def test_the_refusal_says_what_was_given_and_survives_pickling() -> None:
    with pytest.raises(BadPath, match=r"'/plan\[1\]': the step 'plan\[1\]' is no name") as caught:
        LedgerPath.parse("/plan[1]")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

"""`join: any | quorum` through whole runs: who wins, what becomes of the rest, and that nobody waits for it.

The racer `quick` is decided by the test, once what the others do is under way; what these wait for takes half an hour.
"""

from __future__ import annotations

from typing import Any

import pytest

from crashes import Process, body, cut, new_store, results, sound, until
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record
from decurion_worker.session import RunSession
from manifests import compiled
from test_approvals import answer, frozen
from test_runs import done

HEAD = """
  input: {texts: {type: array, items: {type: string}}}
  state: [{name: seen, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: quick
      approval: {message: "Go on?"}
      writes: {seen: "['quick']"}
"""
TAIL = """
    - name: first
      join: {mode: any}
      after: [quick, slow]
      with: {quick: nodes.quick.output, slow: nodes.slow.output, seen: state.seen}
      transform: {by: "quick.by if quick else 'slow'", seen: seen, slow: slow is None}
    - name: beside
      with: {slow: nodes.slow.output}
      transform: {none: slow is None}
  output: {first: nodes.first.output, none: nodes.beside.output.none, seen: state.seen}
"""
TEMPLATES = """
  templates:
    - name: ask
      input: {text: {type: string}}
      nodes:
        - name: ask
          with: {text: input.text}
          llm: {ref: slow, prompt: "{{ text }}"}
          timeoutSeconds: 3000
      output: {text: nodes.ask.output.text}
    - name: wide
      input: {text: {type: string}}
      nodes:
        - name: all
          map: {items: "['at once', input.text]", as: text, template: ask}
      output: {text: "nodes.all.output.items[0].text"}
    - name: people
      input: {text: {type: string}}
      nodes:
        - name: agree
          approval: {message: "Do you agree?"}
      output: {text: input.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: at once, reply: '{"text": "x"}'}
      - {match: later, reply: '{"text": "y"}', delaySeconds: 1800}
"""
KINDS = {
    "llm": "with: {text: 'input.texts[1]'}\n      llm: {ref: slow, prompt: '{{ text }}'}\n      timeoutSeconds: 3000",
    "graph": "with: {text: 'input.texts[1]'}\n      graph: {template: ask}",
    "a graph that is driven": "with: {text: 'input.texts[1]'}\n      graph: {template: wide}",
    "map": "map: {items: input.texts, as: text, template: ask}",
    "a map that is driven": "map: {items: input.texts, as: text, template: wide}",
    "a map of waits": "map: {items: input.texts, as: text, template: people, concurrency: 1}",
    "loop": (
        "with: {text: 'input.texts[0]'}\n      loop: {template: ask, next: {text: 'input.texts[1]'}, maxIterations: 3, "
        "onExhausted: succeed}"
    ),
    "a loop that is driven": (
        "with: {text: 'input.texts[0]'}\n      loop: {template: wide, next: {text: 'input.texts[1]'}, "
        "maxIterations: 3, onExhausted: succeed}"
    ),
    "approval": "approval: {message: 'And you?'}",
}
GIVEN = {"texts": ["at once", "later"]}
BEGUN = {
    "llm": "",
    "graph": "/slow!open",
    "a graph that is driven": "/slow/all[00000]!output",
    "map": "/slow[00000]!output",
    "a map that is driven": "/slow[00000]/all!join",
    "a map of waits": "/slow[00001]/agree!open",
    "loop": "/slow@001!output",
    "a loop that is driven": "/slow@002/all[00000]!output",
    "approval": "/slow!open",
}
"""What is in the log before `quick` is decided."""


def race(slow: str, tail: str = TAIL) -> CompiledGraph:
    more = "writes: {seen: \"['slow']\"}"
    node = f"    - name: slow\n      {slow}\n      {more}\n"
    return compiled("".join(part.removeprefix("\n") for part in (HEAD, node, tail, TEMPLATES)))


def paths(session: RunSession) -> set[str]:
    return {record for record, _ in session.engine.results.leaves()}


async def decide(session: RunSession) -> None:
    """Approve what `quick` waits for."""
    await until(lambda: session.engine.approvals.at("/quick") is not None, what="the wait of quick")
    asked = session.engine.approvals.at("/quick")
    assert asked is not None
    given = answer(session, request=asked.request, digest=asked.digest)
    assert (await session.answer(given)).accepted


async def begun(session: RunSession, kind: str) -> None:
    """What the slow racer does is under way."""
    if kind == "llm":
        await until(lambda: any(lease.key == "/slow" for lease in session.leases.values()), what="the call")
    else:
        await until(lambda: session.engine.results.__contains__(BEGUN[kind]), what=BEGUN[kind])


async def won(kind: str) -> tuple[RunSession, list[Record], Any]:
    store = new_store()
    async with Process(store) as process:
        process.driver.now = frozen
        session = await process.open(race(KINDS[kind]), GIVEN)
        await begun(session, kind)
        await decide(session)
        await until(session.ended.is_set, what="the end of the run")
    return session, await sound(store), store


@pytest.mark.parametrize("kind", KINDS)
async def test_the_rest_is_given_up_whatever_it_is_and_nobody_waits_for_it(kind: str) -> None:
    session, log, _ = await won(kind)
    assert session.engine.output == {
        "first": {"by": "alice", "seen": ["quick"], "slow": True},
        "none": True,
        "seen": ["quick"],
    }
    phases = {row["name"]: row["phase"] for row in session.projection()["nodes"]}
    assert phases == {"quick": "Succeeded", "slow": "Skipped", "first": "Succeeded", "beside": "Succeeded"}
    (race_won,) = [r for r in log if r.type == "race_won"]
    assert (race_won.path, race_won.envelope["winners"], race_won.envelope["lost"]) == ("/first", ["quick"], ["slow"])
    assert [r.path for r in log if r.type == "skip"] == ["/slow"]
    assert not session.engine.approvals
    assert not [path for path in paths(session) if path.startswith("/slow") and path != "/slow"]


@pytest.mark.parametrize("kind", KINDS)
async def test_cut_off_at_any_record_the_race_ends_in_the_same_state(kind: str) -> None:
    _, whole, blobs = await won(kind)
    for records in range(len(body(whole)) + 1):
        store = await cut(whole, records, blobs=blobs)
        given = any(r.type == "approval_given" for r in body(whole)[:records])
        async with Process(store) as process:
            process.driver.now = frozen
            session = await process.open(None, epoch=1)
            if not given:
                await decide(session)
            await until(session.ended.is_set, what="the end of the run")
        log = await sound(store)
        at = f"cut after {records} records"
        assert session.why == "", at
        assert log[-1].envelope["state"] == whole[-1].envelope["state"], at
        assert [r.type for r in log].count("race_won") == 1, at
        assert results(log)["/slow"] == 1, at


QUORUM = """
  input: {bad: {type: array, items: {type: string}}}
  state: [{name: votes, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
RACERS
    - name: judge
      join: {mode: quorum, count: 2}
      after: [a, b, c]
      with: {a: nodes.a.output, b: nodes.b.output, c: nodes.c.output}
      transform: {count: "len([one for one in [a, b, c] if one])"}
      MORE
    - name: last
      with: {judge: nodes.judge.output}
      transform: {count: "judge.count if judge else 0"}
  output: {count: nodes.last.output.count, votes: len(state.votes)}
"""
VOTER = """
    - name: NAME
      with: {bad: input.bad}
      WHEN
      code: |
        if "NAME" in bad:
            raise ValueError("no vote")
        {"by": "NAME"}
      output: {by: {type: string}}
      writes: {votes: "[output.by]"}
"""


def quorum(more: str = "onFailure: fail", when: str = "retry: {repair: 0}") -> CompiledGraph:
    racers = "".join(VOTER.replace("NAME", name).replace("WHEN", when).lstrip("\n") for name in "abc")
    return compiled(QUORUM.replace("RACERS\n", racers).replace("MORE", more).lstrip("\n"))


@pytest.mark.parametrize("bad", [[], ["a"], ["c"]])
async def test_a_quorum_has_as_many_winners_as_it_takes_and_one_that_fails_is_no_failure(bad: list[str]) -> None:
    for runners in (1, 3):
        session, log = await done(quorum(), {"bad": bad}, runners=runners)
        assert session.engine.output == {"count": 2, "votes": 2}
        (race_won,) = [r for r in log if r.type == "race_won"]
        assert len(race_won.envelope["winners"]) == 2
        phases = {row["name"]: row["phase"] for row in session.projection()["nodes"]}
        assert phases["judge"] == "Succeeded"
        assert sorted(phases[name] for name in "abc") == ["Failed" if bad else "Skipped", "Succeeded", "Succeeded"]


@pytest.mark.parametrize(
    ("more", "phase", "output"),
    [
        ("onFailure: fail", "Failed", None),
        ("onFailure: skip", "Succeeded", {"count": 0, "votes": 1}),
        ('onFailure: otherwise\n      otherwise: {count: "-1"}', "Succeeded", {"count": -1, "votes": 1}),
    ],
    ids=["fail", "skip", "otherwise"],
)
async def test_when_too_few_can_win_since_some_failed_the_node_fails(more: str, phase: str, output: Any) -> None:
    session, log = await done(quorum(more), {"bad": ["a", "c"]})
    shown = session.projection()
    assert (shown["phase"], session.engine.output) == (phase, output)
    codes = {f["path"]: f["class"] for f in shown["failures"]}
    assert codes == {"/a": "ExpressionFailure", "/c": "ExpressionFailure", "/judge": "TooFewEndedWell"}
    (end,) = [r for r in log if r.path == "/judge"]
    assert end.envelope["message"].startswith("/judge: 2 of the 3 nodes that race for it had to end well, and too few")
    assert "the first that failed is /a" in end.envelope["message"]


async def test_when_too_few_can_win_since_some_were_skipped_the_node_is_skipped() -> None:
    spec = quorum('otherwise: {count: "-2"}', "when: \"'x' in input.bad\"")
    session, log = await done(spec, {"bad": []})
    assert session.engine.output == {"count": -2, "votes": 0}
    assert next(r.type for r in log if r.path == "/judge") == "skip"


async def test_a_race_cut_off_at_any_record_with_failures_ends_in_the_same_state() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(quorum("onFailure: skip"), {"bad": ["a", "c"]})
    whole = await sound(store)
    for records in range(len(body(whole)) + 1):
        again = await cut(whole, records, blobs=store)
        async with Process(again) as process:
            session = await process.run(None, epoch=1)
        assert session.why == ""
        assert (await sound(again))[-1].envelope["state"] == whole[-1].envelope["state"]

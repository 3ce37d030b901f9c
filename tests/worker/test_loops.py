"""`loop` through whole runs: whole on a runner, in branches, and handed out by the driver where a map is inside."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from decurion_ledger import open_store, verify
from manifests import compiled
from test_runs import Bench, _begin, _stores, done, put_all

LEAF = """
      nodes:
        - name: longer
          with: {text: input.text, by: input.by}
          code: |
            if len(text) > 20:
                raise ValueError("too long")
            {"text": text + by}
          output: {text: {type: string}}
        - name: sized
          with: {text: nodes.longer.output.text}
          transform: {long: "len(text)"}
      output: {text: nodes.longer.output.text, long: nodes.sized.output.long}
"""
WITH_A_MAP = """
      nodes:
        - name: each
          map: {items: "[c for c in input.text]", as: letter, template: letter, key: "f'{letter}{index}'"}
        - name: longer
          with: {items: nodes.each.output.items, by: input.by}
          code: |
            if len(items) > 20:
                raise ValueError("too long")
            {"text": "".join([one["same"] for one in items]) + by}
          output: {text: {type: string}}
        - name: sized
          with: {text: nodes.longer.output.text}
          transform: {long: "len(text)"}
      output: {text: nodes.longer.output.text, long: nodes.sized.output.long}
    - name: letter
      input: {letter: {type: string}}
      nodes:
        - name: twice
          with: {letter: input.letter}
          transform: {same: letter}
      output: {same: nodes.twice.output.same}
"""
GROW = """
  input: {text: {type: string}, most: {type: integer}}
  state: [{name: seen, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: grow
      with: {text: input.text, by: "'!'"}
      loop:
        template: round
        next: {text: output.text}
        until: output.long >= input.most
        maxIterations: 5
        onExhausted: EXHAUSTED
        KEEP
      writes: {seen: "[output.text]"}
      RULE
    - name: after
      with: {g: nodes.grow.output}
      transform: {text: "f'{g.text} after {g.iterations}' if g else 'nothing'"}
  output: {text: nodes.after.output.text, seen: state.seen}
  templates:
    - name: round
      input: {text: {type: string}, by: {type: string}}
"""


def grow(
    body: str = LEAF, *, exhausted: str = "succeed", keep: str = "keep: last", rule: str = "onFailure: fail"
) -> str:
    return GROW.replace("EXHAUSTED", exhausted).replace("KEEP", keep).replace("RULE", rule) + body.lstrip("\n")


BEST = 'score: "-abs(output.long - 4)"\n        keep: best'
OTHERWISE = 'onFailure: otherwise\n      otherwise: {text: "\'none\'", long: "0", iterations: "0"}'
BODIES = pytest.mark.parametrize("body", [LEAF, WITH_A_MAP], ids=["leaf", "with a map"])

MAPPED = """
  input: {texts: {type: array, items: {type: string}}}
  nodes:
    - name: all
      map: {items: input.texts, as: text, template: one, tolerate: {count: 1}}
  output: {texts: nodes.all.output.items, failed: "[f.node for f in nodes.all.output.failures]"}
  templates:
    - name: one
      input: {text: {type: string}}
      nodes:
        - name: grow
          with: {text: input.text, by: "'.'"}
          loop:
            template: twice
            next: {text: output.text}
            until: output.long > 9
            maxIterations: 3
            onExhausted: succeed
            score: output.long % 5
            keep: best
      output: {text: nodes.grow.output.text, rounds: nodes.grow.output.iterations}
    - name: twice
      input: {text: {type: string}, by: {type: string}}
      nodes:
        - name: inner
          with: {text: input.text, by: input.by}
          loop: {template: round, next: {text: output.text}, maxIterations: 2, onExhausted: succeed}
      output: {text: nodes.inner.output.text, long: nodes.inner.output.long}
    - name: round
      input: {text: {type: string}, by: {type: string}}
"""


@BODIES
async def test_rounds_run_until_the_condition_holds(body: str) -> None:
    session, log = await done(compiled(grow(body)), {"text": "a", "most": 4})
    assert session.engine.output == {"text": "a!!! after 3", "seen": ["a!!!"]}
    paths = [r.path for r in log if r.core is not None and "[" not in r.path and "/each" not in r.path]
    rounds = [f"/grow@00{n}{part}" for n in (1, 2, 3) for part in ("!open", "/longer", "/sized", "!output")]
    assert paths == ["/", "/grow!open", *rounds[1:], "/grow!join", "/grow", "/after", "/!output"]
    (row, _) = session.projection()["nodes"]
    assert row == {"name": "grow", "kind": "loop", "phase": "Succeeded", "total": 3, "succeeded": 3}


@BODIES
async def test_the_first_of_the_best_rounds_is_kept(body: str) -> None:
    session, _ = await done(compiled(grow(body, keep=BEST)), {"text": "aa", "most": 7})
    assert session.engine.output == {"text": "aa!! after 5", "seen": ["aa!!"]}


@BODIES
@pytest.mark.parametrize(
    ("rule", "phase", "output"),
    [
        ("onFailure: fail", "Failed", None),
        ("onFailure: skip", "Succeeded", {"text": "nothing", "seen": []}),
        (OTHERWISE, "Succeeded", {"text": "none after 0", "seen": []}),
    ],
    ids=["fail", "skip", "otherwise"],
)
async def test_a_loop_that_fails_ends_as_its_node_says(body: str, rule: str, phase: str, output: Any) -> None:
    for given, code, path in (
        ({"text": "a", "most": 99}, "LoopExhausted", "/grow"),
        ({"text": "a" * 19, "most": 99}, "ExpressionFailure", "/grow@003/longer"),
    ):
        session, _ = await done(compiled(grow(body, exhausted="fail", rule=rule)), given)
        shown = session.projection()
        assert (shown["phase"], session.engine.output) == (phase, output)
        assert [(f["class"], f["path"]) for f in shown["failures"]] == [(code, path)]


async def test_loops_inside_loops_inside_branches_run_whole_on_a_runner() -> None:
    session, log = await done(compiled(MAPPED + LEAF.lstrip("\n")), {"texts": ["", "aaa", "a" * 20]})
    assert session.engine.output == {
        "texts": [{"text": "....", "rounds": 3}, {"text": "aaa......", "rounds": 3}],
        "failed": ["longer"],
    }
    leases = {r.envelope["lease"] for r in log if r.path.startswith("/all[00000]")}
    assert len(leases) == 1


SLOW = """
  input: {}
  nodes:
    - name: wait
      with: {count: "1"}
      loop: {template: ask, next: {count: iteration + 1}, maxIterations: 3, onExhausted: succeed}
      timeoutSeconds: 0.3
      onFailure: skip
  output: {rounds: "nodes.wait.output.iterations if nodes.wait.output else 0"}
  templates:
    - name: ask
      input: {count: {type: integer}}
      nodes:
        - name: ask
          with: {count: input.count}
          llm: {ref: slow, prompt: "go {{ count }}"}
          timeoutSeconds: 3000
      output: {text: nodes.ask.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: go 1, reply: '{"text": "x"}'}
      - {match: go 2, reply: '{"text": "x"}', delaySeconds: 2000}
"""


async def test_a_loop_may_take_no_longer_than_it_says_in_all_its_rounds() -> None:
    session, log = await done(compiled(SLOW), {})
    assert session.engine.output == {"rounds": 0}
    (end,) = [r for r in log if r.path == "/wait!join"]
    assert end.core is not None
    assert end.core["outcome"]["failed"]["code"] == "TimedOut"


SWEPT: dict[str, tuple[str, Any]] = {
    "leaf": (grow(), {"text": "a", "most": 4}),
    "leaf, the best": (grow(keep=BEST), {"text": "aa", "most": 7}),
    "leaf, exhausted, replaced": (grow(exhausted="fail", rule=OTHERWISE), {"text": "a", "most": 99}),
    "leaf, a round fails": (grow(rule="onFailure: skip"), {"text": "a" * 19, "most": 99}),
    "with a map": (grow(WITH_A_MAP), {"text": "a", "most": 3}),
    "with a map, the best": (grow(WITH_A_MAP, keep=BEST), {"text": "aa", "most": 6}),
    "with a map, exhausted, replaced": (grow(WITH_A_MAP, exhausted="fail", rule=OTHERWISE), {"text": "", "most": 99}),
    "with a map, a round fails": (grow(WITH_A_MAP, rule="onFailure: skip"), {"text": "a" * 20, "most": 99}),
    "in branches": (MAPPED + LEAF.lstrip("\n"), {"texts": ["", "a" * 20]}),
}


@pytest.mark.parametrize("name", SWEPT)
async def test_a_run_that_stopped_after_any_record_is_finished_to_the_same_state(name: str) -> None:
    spec, given = SWEPT[name]
    async with Bench() as bench:
        whole, log = await bench.run(compiled(spec), given), await bench.log()
        blobs = await bench.blobs()
        assert await verify(bench.store, "run-1") == []
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    for cut in range(len(body) + 1):
        store = open_store(f"memory://loops-{next(_stores)}")
        await put_all(store, blobs)
        await _begin(store, log[0], body[:cut])
        async with Bench(store=store) as bench:
            session = await bench.run(None, epoch=1)
            again = await bench.log()
            assert await verify(store, "run-1") == []
        where = f"cut after {cut} records, {body[cut - 1].path if cut else 'genesis'}"
        assert session.engine.output == whole.engine.output, where
        assert session.facts.state_hash == whole.facts.state_hash, where
        paths = Counter(r.path for r in again if r.core is not None and r.type != "genesis")
        assert max(paths.values()) == 1, where


@pytest.mark.parametrize("name", SWEPT)
async def test_the_state_does_not_depend_on_how_the_work_is_spread(name: str) -> None:
    spec, given = SWEPT[name]
    one, _ = await done(compiled(spec), given)
    for runners, branches in ((1, 1), (3, 2)):
        other, _ = await done(compiled(spec), given, runners=runners, branches=branches)
        assert other.facts.state_hash == one.facts.state_hash

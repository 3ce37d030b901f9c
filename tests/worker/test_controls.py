"""`switch`, `graph`, `onFailure` and `failFast` through whole runs: handed out by the driver, and whole on a runner."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from decurion_ledger import open_store, verify
from manifests import compiled
from test_runs import Bench, _begin, _stores, done, put_all

ROUTER = """
  input: {kind: {type: string, enum: [bug, refund, other]}, amount: {type: number}}
  state: [{name: notes, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: route
      switch: {value: input.kind, cases: [{equals: bug, nodes: [triage]}, {equals: refund, nodes: [pay, tell]}], default: [park]}
    - name: triage
      transform: {text: "'triaged'"}
      writes: {notes: "['bug']"}
    - name: pay
      with: {amount: input.amount}
      transform: {text: "f'paid {amount}'"}
      otherwise: {text: "'nothing to pay'"}
      writes: {notes: "[output.text]"}
    - name: tell
      after: [pay]
      with: {text: nodes.pay.output.text}
      transform: {text: "text.upper()"}
    - name: park
      transform: {text: "'parked'"}
      writes: {notes: "['parked']"}
  output:
    pay: nodes.pay.output.text
    told: "nodes.tell.output.text if nodes.tell.output else 'nobody'"
    notes: state.notes
"""  # noqa: E501

REVIEW = """
  input: {k: {type: integer}}
  nodes:
    - name: review
      with: {k: input.k}
      graph: {template: check}
      FAILURE
    - name: after
      with: {r: nodes.review.output}
      transform: {text: "f'reviewed {r.twice}' if r else 'no review'"}
  output: {text: nodes.after.output.text}
  templates:
    - name: check
      input: {k: {type: integer}}
      nodes:
        - name: inner
          with: {k: input.k}
          graph: {template: double}
        - name: guard
          with: {k: nodes.inner.output.k}
          code: |
            if k > 10:
                raise ValueError("too much")
            {"k": k}
          output: {k: {type: integer}}
      output: {twice: nodes.guard.output.k}
    - name: double
      input: {k: {type: integer}}
      nodes:
        - name: times
          with: {k: input.k}
          transform: {k: "k * 2"}
      output: {k: nodes.times.output.k}
"""


def review(rule: str = "{}") -> str:
    return REVIEW.replace("      FAILURE\n", "" if rule == "{}" else f"      {rule}\n")


OTHERWISE = "onFailure: otherwise\n      otherwise: {twice: '-1'}"


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ({"kind": "bug", "amount": 3}, {"pay": "nothing to pay", "told": "nobody", "notes": ["bug"]}),
        ({"kind": "refund", "amount": 3}, {"pay": "paid 3.0", "told": "PAID 3.0", "notes": ["paid 3.0"]}),
        ({"kind": "other", "amount": 3}, {"pay": "nothing to pay", "told": "nobody", "notes": ["parked"]}),
    ],
    ids=["one case", "a case of two", "default"],
)
async def test_a_switch_runs_the_nodes_of_one_case(given: dict[str, Any], output: dict[str, Any]) -> None:
    session, log = await done(compiled(ROUTER), given)
    assert session.engine.output == output
    skipped = {r.path for r in log if r.type == "skip"}
    assert len(skipped) == (2 if given["kind"] == "refund" else 3)


async def test_a_graph_runs_in_a_scope_of_its_own_and_gives_its_output() -> None:
    session, log = await done(compiled(review()), {"k": 4})
    assert session.engine.output == {"text": "reviewed 8"}
    paths = [r.path for r in log if r.core is not None]
    assert paths == [
        "/",
        "/review!open",
        "/review/inner!open",
        "/review/inner/times",
        "/review/inner!output",
        "/review/guard",
        "/review!output",
        "/after",
        "/!output",
    ]


@pytest.mark.parametrize(
    ("rule", "phase", "output"),
    [
        ("{}", "Failed", None),
        ("onFailure: skip", "Succeeded", {"text": "no review"}),
        (OTHERWISE, "Succeeded", {"text": "reviewed -1"}),
    ],
    ids=["fail", "skip", "otherwise"],
)
async def test_a_graph_that_fails_ends_as_its_node_says(rule: str, phase: str, output: Any) -> None:
    session, _ = await done(compiled(review(rule)), {"k": 40})
    assert (session.projection()["phase"], session.engine.output) == (phase, output)
    assert session.projection()["failures"][0]["path"] == "/review/guard"


CODE = """
  input: {k: {type: integer}}
  nodes:
    - name: risky
      with: {k: input.k}
      code: |
        if k > 10:
            raise ValueError("too much")
        {"k": k}
      output: {k: {type: integer}}
      RULE
    - name: then
      after: [risky]
      with: {r: nodes.risky.output}
      transform: {k: "r.k if r else 0"}
      otherwise: {k: "-5"}
  output: {k: nodes.then.output.k}
"""


@pytest.mark.parametrize(
    ("rule", "k", "output"),
    [
        ("onFailure: skip", 40, {"k": -5}),
        ("onFailure: skip", 4, {"k": 4}),
        ("onFailure: otherwise\n      otherwise: {k: '7'}", 40, {"k": 7}),
    ],
)
async def test_what_comes_after_a_node_that_failed_sees_what_its_rule_says(rule: str, k: int, output: Any) -> None:
    session, log = await done(compiled(CODE.replace("RULE", rule)), {"k": k})
    assert session.engine.output == output
    failed = [r for r in log if r.core is not None and isinstance(r.core["outcome"], dict)]
    assert len(failed) == (1 if k > 10 else 0)


MAPPED = """
  input: {items: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      map: {items: input.items, as: k, template: one, tolerate: {count: 9}}
  output: {all: nodes.each.output.items, failed: "len(nodes.each.output.failures)"}
  templates:
    - name: one
      input: {k: {type: integer}}
      nodes:
        - name: parity
          switch: {value: "input.k % 2", cases: [{equals: 0, nodes: [even]}], default: [odd]}
        - name: even
          with: {k: input.k}
          graph: {template: half}
          onFailure: otherwise
          otherwise: {k: "-1"}
        - name: odd
          with: {k: input.k}
          graph: {template: half}
          onFailure: skip
      output: {k: "nodes.odd.output.k if nodes.odd.output else nodes.even.output.k"}
    - name: half
      input: {k: {type: integer}}
      nodes:
        - name: check
          with: {k: input.k}
          code: |
            if k > 10:
                raise ValueError("too much")
            {"k": k // 2}
          output: {k: {type: integer}}
      output: {k: nodes.check.output.k}
"""


async def test_controls_inside_a_branch_run_whole_on_its_runner() -> None:
    session, log = await done(compiled(MAPPED), {"items": [4, 5, 40, 41]})
    assert session.engine.output == {"all": [{"k": 2}, {"k": 2}, {"k": -1}, {"k": -1}], "failed": 0}
    leases = {r.envelope["lease"] for r in log if r.path.startswith("/each[00002]")}
    assert len(leases) == 1


NESTED = """
  input: {rows: {type: array, items: {type: array, items: {type: integer}}}}
  nodes:
    - name: all
      with: {rows: input.rows}
      graph: {template: outer}
      onFailure: otherwise
      otherwise: {sums: "[]"}
  output: {sums: nodes.all.output.sums}
  templates:
    - name: outer
      input: {rows: {type: array, items: {type: array, items: {type: integer}}}}
      nodes:
        - name: rows
          map: {items: input.rows, as: row, template: row, tolerate: {count: 1}}
      output: {sums: "[r.sum for r in nodes.rows.output.items]"}
    - name: row
      input: {row: {type: array, items: {type: integer}}}
      nodes:
        - name: cells
          map: {items: input.row, as: k, template: cell}
        - name: add
          with: {cells: nodes.cells.output.items}
          transform: {sum: "sum([c.k for c in cells])"}
      output: {sum: nodes.add.output.sum}
    - name: cell
      input: {k: {type: integer}}
      nodes:
        - name: guard
          with: {k: input.k}
          code: |
            if k > 10:
                raise ValueError("too much")
            {"k": k}
          output: {k: {type: integer}}
      output: {k: nodes.guard.output.k}
"""

SWEPT: dict[str, tuple[str, Any]] = {
    "switch": (ROUTER, {"kind": "refund", "amount": 3}),
    "graph": (review(), {"k": 4}),
    "graph that fails, skipped": (review("onFailure: skip"), {"k": 40}),
    "graph that fails, replaced": (review(OTHERWISE), {"k": 40}),
    "code that fails, replaced": (CODE.replace("RULE", "onFailure: otherwise\n      otherwise: {k: '7'}"), {"k": 40}),
    "inside branches": (MAPPED, {"items": [4, 5, 40, 41]}),
    "maps in a graph": (NESTED, {"rows": [[1, 2], [3], []]}),
    "maps in a graph, a row fails": (NESTED, {"rows": [[1, 2], [99], [3]]}),
    "maps in a graph that fails": (NESTED, {"rows": [[99], [1], [98]]}),
}


@pytest.mark.parametrize("name", SWEPT)
async def test_a_run_that_stopped_after_any_record_is_finished_to_the_same_state(name: str) -> None:
    spec, given = SWEPT[name]
    async with Bench() as bench:
        whole, log = await bench.run(compiled(spec), given), await bench.log()
        blobs = await bench.blobs()
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    for cut in range(len(body) + 1):
        store = open_store(f"memory://controls-{next(_stores)}")
        await put_all(store, blobs)
        await _begin(store, log[0], body[:cut])
        async with Bench(store=store) as bench:
            session = await bench.run(None, epoch=1)
            again = await bench.log()
            assert await verify(store, "run-1") == []
        assert session.engine.output == whole.engine.output, f"cut after {cut} records"
        assert session.facts.state_hash == whole.facts.state_hash, f"cut after {cut} records"
        paths = Counter(r.path for r in again if r.core is not None and r.type != "genesis")
        assert max(paths.values()) == 1, f"cut after {cut} records"


@pytest.mark.parametrize("name", SWEPT)
async def test_the_state_does_not_depend_on_how_the_work_is_spread(name: str) -> None:
    spec, given = SWEPT[name]
    one, _ = await done(compiled(spec), given)
    for runners, branches in ((1, 1), (3, 2)):
        other, _ = await done(compiled(spec), given, runners=runners, branches=branches)
        assert other.facts.state_hash == one.facts.state_hash


FAST = """
  input: {items: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      map: {items: input.items, as: k, template: one, failFast: FAST}
      onFailure: skip
  output: {all: "nodes.each.output.items if nodes.each.output else None"}
  templates:
    - name: one
      input: {k: {type: integer}}
      nodes:
        - name: ask
          with: {k: input.k}
          llm: {ref: slow, prompt: "item {{ k }}"}
          timeoutSeconds: 3000
          retry: {transient: 0}
      output: {text: nodes.ask.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec:
  protocol: scripted
  scripted:
    replies: [{match: "item 0", error: ModelRefused}, {match: "item", reply: '{"text": "x"}', delaySeconds: DELAY}]
"""


async def test_fail_fast_stops_what_runs_and_the_map_fails_at_once() -> None:
    spec = FAST.replace("FAST", "true").replace("DELAY", "2000")
    session, log = await done(compiled(spec), {"items": [1, 0, 2]})
    assert session.projection()["phase"] == "Succeeded", session.facts.message
    assert session.engine.output == {"all": None}
    assert [r.path for r in log if r.path.endswith("]!output")] == ["/each[00001]!output"]


async def test_without_fail_fast_what_runs_is_ended_first() -> None:
    spec = FAST.replace("FAST", "false").replace("DELAY", "0")
    _, log = await done(compiled(spec), {"items": [1, 0, 2]})
    assert {r.path for r in log if r.path.endswith("]!output")} == {f"/each[0000{i}]!output" for i in range(3)}


async def test_how_far_a_map_came_before_it_failed_does_not_show_in_the_state() -> None:
    spec = FAST.replace("FAST", "true").replace("DELAY", "0")
    states = {
        (await done(compiled(spec), {"items": [1, 2, 0, 3, 4]}, branches=branches))[0].facts.state_hash
        for branches in (1, 2, 64)
    }
    assert len(states) == 1


ASK = """
        - name: ask
          with: {k: input.items}
          llm: {ref: slow, prompt: "item {{ k }}"}
          timeoutSeconds: 3000
"""
ITEMS = "input: {items: {type: array, items: {type: integer}}}"
EACH = f"""
    - name: each
      {ITEMS}
      nodes: [{{name: rows, map: {{items: input.items, as: items, template: one}}}}]
      output: {{got: "len(nodes.rows.output.items)"}}"""
ONE = f"""
    - name: one
      input: {{items: {{type: integer}}}}
      nodes:{ASK}
      output: {{text: nodes.ask.output.text}}"""
FIRST = f"""
    - name: first
      {ITEMS}
      nodes:{ASK}
      output: {{got: "len(nodes.ask.output.text)"}}"""
AROUND = f"""
    - name: around
      {ITEMS}
      nodes:
        - name: inner
          with: {{items: input.items}}
          timeoutSeconds: 0.2
          graph: {{template: first}}
          onFailure: otherwise
          otherwise: {{got: "-7"}}
      output: {{got: nodes.inner.output.got}}"""


def slow(block: str, *templates: str, otherwise: str = "got: '-1'", got: str = "got") -> str:
    return f"""
  {ITEMS}
  nodes:
    - name: all
      {block}
      onFailure: otherwise
      otherwise: {{{otherwise}}}
  output: {{got: nodes.all.output.{got}}}
  templates:{"".join(templates)}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {{name: slow}}
spec: {{protocol: scripted, scripted: {{replies: [{{match: "item", reply: '{{"text": "x"}}', delaySeconds: 2000}}]}}}}
"""


GRAPH = "with: {items: input.items}\n      timeoutSeconds: 0.2\n      graph: {template: NAME}"
TIMED = {
    "a map": slow(
        "timeoutSeconds: 0.2\n      map: {items: input.items, as: items, template: one}",
        ONE,
        otherwise="items: '[]', failures: '[]', total: '-1'",
        got="total",
    ),
    "a graph with a map in it": slow(GRAPH.replace("NAME", "each"), EACH, ONE),
    "a graph on a runner": slow(GRAPH.replace("NAME", "first"), FIRST),
    "a graph in a graph": slow("with: {items: input.items}\n      graph: {template: around}", AROUND, FIRST),
}


@pytest.mark.parametrize("name", TIMED)
async def test_what_takes_longer_than_it_may_fails_and_nothing_of_it_goes_on(name: str) -> None:
    async with Bench() as bench:
        session = await bench.run(compiled(TIMED[name]), {"items": [1, 2]})
        assert session.engine.output == {"got": -7 if name == "a graph in a graph" else -1}, session.facts.message
        log = await bench.log()
        assert await verify(bench.store, "run-1") == []
        assert not bench.driver.load
    failed = [r for r in log if r.core is not None and isinstance(r.core["outcome"], dict)]
    assert any(r.core["outcome"]["failed"]["code"] == "TimedOut" for r in failed if r.core)


async def test_the_time_of_a_map_goes_on_when_its_driver_is_gone() -> None:
    spec = compiled(TIMED["a map"])
    async with Bench() as bench:
        await bench.run(spec, {"items": [1, 2]})
        log = await bench.log()
        blobs = await bench.blobs()
    cut = [r.type for r in log].index("timer_set")
    store = open_store(f"memory://timers-{next(_stores)}")
    await put_all(store, blobs)
    await _begin(store, log[0], [r for r in log[1 : cut + 1] if r.type != "fence"])
    async with Bench(store=store) as bench:
        session = await bench.run(None, epoch=1)
        again = await bench.log()
    assert session.engine.output == {"got": -1}
    assert [r.type for r in again].count("timer_set") == 1

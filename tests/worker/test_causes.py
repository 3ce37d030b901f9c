"""Which failure a scope that failed names: the cause, never what was given up for its sake."""

from __future__ import annotations

import pytest

from decurion_ledger import open_store
from decurion_worker.session import RunSession
from manifests import compiled
from test_runs import Bench, _begin, _stores, done, put_all
from test_times_of_leaves import cut as part
from test_times_of_leaves import ended, request
from virtual_time import in_virtual_time

LLM = """
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec:
  protocol: scripted
  scripted:
    replies: [{match: "item 0", error: ModelRefused}, {match: "item", reply: '{"text": "x"}', delaySeconds: 1}]
"""

ROOT = (
    """
  input: {items: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      map: {items: input.items, as: k, template: one, concurrency: 1}
    - name: bad
      with: {size: "len(input.items)"}
      code: |
        t = 0
        for i in range(200000):
            t += i
        if size > 0:
            raise ValueError("the cause")
        {"k": size}
      output: {k: {type: integer}}
  output: {all: nodes.each.output.items, k: nodes.bad.output.k}
  templates:
    - name: one
      input: {k: {type: integer}}
      nodes:
        - name: ask
          with: {k: input.k}
          llm: {ref: slow, prompt: "item {{ k }}"}
          retry: {transient: 0}
      output: {text: nodes.ask.output.text}
"""
    + LLM
)

ROWS = """
  input: {rows: {type: array, items: {type: array, items: {type: integer}}}}
  nodes:
    - name: rows
      map: {items: input.rows, as: row, template: row, tolerate: {count: 9}}
  output: {rows: nodes.rows.output.failures}
  templates:
    - name: row
      input: {row: {type: array, items: {type: integer}}}
      nodes:
        - name: cells
          map: {items: input.row, as: k, template: cell}
        - name: bad
          with: {row: input.row}
          code: |
            if len(row) > 1:
                raise ValueError("the cause")
            {"k": 1}
          output: {k: {type: integer}}
      output: {cells: nodes.cells.output.items, k: nodes.bad.output.k}
    - name: cell
      input: {k: {type: integer}}
      nodes:
        - name: same
          with: {k: input.k}
          transform: {k: "k + 0"}
      output: {k: nodes.same.output.k}
"""


async def test_the_reason_of_a_run_that_failed_is_its_cause() -> None:
    session, _ = await done(compiled(ROOT), {"items": [1, 2, 3]})
    assert session.projection()["phase"] == "Failed"
    assert "the cause" in session.facts.message


async def test_a_row_that_fails_names_its_cause_wherever_the_run_was_cut() -> None:
    spec, given = ROWS, {"rows": [[1, 2, 3]]}
    async with Bench() as bench:
        whole, log = await bench.run(compiled(spec), given), await bench.log()
        blobs = await bench.blobs()
    body = [r for r in log if r.type not in ("genesis", "fence", "close")]
    seen = {-1: str(whole.engine.output)}
    states = {-1: whole.facts.state_hash}
    for cut in range(len(body) + 1):
        store = open_store(f"memory://abandoned-{next(_stores)}")
        await put_all(store, blobs)
        await _begin(store, log[0], body[:cut])
        async with Bench(store=store) as bench:
            session = await bench.run(None, epoch=1)
        seen[cut] = str(session.engine.output)
        states[cut] = session.facts.state_hash
    assert set(seen.values()) == {seen[-1]}, seen
    assert len(set(states.values())) == 1


@pytest.mark.parametrize("branches", [1, 2, 64])
async def test_a_row_that_fails_names_its_cause_however_many_slots_there_are(branches: int) -> None:
    session, _ = await done(compiled(ROWS), {"rows": [[1, 2, 3], [4, 5], [6]]}, branches=branches)
    assert [row["error"] for row in session.engine.output["rows"]] == ["ExpressionFailure", "ExpressionFailure"]


BESIDE = (
    """
  input: {rows: {type: array, items: {type: array, items: {type: integer}}}}
  nodes:
    - name: rows
      map: {items: input.rows, as: row, template: row}
    - name: bad
      with: {size: "len(input.rows)"}
      code: |
        if size > 0:
            raise ValueError("the cause")
        {"k": size}
      output: {k: {type: integer}}
  output: {rows: nodes.rows.output.items, k: nodes.bad.output.k}
  templates:
    - name: row
      input: {row: {type: array, items: {type: integer}}}
      nodes:
        - name: cells
          map: {items: input.row, as: k, template: cell}
      output: {cells: nodes.cells.output.items}
    - name: cell
      input: {k: {type: integer}}
      nodes:
        - name: ask
          with: {k: input.k}
          llm: {ref: slow, prompt: "item {{ k }}"}
      output: {text: nodes.ask.output.text}
"""
    + LLM
)


async def test_a_map_whose_branches_were_given_up_is_not_the_cause() -> None:
    session, log = await done(compiled(BESIDE), {"rows": [[1, 2], [3]]})
    assert session.projection()["phase"] == "Failed"
    assert log[-1].envelope["failure"]["path"] == "/bad"
    (joined,) = [record for record in log if record.path == "/rows!join"]
    assert joined.core is not None
    assert joined.core["outcome"] == {"failed": {"class": "Terminal", "code": "Abandoned"}}


MENDED = """
  nodes:
    - name: each
      map: {items: "[1, 2]", as: k, template: one}
    - name: wait
      llm: {ref: slow, prompt: soon}
    - name: bad
      after: [wait]
      code: |
        raise ValueError("the cause")
        {"k": 1}
      output: {k: {type: integer}}
  output: {all: nodes.each.output.items}
  templates:
    - name: one
      input: {k: {type: integer}}
      nodes:
        - name: deep
          graph: {template: fails}
          onFailure: otherwise
          otherwise: {k: "-1"}
      output: {k: nodes.deep.output.k}
    - name: fails
      nodes:
        - name: never
          code: |
            raise ValueError("this would have been mended")
            {"k": 1}
          output: {k: {type: integer}}
      output: {k: nodes.never.output.k}
      finally:
        - name: late
          llm: {ref: slow, prompt: later}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec:
  protocol: scripted
  scripted:
    replies: [{match: soon, reply: '{"text": "x"}', delaySeconds: 1}, {reply: '{"text": "x"}', delaySeconds: 5}]
"""


def test_what_otherwise_would_have_mended_is_not_the_cause() -> None:
    """The items fail before the node that is the cause, and end after it, when nothing stands for them any more."""
    store = open_store(f"memory://mended-{next(_stores)}")
    session = in_virtual_time(ended(store, later=0.0, request=request(graph=compiled(MENDED), input={})))
    assert session.projection()["phase"] == "Failed"
    assert "the cause" in session.facts.message


BOTH = """
      - name: slow
        llm: {ref: fails, prompt: late}
        retry: {transient: 0}
      - name: fast
        llm: {ref: fails, prompt: early}
        retry: {transient: 0}
"""
LAST = """
      - {name: last, transform: {x: "1"}}
"""
FAILS = """
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fails}
spec:
  protocol: scripted
  scripted: {replies: [{match: late, error: ModelRefused, delaySeconds: 1}, {error: ModelRefused}]}
"""
INNER = """
  nodes:
    - {name: inner, graph: {template: both}}
  output: {x: nodes.inner.output.x}
  templates:
    - name: both
"""
OUT = "output: {x: nodes.slow.output.text}"


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        (f"\n  nodes:{BOTH}  {OUT}\n", "/slow"),
        (f"\n  nodes:{BOTH}  {OUT}\n  finally:{LAST}", "/slow"),
        (f"{INNER}      nodes:{BOTH}      {OUT}\n", "/inner/slow"),
        (f"{INNER}      nodes:{BOTH}      {OUT}\n      finally:{LAST}", "/inner/slow"),
    ],
    ids=["run", "run with finally", "graph", "graph with finally"],
)
def test_a_resumed_run_names_the_cause_of_the_whole_one_when_all_that_failed_is_in_its_log(
    spec: str, cause: str
) -> None:
    """The first node in the file fails last, when a replay, which does not know that it was in work, sees an end."""
    graph = compiled(spec + FAILS)
    store, there = (open_store(f"memory://both-{next(_stores)}") for _ in range(2))

    async def resumed() -> RunSession:
        await part(store, there, after=cause)
        return await ended(there, later=0.0, request=request(leader_epoch=1))

    whole = in_virtual_time(ended(store, later=0.0, request=request(graph=graph, input={})))
    again = in_virtual_time(resumed())
    for session in (whole, again):
        assert session.projection()["phase"] == "Failed"
        assert session.facts.message.startswith(f"{cause}: ")
    assert again.facts.state_hash == whole.facts.state_hash

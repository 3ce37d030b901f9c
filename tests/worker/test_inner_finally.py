"""`finally` of templates, and of graphs that another one runs: in items, graphs and rounds, live and after any cut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from crashes import RUN, Process, body, cut, new_store, results, sound, until
from decurion_ledger import Record, Store
from decurion_worker.earlier import Earlier
from decurion_worker.opening import OpenRequest
from decurion_worker.session import RunSession
from manifests import compiled

SPEC = """
  input: {rows: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      with: {top: len(input.rows)}
      map: {items: input.rows, as: row, template: one, tolerate: {count: 9}}
    - name: sub
      with: {k: nodes.each.output.total}
      graph: {ref: other}
    - name: rounds
      with: {k: nodes.sub.output.v}
      loop: {template: round, next: {k: output.v}, until: output.v > 6, maxIterations: 5, onExhausted: fail}
  output: {items: nodes.each.output.items, sub: nodes.sub.output.v, v: nodes.rounds.output.v}
  finally:
    - name: last
      with: {how: run.outcome}
      transform: {how: how}
  templates:
    - name: one
      input: {row: {type: integer}, top: {type: integer}}
      state: [{name: seen, schema: {type: array, items: {type: integer}}, merge: append}]
      nodes:
        - name: half
          with: {row: input.row}
          code: 100 // row
          output: {type: integer}
          writes: {seen: "[output]"}
        - name: next
          with: {half: nodes.half.output}
          transform: {v: half + 1}
      output: {v: nodes.next.output.v}
      finally:
        - name: tell
          with:
            how: run.outcome
            why: "run.failure.code if run.failure else ''"
            half: nodes.half.output
            seen: state.seen
            row: input.row
            top: input.top
          transform: {how: how, why: why, half: half, seen: seen, row: row, top: top}
          output:
            how: {type: string}
            why: {type: string}
            half: {type: [integer, 'null']}
            seen: {type: array, items: {type: integer}}
            row: {type: integer}
            top: {type: integer}
        - name: every
          with: {how: nodes.tell.output.how}
          map: {items: "['b']", as: letter, template: letters}
    - name: letters
      input: {letter: {type: string}, how: {type: string}}
      nodes:
        - name: add
          with: {letter: input.letter, how: input.how}
          transform: {text: "f'{letter} {how}'"}
      output: {text: nodes.add.output.text}
    - name: round
      input: {k: {type: integer}}
      nodes:
        - name: more
          with: {k: input.k}
          transform: {v: k + 2}
      output: {v: nodes.more.output.v}
      finally:
        - name: count
          with: {v: nodes.more.output}
          transform: {v: "v.v if v else 0"}
          output: {v: {type: integer}}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: other}
spec:
  input: {k: {type: integer}}
  nodes:
    - name: plus
      with: {k: input.k}
      transform: {v: k + 1}
  output: {v: nodes.plus.output.v}
  finally:
    - name: close
      with: {v: nodes.plus.output, how: run.outcome}
      transform: {text: "f'{how} {v.v}' if v else how"}
"""
ROWS = {"rows": [5, 0]}


def output(log: list[Record], path: str) -> Any:
    record = next(r for r in log if r.path == path and r.core is not None)
    assert record.core is not None
    return record.envelope["values"][record.core["delta"]]["inline"]


async def _resumed(store: Store, whole: RunSession, *, start: int = 0, step: int = 4) -> None:
    """Cut after each of its records, or each `step`-th, a run ends in the same state with the same results."""
    log = await sound(store)
    for records in range(start, len(body(log)) + 1, step):
        there = await cut(log, records, blobs=store)
        async with Process(there) as process:
            session = await process.run(None, epoch=1)
        at = f"cut after {records} records"
        assert session.facts.state_hash == whole.facts.state_hash, at
        assert results(await sound(there)) == results(log), at


async def test_it_runs_in_each_item_graph_and_round_before_what_comes_after_whether_these_ended_well_or_not() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(SPEC), ROWS)
    assert session.projection()["phase"] == "Succeeded"
    assert session.engine.output == {"items": [{"v": 21}], "sub": 3, "v": 7}
    log = await sound(store)
    assert output(log, "/each[00000]/finally/tell") == {
        "how": "Succeeded", "why": "", "half": 20, "seen": [20], "row": 5, "top": 2,
    }  # fmt: skip
    assert output(log, "/each[00001]/finally/tell") == {
        "how": "Failed", "why": "ExpressionFailure", "half": None, "seen": [], "row": 0, "top": 2,
    }  # fmt: skip
    assert output(log, "/each[00001]/finally/every[00000]!output") == {"text": "b Failed"}
    assert output(log, "/sub/finally/close") == {"text": "Succeeded 3"}
    assert [output(log, f"/rounds@{n:03d}/finally/count") for n in (1, 2)] == [{"v": 5}, {"v": 7}]
    assert output(log, "/finally/last") == {"how": "Succeeded"}
    paths = [r.path for r in log if r.core is not None]
    for scope in ("/each[00000]", "/sub", "/rounds@001"):
        steps = [f"{scope}!result", f"{scope}/finally!open", f"{scope}!output"]
        assert [paths.index(step) for step in steps] == sorted(paths.index(step) for step in steps)
    assert paths.index("/each[00001]/finally/every!join") < paths.index("/each[00001]!output")
    assert paths.index("/rounds@001!output") < paths.index("/rounds@002!open")


async def test_cut_after_any_record_it_ends_in_the_same_state() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(SPEC), {"rows": [0]})
    assert session.engine.output == {"items": [], "sub": 2, "v": 8}
    await _resumed(store, session, step=1)


FAILING = SPEC.replace("tolerate: {count: 9}", "tolerate: {count: 0}")


async def test_it_runs_where_something_around_fails_and_the_run_fails_with_what_it_would_have_failed_with() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(FAILING), ROWS)
    shown = session.projection()
    assert (shown["phase"], shown["reason"]) == ("Failed", "ItemsFailed")
    log = await sound(store)
    begun = {r.path.partition("]")[0] for r in log if r.path.startswith("/each[") and "finally" not in r.path}
    ran = {r.path.partition("]")[0] for r in log if r.path.startswith("/each[") and "/finally/tell" in r.path}
    assert "/each[00001" in ran
    assert ran == begun
    assert output(log, "/finally/last") == {"how": "Failed"}
    for records in range(0, len(body(log)) + 1, 3):
        there = await cut(log, records, blobs=store)
        async with Process(there) as process:
            again = await process.run(None, epoch=1)
        assert again.facts.state_hash == session.facts.state_hash, f"cut after {records} records"
        await sound(there)


BROKEN = SPEC.replace(
    "transform: {text: \"f'{how} {v.v}' if v else how\"}", 'transform: {text: "str(1 // len(how[9:]))"}'
)


async def test_one_that_fails_fails_its_scope() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(BROKEN), {"rows": [5]})
    shown = session.projection()
    assert (shown["phase"], shown["reason"]) == ("Failed", "ExpressionFailure")
    assert shown["message"].startswith("/sub/finally/close")
    assert [f["path"] for f in shown["failures"]] == ["/sub/finally/close"]
    await _resumed(store, session)


async def test_an_output_that_fails_is_a_failure_that_it_sees() -> None:
    graph = SPEC.replace(
        "output: {v: nodes.plus.output.v}\n  finally", 'output: {v: "1 // (nodes.plus.output.v - 2)"}\n  finally'
    )
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(graph), {"rows": [5]})
    assert session.projection()["phase"] == "Failed"
    log = await sound(store)
    assert output(log, "/sub/finally/close") == {"text": "Failed 2"}
    await _resumed(store, session)


async def test_a_retry_runs_it_again_only_where_something_runs_again() -> None:
    store = new_store()
    async with Process(store) as process:
        await process.run(compiled(BROKEN), {"rows": [5]})
        at = "2026-01-01T00:00:00+00:00"
        request = OpenRequest(
            run="second", name="g", graph=None, input=None, leader_epoch=0, scheduled_at=at, seed="s",
            earlier=Earlier(RUN, "retry"),
        )  # fmt: skip
        again = await process.driver.open_run(request)
        async with asyncio.timeout(30):
            await again.ended.wait()
    log = await sound(store, "second")
    taken = {r.path for r in log if "from" in r.envelope}
    assert {"/each[00000]/finally/tell", "/each[00000]!result", "/sub/plus"} <= taken
    assert not [path for path in taken if path.startswith("/sub/finally") or path == "/sub!result"]
    assert "/sub/finally/close" in results(log)


SLOW = """
  input: {rows: {type: array, items: {type: string}}}
  limits: LIMIT
  nodes:
    - name: each
      timeoutSeconds: SECONDS
      map: {items: input.rows, as: row, template: one, tolerate: {count: 9}}
  output: {count: len(nodes.each.output.items)}
  finally:
    - name: last
      with: {how: run.outcome}
      transform: {how: how}
  templates:
    - name: one
      input: {row: {type: string}}
      nodes:
        - name: first
          with: {row: input.row}
          transform: {text: row}
        - name: deep
          with: {row: nodes.first.output.text}
          graph: {template: two}
      output: {text: nodes.deep.output.text}
      finally:
        - name: told
          with: {how: run.outcome, why: "run.failure.code if run.failure else ''"}
          llm: {ref: LAST, prompt: "{{ how }} {{ why }}"}
    - name: two
      input: {row: {type: string}}
      nodes:
        - name: begin
          with: {row: input.row}
          transform: {text: row}
        - name: ask
          with: {row: nodes.begin.output.text}
          llm: {ref: slow, prompt: "{{ row }} "}
          retry: {transient: 0}
      output: {text: nodes.ask.output.text}
      finally:
        - name: inner
          with: {how: run.outcome}
          transform: {how: how}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec: {protocol: scripted, model: m, scripted: {replies: [{match: " ", reply: never, delaySeconds: 300}]}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: quick}
spec: {protocol: scripted, model: m, scripted: {replies: [{match: " ", reply: told}]}}
"""
LETTERS = {"rows": ["a", "b"]}


def slow(*, last: str = "quick", limit: str = "{}", seconds: str = "600") -> Any:
    return compiled(SLOW.replace("LIMIT", limit).replace("LAST", last).replace("SECONDS", seconds))


def holds(session: RunSession, *keys: str) -> bool:
    return {lease.key for lease in session.leases.values()} >= set(keys)


ASKING = ("/each[00000]/deep/ask", "/each[00001]/deep/ask")
TELLING = ("/each[00000]/finally/told", "/each[00001]/finally/told")


async def _cancelled(form: Any) -> tuple[RunSession, Store]:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(slow(), LETTERS)
        await until(lambda: holds(session, *ASKING), what="the questions")
        process.driver.cancel(RUN, form)
        async with asyncio.timeout(30):
            await session.ended.wait()
    return session, store


@pytest.mark.parametrize("form", ["Cancel", "Stop"])
async def test_cancel_and_stop_end_a_run_without_it(form: str) -> None:
    session, store = await _cancelled(form)
    assert session.projection()["phase"] == "Cancelled"
    assert not [r for r in await sound(store) if "/finally" in r.path]


async def test_cancel_and_finally_runs_it_from_the_inside_out_and_also_when_the_driver_dies_in_between() -> None:
    session, store = await _cancelled("CancelAndFinally")
    assert session.projection()["phase"] == "Cancelled"
    log = await sound(store)
    paths = [r.path for r in log if r.core is not None]
    for item in ("/each[00000]", "/each[00001]"):
        steps = [f"{item}/deep/finally/inner", f"{item}/finally!open", f"{item}/finally/told", "/finally!open"]
        assert [paths.index(step) for step in steps] == sorted(paths.index(step) for step in steps)
        assert output(log, f"{item}/deep/finally/inner") == {"how": "Cancelled"}
        call = next(r for r in log if r.path == f"{item}/finally/told")
        assert call.core is not None
        assert call.envelope["values"][call.core["input"]]["inline"] == {"how": "Cancelled", "why": "Cancelled"}
    assert output(log, "/finally/last") == {"how": "Cancelled"}
    await _resumed(store, session, start=next(i for i, r in enumerate(body(log)) if r.type == "cancel") + 1, step=1)


async def test_one_that_has_begun_goes_on_after_cancel_and_is_broken_off_by_stop_alone() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(slow(last="slow"), LETTERS)
        await until(lambda: holds(session, *ASKING), what="the questions")
        process.driver.cancel(RUN, "CancelAndFinally")
        await until(lambda: holds(session, *TELLING), what="finally of the items")
        process.driver.cancel(RUN, "Cancel")
        assert holds(session, *TELLING)
        process.driver.cancel(RUN, "Stop")
        async with asyncio.timeout(30):
            await session.ended.wait()
    assert session.projection()["phase"] == "Cancelled"
    log = await sound(store)
    assert [r.envelope["form"] for r in log if r.type == "cancel"] == ["CancelAndFinally", "Stop"]
    assert not [r for r in log if r.path == "/finally!open"]


@pytest.mark.parametrize(
    ("more", "reason"), [({"limit": "{seconds: 0.5}"}, "TimedOut"), ({"seconds": "0.5"}, "TimedOut")]
)
async def test_it_runs_when_the_time_of_the_run_or_of_what_runs_the_template_is_up(more: Any, reason: str) -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(slow(**more), LETTERS)
    shown = session.projection()
    assert (shown["phase"], shown["reason"]) == ("Failed", reason)
    log = await sound(store)
    for item in ("/each[00000]", "/each[00001]"):
        assert output(log, f"{item}/deep/finally/inner") == {"how": "Failed"}
        assert output(log, f"{item}/finally/told") == {"text": "told"}
    fired = next(i for i, r in enumerate(body(log)) if r.type == "timer_fired")
    await _resumed(store, session, start=fired + 1)


LATE = """
  nodes:
    - name: sub
      graph: {template: slow}
    - name: fails
      with: {a: "0"}
      code: 1 // a
      output: {type: integer}
  output: {v: nodes.sub.output.v, w: nodes.fails.output}
  templates:
    - name: slow
      nodes:
        - name: ask
          llm: {ref: slow, prompt: Now}
      output: {v: nodes.ask.output.text}
      finally:
        - name: told
          transform: {done: "True"}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec: {protocol: scripted, model: m, scripted: {replies: [{match: Now, reply: late, delaySeconds: 2}]}}
"""


async def test_what_begins_in_the_log_only_after_the_run_has_failed_ends_once_and_with_its_finally() -> None:
    store = new_store()
    async with Process(store) as process:
        await process.run(compiled(LATE), {})
    log = await sound(store)
    paths = [record.path for record in body(log)]
    assert paths.index("/fails") < paths.index("/sub/ask") < paths.index("/sub/finally!open")
    for records in range(paths.index("/sub/ask") + 1, len(paths) + 1):
        there = await cut(log, records, blobs=store)
        async with Process(there) as process:
            session = await process.run(None, epoch=1)
        ended = [record.path for record in await sound(there) if record.core is not None]
        at = f"cut after {records} records"
        assert session.projection()["phase"] == "Failed", at
        assert ended.count("/sub!output") == ended.count("/sub/finally/told") == 1, at
        assert ended.index("/sub/finally/told") < ended.index("/sub!output"), at

"""`finally`, the three forms of `cancel`, and `limits.seconds`: how runs end, live and after a cut at any record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from crashes import RUN, Process, Struck, body, cut, new_store, read, results, sound, until
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, Store
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from manifests import compiled

SPEC = """
  input: {k: {type: integer}, rows: {type: array, items: {type: integer}}}
  state: [{name: seen, schema: {type: array, items: {type: integer}}, merge: append}]
  nodes:
    - name: half
      with: {k: input.k}
      code: 100 // k
      output: {type: integer}
      writes: {seen: "[output]"}
    - name: each
      after: [half]
      map: {items: input.rows, as: row, template: one}
    - name: sum
      with: {rows: nodes.each.output.items}
      transform: {v: "sum([row.v for row in rows])"}
  output: {total: nodes.sum.output.v}
  finally:
    - name: note
      with:
        how: run.outcome
        why: "run.failure.code if run.failure else ''"
        where: "run.failure.path if run.failure else ''"
        half: nodes.half.output
        sum: "nodes.sum.output.v if nodes.sum.output else None"
        seen: state.seen
      transform: {how: how, why: why, where: where, half: half, sum: sum, seen: seen}
      output:
        how: {type: string}
        why: {type: string}
        where: {type: string}
        half: {type: [integer, 'null']}
        sum: {type: [integer, 'null']}
        seen: {type: array, items: {type: integer}}
    - name: every
      map: {items: input.rows, as: row, template: one}
    - name: after
      with: {v: nodes.every.output.total, how: nodes.note.output.how}
      graph: {template: told}
  templates:
    - name: one
      input: {row: {type: integer}}
      nodes:
        - name: plus
          with: {row: input.row}
          transform: {v: row + 1}
      output: {v: nodes.plus.output.v}
    - name: told
      input: {v: {type: integer}, how: {type: string}}
      nodes:
        - name: text
          with: {v: input.v, how: input.how}
          transform: {text: "f'{how} {v}'"}
      output: {text: nodes.text.output.text}
"""

SLOW = """
  input: {q: {type: string}}
  limits: LIMIT
  nodes:
    - name: first
      transform: {text: "'a'"}
    - name: ask
      with: {q: input.q, text: nodes.first.output.text}
      llm: {ref: slow, prompt: "{{ q }} {{ text }}"}
      retry: {transient: 0}
    - name: last
      with: {text: nodes.ask.output.text}
      transform: {text: text}
  output: {text: nodes.last.output.text}
  finally:
    - name: tell
      with: {how: run.outcome, why: "run.failure.code if run.failure else ''"}
      transform: {text: "how + ' ' + why"}
    - name: wait
      with: {text: nodes.tell.output.text}
      llm: {ref: LAST, prompt: "{{ text }}"}
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


def slow(*, last: str = "quick", seconds: float | None = None) -> CompiledGraph:
    limit = "{}" if seconds is None else f"{{seconds: {seconds}}}"
    return compiled(SLOW.replace("LIMIT", limit).replace("LAST", last))


def phases(session: RunSession) -> dict[str, str]:
    return {row["name"]: row["phase"] for row in session.projection()["nodes"]}


def output(log: list[Record], path: str) -> Any:
    record = next(r for r in log if r.path == path and r.core is not None)
    assert record.core is not None
    return record.envelope["values"][record.core["delta"]]["inline"]


GOOD, BAD = {"k": 5, "rows": [1, 2]}, {"k": 0, "rows": [1, 2]}


async def test_after_success_it_sees_how_the_run_ended_and_what_it_came_to() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(SPEC), GOOD)
    assert session.projection()["phase"] == "Succeeded"
    assert session.projection()["progress"] == "8/8"
    assert session.engine.output == {"total": 5}
    log = await sound(store)
    assert output(log, "/finally/note") == {
        "how": "Succeeded", "why": "", "where": "", "half": 20, "sum": 5, "seen": [20],
    }  # fmt: skip
    assert output(log, "/finally/after!output") == {"text": "Succeeded 2"}
    paths = [r.path for r in log if r.core is not None]
    assert paths.index("/!output") < paths.index("/finally!open") < paths.index("/finally/note")
    assert set(phases(session).values()) == {"Succeeded"}


async def test_after_a_failure_it_runs_too_and_the_failure_stays_that_of_the_run() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(SPEC), BAD)
    shown = session.projection()
    assert (shown["phase"], shown["reason"]) == ("Failed", "ExpressionFailure")
    assert output(await sound(store), "/finally/note") == {
        "how": "Failed", "why": "ExpressionFailure", "where": "/half", "half": None, "sum": None, "seen": [],
    }  # fmt: skip
    assert phases(session) == {
        "half": "Failed", "each": "NotRun", "sum": "NotRun",
        "note": "Succeeded", "every": "Succeeded", "after": "Succeeded",
    }  # fmt: skip


BROKEN = SPEC.replace("how: run.outcome\n", 'how: "run.outcome if input.k > 7 else str(1 // 0)"\n')


@pytest.mark.parametrize(("k", "reason"), [(5, "/finally/note"), (0, "/half")])
async def test_a_failure_in_it_stops_only_what_comes_after_and_fails_a_run_that_had_succeeded(
    k: int, reason: str
) -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.run(compiled(BROKEN), {**GOOD, "k": k})
    shown = session.projection()
    assert shown["phase"] == "Failed"
    assert shown["message"].startswith(reason)
    assert [f["path"] for f in shown["failures"]][-1] == "/finally/note"
    found = phases(session)
    assert (found["note"], found["every"], found["after"]) == ("Failed", "Succeeded", "NotRun")
    await sound(store)


@pytest.mark.parametrize("input", [GOOD, BAD])
async def test_cut_after_any_record_it_ends_in_the_same_state(input: Any) -> None:
    store = new_store()
    async with Process(store) as process:
        whole = await process.run(compiled(SPEC), input)
    log = await sound(store)
    for records in range(len(body(log)) + 1):
        there = await cut(log, records, blobs=store)
        async with Process(there) as process:
            session = await process.run(None, epoch=1)
        at = f"cut after {records} records"
        assert session.facts.state_hash == whole.facts.state_hash, at
        assert results(await sound(there)) == results(log), at
        assert phases(session) == phases(whole), at


async def _when(
    graph: CompiledGraph, input: Any, reached: Callable[[RunSession], bool], then: Callable[..., None]
) -> Any:
    """A run to which `then` happens once it is so far; its session and log."""
    store = new_store()
    async with Process(store) as process:
        session = await process.open(graph, input)
        await until(lambda: reached(session), what="the point of the run")
        then(process.driver)
        async with asyncio.timeout(30):
            await session.ended.wait()
    return session, await sound(store)


def asking(session: RunSession) -> bool:
    return any(lease.key == "/ask" for lease in session.leases.values())


def waiting(session: RunSession) -> bool:
    return any(lease.key == "/finally/wait" for lease in session.leases.values())


async def test_cancel_ends_a_run_without_its_finally() -> None:
    session, log = await _when(slow(), {"q": "x"}, asking, lambda driver: driver.cancel(RUN, "Cancel"))
    assert session.projection()["phase"] == "Cancelled"
    assert phases(session) == {
        "first": "Succeeded", "ask": "Cancelled", "last": "NotRun", "tell": "NotRun", "wait": "NotRun",
    }  # fmt: skip
    assert not [r for r in log if r.path.startswith("/finally")]


async def test_cancel_and_finally_runs_it_and_the_run_stays_cancelled() -> None:
    session, log = await _when(slow(), {"q": "x"}, asking, lambda driver: driver.cancel(RUN, "CancelAndFinally"))
    assert session.projection()["phase"] == "Cancelled"
    assert output(log, "/finally/tell") == {"text": "Cancelled Cancelled"}
    assert output(log, "/finally/wait") == {"text": "told"}
    assert phases(session)["ask"] == "Cancelled"


async def test_only_stop_breaks_it_off() -> None:
    def end(driver: Any) -> None:
        driver.cancel(RUN, "Cancel")
        driver.cancel(RUN, "CancelAndFinally")
        driver.cancel(RUN, "Stop")
        driver.cancel(RUN, "Stop")

    store = new_store()
    async with Process(store) as process:
        session = await process.open(slow(last="slow"), {"q": "x"})
        await until(lambda: asking(session), what="the question")
        process.driver.cancel(RUN, "CancelAndFinally")
        await until(lambda: waiting(session), what="the last node of finally")
        end(process.driver)
        async with asyncio.timeout(30):
            await session.ended.wait()
    log = await sound(store)
    assert [r.envelope["form"] for r in log if r.type == "cancel"] == ["CancelAndFinally", "Stop"]
    assert session.projection()["phase"] == "Cancelled"
    assert (phases(session)["tell"], phases(session)["wait"]) == ("Succeeded", "Cancelled")


async def test_a_run_that_failed_stays_failed_when_its_finally_is_stopped() -> None:
    graph = compiled(SLOW.replace("LIMIT", "{}").replace("LAST", "slow").replace("\"'a'\"", "str(1 // 0)"))
    session, _ = await _when(graph, {"q": "x"}, waiting, lambda driver: driver.cancel(RUN, "Stop"))
    assert (session.projection()["phase"], session.projection()["reason"]) == ("Failed", "ExpressionFailure")


async def test_a_run_that_succeeded_is_cancelled_when_its_finally_is_stopped() -> None:
    graph = compiled(
        SLOW.replace("LIMIT", "{}")
        .replace("LAST", "slow")
        .replace('{ref: slow, prompt: "{{ q }}', '{ref: quick, prompt: "{{ q }}')
    )
    session, log = await _when(graph, {"q": "x"}, waiting, lambda driver: driver.cancel(RUN, "Stop"))
    assert session.projection()["phase"] == "Cancelled"
    assert output(log, "/!output") == {"text": "told"}


async def test_a_run_whose_time_is_up_fails_and_runs_its_finally() -> None:
    session, log = await _when(slow(seconds=0.3), {"q": "x"}, lambda session: True, lambda driver: None)
    shown = session.projection()
    assert (shown["phase"], shown["reason"]) == ("Failed", "TimedOut")
    assert output(log, "/finally/tell") == {"text": "Failed TimedOut"}
    assert [r.type for r in log if r.path == "/" and r.type.startswith("timer")] == ["timer_set", "timer_fired"]
    assert phases(session)["ask"] == "Cancelled"


async def test_the_time_of_a_run_counts_from_its_start_also_over_the_death_of_its_driver() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(slow(seconds=0.2), {"q": "x"})
        await until(lambda: asking(session), what="the question")
        log = await read(store)
    kept = [r for r in body(log) if r.type != "timer_fired"]
    there = await cut([*log[:2], *kept], len(kept), blobs=store)
    async with Process(there) as process:
        again = await process.run(None, epoch=1, seconds=30)
    assert again.projection()["reason"] == "TimedOut"
    assert sum(r.type == "timer_set" for r in await sound(there)) == 1


async def test_a_run_that_ends_in_time_is_not_timed_out() -> None:
    store = new_store()
    graph = compiled(SPEC.replace("  nodes:\n    - name: half", "  limits: {seconds: 600}\n  nodes:\n    - name: half"))
    async with Process(store) as process:
        session = await process.run(graph, GOOD)
    assert session.projection()["phase"] == "Succeeded"


LOCK_STEP = RunnerSettings(branches=1, processes=1, window=1)


@pytest.mark.parametrize("form", ["Cancel", "CancelAndFinally", "Stop"])
async def test_cancelled_at_any_record_live_and_resumed_it_ends_the_same_way(form: Any) -> None:
    """Also with the driver dying behind the cancel record: the next one ends the run as the record says."""
    store = new_store()
    async with Process(store) as process:
        await process.run(compiled(SPEC), GOOD)
    count = len(body(await read(store)))
    for records in range(count + 1):
        at = f"{form} at record {records}"
        store = new_store()
        struck = Struck(store, at=records + 2)
        async with Process(struck, runner=LOCK_STEP) as process:
            struck.blow = lambda process=process: process.driver.cancel(RUN, form)  # type: ignore[misc]
            if records == 0:
                struck.at = None
            session = await process.open(compiled(SPEC), GOOD)
            if records == 0:
                process.driver.cancel(RUN, form)
            async with asyncio.timeout(60):
                await session.ended.wait()
        log = await sound(store)
        _check_end(session, log, form, at)
        await _resumed(store, log, session, at)


def _check_end(session: RunSession, log: list[Record], form: str, at: str) -> None:
    begun = next((i for i, r in enumerate(log) if r.path == "/finally!open"), None)
    asked = next((i for i, r in enumerate(log) if r.type == "cancel"), None)
    found = phases(session)
    assert set(found.values()) <= {"Succeeded", "Cancelled", "NotRun"}, at
    if form == "CancelAndFinally" or asked is None or (begun is not None and form == "Cancel"):
        assert {found[name] for name in ("note", "every", "after")} == {"Succeeded"}, at
    if begun is None:
        assert session.projection()["phase"] == "Cancelled", at
        assert found["note"] == "NotRun", at
    if form == "Stop" and asked is not None and session.projection()["phase"] != "Succeeded":
        assert session.projection()["phase"] == "Cancelled", at


async def _resumed(store: Store, log: list[Record], whole: RunSession, at: str) -> None:
    """Opened anew behind its cancel record, and behind each record that came after it, it ends as it did."""
    asked = next((i for i, r in enumerate(body(log)) if r.type == "cancel"), None)
    if asked is None:
        return
    for records in range(asked + 1, len(body(log)) + 1):
        there = await cut(log, records, blobs=store)
        async with Process(there) as process:
            session = await process.run(None, epoch=1)
        assert session.facts.state_hash == whole.facts.state_hash, f"{at}, cut after {records}"
        assert phases(session) == phases(whole), f"{at}, cut after {records}"
        await sound(there)

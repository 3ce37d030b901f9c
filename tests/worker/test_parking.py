"""What waits for people holds no runner and no place in the `concurrency` of its maps; and runs that are suspended."""

from __future__ import annotations

import asyncio
import re
from textwrap import indent
from typing import Any

import orjson
import pytest

from crashes import RUN, Process, body, cut, new_store, read, sound, until
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Values
from decurion_worker.approving import Answer
from decurion_worker.engine import Asked, Engine
from decurion_worker.loading import applied
from decurion_worker.session import RunSession
from manifests import compiled

MANY = """
  input: {rows: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      map: {items: input.rows, as: row, template: one, concurrency: 2}
  output: {paid: nodes.each.output.items}
  templates:
    - name: one
      input: {row: {type: integer}}
      nodes:
        - name: review
          with: {row: input.row}
          approval: {message: "Pay {{ row }}?", onReject: continue}
        - name: pay
          with: {row: input.row, ok: nodes.review.output.approved}
          transform: {paid: "row if ok else 0"}
      output: {paid: nodes.pay.output.paid}
"""
NESTED = """
  input: {rows: {type: array, items: {type: array, items: {type: integer}}}}
  nodes:
    - name: each
      map: {items: input.rows, as: row, template: outer, concurrency: 1}
  output: {paid: nodes.each.output.items}
  templates:
    - name: outer
      input: {row: {type: array, items: {type: integer}}}
      nodes:
        - name: inner
          with: {row: input.row}
          graph: {template: rows}
      output: {paid: nodes.inner.output.paid}
    - name: rows
      input: {row: {type: array, items: {type: integer}}}
      nodes:
        - name: all
          map: {items: input.row, as: one, template: ask, concurrency: 1}
      output: {paid: "[found.paid for found in nodes.all.output.items]"}
    - name: ask
      input: {one: {type: integer}}
      nodes:
        - name: review
          with: {one: input.one}
          approval: {message: "Pay {{ one }}?"}
        - name: pay
          with: {one: input.one, ok: nodes.review.output.approved}
          transform: {paid: "one if ok else 0"}
      output: {paid: nodes.pay.output.paid}
"""

REFINE = """    - name: refine
      with: {row: input.row}
      loop: {template: round, next: {row: output.row}, maxIterations: 2, onExhausted: succeed}
  output: {paid: nodes.refine.output.row}
"""
ROUND = """    - name: round
      input: {row: {type: integer}}
      nodes:
        - name: review
          with: {row: input.row}
          approval: {message: "Pay {{ row }}?"}
        - name: pay
          with: {row: input.row, ok: nodes.review.output.approved}
          transform: {row: "row + 1 if ok else 0"}
      output: {row: nodes.pay.output.row}
"""
LOOP = f"""  input: {{row: {{type: integer}}}}
  nodes:
{REFINE}  templates:
{ROUND}"""
ROUNDS = f"""  input: {{rows: {{type: array, items: {{type: integer}}}}}}
  nodes:
    - name: each
      map: {{items: input.rows, as: row, template: one, concurrency: 1}}
  output: {{paid: "[found.paid for found in nodes.each.output.items]"}}
  templates:
    - name: one
      input: {{row: {{type: integer}}}}
      nodes:
{indent(REFINE, "    ")}{ROUND}"""

AFTERWARDS = """
  input: {rows: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      map: {items: input.rows, as: row, template: one, concurrency: 1}
  output: {paid: "[found.paid for found in nodes.each.output.items]"}
  templates:
    - name: one
      input: {row: {type: integer}}
      nodes:
        - name: review
          with: {row: input.row}
          approval: {message: "Pay {{ row }}?"}
        - name: parts
          after: [review]
          map: {items: "[input.row]", as: row, template: part}
      output: {paid: "sum([part.paid for part in nodes.parts.output.items])"}
    - name: part
      input: {row: {type: integer}}
      nodes:
        - name: pay
          with: {row: input.row}
          transform: {paid: row}
        - name: check
          after: [pay]
          approval: {message: "Was it paid?"}
      output: {paid: nodes.pay.output.paid}
"""


async def asked(session: RunSession, count: int) -> list[Asked]:
    """The open requests, once the run waits for so many people."""
    await until(
        lambda: session.engine.awaiting or session.ended.is_set(), what="a run that waits for people", seconds=120
    )
    found = list(session.engine.approvals.pending())
    assert len(found) == count, session.projection()
    return found


def yes(one: Asked, by: str = "alice") -> Answer:
    return Answer(f"{by}-{one.request}", one.request, one.digest, "Approve", by)


async def opened(process: Process, graph: CompiledGraph, rows: Any) -> RunSession:
    return await process.open(graph, {"rows": rows})


async def test_a_map_goes_on_with_other_items_while_people_decide_about_some() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await opened(process, compiled(MANY), [1, 2, 3, 4, 5])
        found = await asked(session, 5)
        row = session.projection()["nodes"][0]
        assert (row["phase"], row["waiting"], row.get("running", 0)) == ("Waiting", 5, 0)
        assert process.driver.load == 0
        await asyncio.gather(*(session.answer(yes(one)) for one in reversed(found)))
        await until(session.ended.is_set, what="the end of the run")
        assert session.projection()["output"] == {"paid": [{"paid": n} for n in (1, 2, 3, 4, 5)]}
    await sound(store)


async def test_no_more_items_than_the_map_allows_go_on_however_many_are_decided_at_once() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await opened(process, compiled(MANY), [1, 2, 3, 4, 5])
        found = await asked(session, 5)
        await process.executor.scale(0)
        await asyncio.gather(*(session.answer(yes(one)) for one in found))
        await until(lambda: not session.engine.deciding and session.engine.pending > 0, what="work that may start")
        tasks = session.engine.take(100)
        assert [task.key for task in tasks] == ["/each[00000]/pay", "/each[00001]/pay"]
        assert session.engine.take(100) == []
        session.engine.give_back(tasks[0].key)
        assert [task.key for task in session.engine.take(100)] == ["/each[00000]/pay"]


SEVERAL = """
  input: {rows: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      map: {items: input.rows, as: row, template: one, concurrency: 1}
  output: {paid: "[found.paid for found in nodes.each.output.items]"}
  templates:
    - name: one
      input: {row: {type: integer}}
      nodes:
        - name: review
          with: {row: input.row}
          approval: {message: "Pay {{ row }}?"}
        - name: pay
          after: [review]
          with: {row: input.row}
          transform: {paid: row}
        - name: book
          after: [review]
          with: {row: input.row}
          transform: {paid: row}
      output: {paid: nodes.pay.output.paid + nodes.book.output.paid}
"""


async def test_all_of_an_item_that_waited_for_room_goes_on_once_there_is_some() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await opened(process, compiled(SEVERAL), [1, 2, 3])
        await asyncio.gather(*(session.answer(yes(one)) for one in await asked(session, 3)))
        await until(session.ended.is_set, what="the end of the run")
        assert session.projection()["output"] == {"paid": [2, 4, 6]}
    await sound(store)


async def test_a_new_driver_parks_what_the_last_one_had_parked() -> None:
    store = new_store()
    async with Process(store) as process:
        first = [one.request for one in await asked(await opened(process, compiled(MANY), [1, 2, 3]), 3)]
    async with Process(store) as process:
        session = await process.open(None, epoch=1)
        found = await asked(session, 3)
        assert [one.request for one in found] == first
        await process.executor.scale(0)
        await asyncio.gather(*(session.answer(yes(one)) for one in found))
        await until(lambda: not session.engine.deciding and session.engine.pending > 0, what="work that may start")
        assert len(session.engine.take(100)) == 2


async def test_maps_in_maps_that_wait_do_not_stand_in_the_way_of_one_another() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await opened(process, compiled(NESTED), [[1, 2], [3], [], [4, 5]])
        found = await asked(session, 5)
        for one in found:
            assert (await session.answer(yes(one))).accepted
        await until(session.ended.is_set, what="the end of the run")
        assert session.projection()["output"] == {"paid": [{"paid": p} for p in ([1, 2], [3], [], [4, 5])]}
    await sound(store)


async def answered(session: RunSession) -> None:
    """See a run to its end by answering, one by one, whatever it waits for."""
    while True:
        await until(lambda: session.ended.is_set() or session.engine.awaiting, what="a run that waits, or its end")
        if session.ended.is_set():
            return
        assert (await session.answer(yes(next(session.engine.approvals.pending())))).accepted


async def test_rounds_that_ask_are_parked_by_every_driver_and_go_on_in_the_room_that_there_is() -> None:
    store, graph = new_store(), compiled(ROUNDS)
    async with Process(store) as process:
        session = await opened(process, graph, [1, 2])
        await answered(session)
    whole, values = await sound(store), Values(store, RUN)
    engine = Engine(graph, input={"rows": [1, 2]}, facts=whole[0].envelope["facts"])
    for slot, record in enumerate(whole[2:], start=2):
        engine.apply(await applied(values, engine, slot, record))
        if record.path == "/each[00000]/refine@002!open":
            assert (engine.opened["/each"].running, engine.opened["/each"].parked) == (2, 1)


async def test_a_run_whose_loop_asks_waits_for_people_under_every_driver() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(compiled(LOOP), {"row": 1})
        await answered(session)
    whole = await sound(store)
    (asked_again,) = [i for i, record in enumerate(body(whole), start=1) if record.path == "/refine@002/review!open"]
    for records in range(asked_again - 2, asked_again + 2):
        there = await cut(whole, records, blobs=store)
        async with Process(there) as process:
            session = await process.open(None, epoch=1)
            await answered(session)
        assert session.engine.output == {"paid": 3}
        await sound(there)


async def test_two_thousand_that_wait_have_a_small_status_and_are_decided_one_by_one() -> None:
    store, count = new_store(), 2000
    async with Process(store) as process:
        session = await opened(process, compiled(MANY.replace("concurrency: 2", "concurrency: 64")), list(range(count)))
        found = await asked(session, count)
        shown = session.projection()
        assert shown["pendingApprovals"] == count
        assert len(shown["approvals"]) == 20
        assert len(orjson.dumps(shown)) < 16 * 1024
        assert sum(len(one.message) for one in found) < 64 * count
        await asyncio.gather(*(session.answer(yes(one)) for one in found))
        await until(session.ended.is_set, what="the end of the run", seconds=120)
        assert sum(row["paid"] for row in session.engine.output["paid"]) == sum(range(count))


async def test_a_suspended_run_starts_nothing_until_it_is_resumed() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await opened(process, compiled(MANY), [1, 2])
        found = await asked(session, 2)
        session.suspend(True)
        session.suspend(True)
        await until(lambda: session.projection()["phase"] == "Suspended", what="the suspension")
        for one in found:
            assert (await session.answer(yes(one))).accepted
        await until(lambda: not session.engine.deciding, what="the decisions")
        assert session.engine.pending == 0
        assert session.projection()["phase"] == "Suspended"
    async with Process(store) as process:
        session = await process.open(None, epoch=1)
        assert session.projection()["phase"] == "Suspended"
        assert not session.ended.is_set()
        session.suspend(False)
        await until(session.ended.is_set, what="the end of the run")
        assert session.projection()["phase"] == "Succeeded"
    assert [r.type for r in await sound(store) if r.path == "/" and r.core is None][1:-1] == [
        "suspended", "fence", "resumed",
    ]  # fmt: skip


async def test_what_began_before_a_suspension_ends() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(compiled(SLOW), {"rows": [1]})
        await until(lambda: bool(session.engine.out), what="work in progress")
        session.suspend(True)
        await until(lambda: session.engine.suspended, what="the suspension")
        assert (session.projection()["phase"], session.projection()["reason"]) == ("Running", "Suspending")
        await until(lambda: session.projection()["phase"] == "Suspended", what="the end of what began")
        assert any(r.path == "/one" for r in await read(store))
        assert not any(r.path == "/two" for r in await read(store))
        session.suspend(False)
        await until(session.ended.is_set, what="the end of the run")


SLOW = """
  input: {rows: {type: array, items: {type: integer}}}
  nodes:
    - name: one
      with: {rows: input.rows}
      llm: {ref: slow, prompt: "{{ rows }}"}
    - name: two
      with: {text: nodes.one.output.text}
      transform: {$value: text}
  output: {text: nodes.two.output}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec: {protocol: scripted, scripted: {replies: [{reply: done, delaySeconds: 0.5}]}}
"""


@pytest.mark.parametrize("leaf", [True, False])
async def test_a_branch_that_goes_on_after_a_take_over_counts_wherever_in_it_that_is(leaf: bool) -> None:
    spec = (
        re.sub(r"\n        - name: check.*?\n      output", "\n      output", AFTERWARDS, flags=re.S)
        if leaf
        else AFTERWARDS
    )
    store, graph = new_store(), compiled(spec.removeprefix("\n"))
    async with Process(store) as process:
        session = await opened(process, graph, [1, 2])
        await answered(session)
    whole, values = await sound(store), Values(store, RUN)
    engine = Engine(graph, input={"rows": [1, 2]}, facts=whole[0].envelope["facts"])
    for slot, record in enumerate(whole[2:], start=2):
        engine.apply(await applied(values, engine, slot, record))
        if record.path == "/each[00000]/parts!open":
            break
    each = engine.opened["/each"]
    (task,) = engine.take(5)
    assert task.key == ("/each[00000]/parts[00000]" if leaf else "/each[00000]/parts[00000]/pay")
    assert (each.running, each.parked) == (2, 1), "the map has room for one"

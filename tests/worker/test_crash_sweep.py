"""Every record of every reference graph is a crash point, and a point at which the run is cancelled.

A process dies with its driver and its runners; the next one opens the run where its log ends. Afterwards the run has
the state hash of an undisturbed run, every path is committed once, the verifier finds nothing, and the model was asked
exactly once for all that was not durable when the process died.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from crashes import RUN, Process, Struck, body, call_key, calls, cut, new_store, read, results, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import LogWriter, Record
from decurion_worker.runner import RunnerSettings
from graphs import map_reduce, nested, tolerant
from model_server import ModelServer, start_model_server

REFERENCE = ("map_reduce", "nested", "tolerant", "calls")
MAX_RECORDS = 60


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with start_model_server() as server:
        yield server


def reference(name: str, model: ModelServer) -> tuple[CompiledGraph, Any]:
    made: dict[str, tuple[CompiledGraph, Any]] = {
        "map_reduce": (map_reduce(), {"n": 3}),
        "nested": (nested(), {"rows": [[1, 2], [3]]}),
        "tolerant": (tolerant(), {"items": [1, 0, 5]}),
        "calls": (calls(model.endpoint), {"items": ["a", "b", "c"]}),
    }
    return made[name]


class Whole:
    """An undisturbed run: its log and its state."""

    def __init__(self, compiled: CompiledGraph, input: Any, log: list[Record]) -> None:
        self.compiled = compiled
        self.input = input
        self.log = log
        self.state = log[-1].envelope["state"]
        self.called = {r.path for r in log if r.envelope.get("usage")}


@pytest.fixture(params=REFERENCE)
async def whole(request: pytest.FixtureRequest, model: ModelServer) -> Whole:
    compiled, input = reference(request.param, model)
    store = new_store()
    async with Process(store) as process:
        await process.run(compiled, input)
    log = await sound(store)
    assert len(log) <= MAX_RECORDS
    return Whole(compiled, input, log)


def durable(log: list[Record]) -> set[str]:
    """Keys of the model calls whose answers are in a log."""
    return {call_key(r.path) for r in log if r.envelope.get("usage")}


def since(model: ModelServer, before: Counter[str]) -> Counter[str]:
    return model.keys() - before


async def test_after_any_record_a_new_driver_finishes_to_the_same_state(whole: Whole, model: ModelServer) -> None:
    for records in range(len(body(whole.log)) + 1):
        store = await cut(whole.log, records)
        there, before = await read(store), model.keys()
        async with Process(store) as process:
            session = await process.run(None, epoch=1)
        log = await sound(store)
        at = f"cut after {records} records"
        assert session.facts.state_hash == whole.state, at
        assert results(log) == results(whole.log), at
        missing = {call_key(p) for p in whole.called} - durable(there)
        assert since(model, before) == Counter(dict.fromkeys(missing, 1)), at
        assert session.facts.attempt == 2, at


LOCK_STEP = RunnerSettings(branches=1, processes=1, window=1)
"""One item and one record at a time, so that nearly every record is a segment."""


@pytest.mark.parametrize(("step", "runner"), [(1, LOCK_STEP), (3, LOCK_STEP), (1, None), (5, None)])
async def test_a_run_whose_every_process_dies_ends_in_the_same_state(
    whole: Whole, model: ModelServer, step: int, runner: RunnerSettings | None
) -> None:
    """Each process dies, work in flight and all, when it has committed `step` records beside its own fence."""
    store, before = new_store(), model.keys()
    lives, log = 0, list[Record]()
    while not log or log[-1].type != "close":
        asked = {key: since(model, before)[key] for key in durable(log)}
        await _live_and_die(Struck(store, at=step + (1 if lives else 2)), whole, lives, runner)
        lives += 1
        log = await read(store)
        again = [key for key, count in asked.items() if since(model, before)[key] != count]
        assert not again, f"life {lives} asked for what was durable"
    async with Process(store) as process:
        session = await process.run(None, epoch=lives)
    log = await sound(store)
    assert session.facts.state_hash == whole.state
    assert results(log) == results(whole.log)
    assert sum(r.type == "fence" for r in log) == lives
    if runner is LOCK_STEP:
        assert lives > len(body(whole.log)) // (2 * step), "too few processes died for the test to mean much"


async def _live_and_die(struck: Struck, whole: Whole, lives: int, runner: RunnerSettings | None) -> None:
    async with Process(struck, runner=runner) as process, asyncio.timeout(60):
        opening = asyncio.create_task(process.open(None if lives else whole.compiled, whole.input, epoch=lives))
        died = asyncio.create_task(struck.dead.wait())
        await asyncio.wait([died, opening], return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            ended = asyncio.create_task(opening.result().ended.wait())
            await asyncio.wait([died, ended], return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        opening.cancel()
        died.cancel()


async def test_cancelled_at_any_record_a_run_ends_cancelled_and_stays_so(whole: Whole, model: ModelServer) -> None:
    """Once live, work in flight and all; once with the driver dying behind the cancel record."""
    for records in range(len(body(whole.log)) + 1):
        at = f"cancelled at record {records}"
        store = new_store()
        struck = Struck(store, at=records + 2)
        async with Process(struck) as process:
            struck.blow = lambda process=process: process.driver.cancel(RUN, "Cancel")  # type: ignore[misc]
            if records == 0:  # the blow needs the session, which is there once the run is open
                struck.at = None
            session = await process.open(whole.compiled, whole.input)
            if records == 0:
                process.driver.cancel(RUN, "Cancel")
            async with asyncio.timeout(60):
                await session.ended.wait()
        log = await sound(store)
        outcome = log[-1].envelope["outcome"]
        assert outcome == "cancelled" or results(log) == results(whole.log), at
        await _stays(store, outcome, model)

        store = await cut(whole.log, records)
        opened = await LogWriter.open(store, RUN, leader_epoch=1, driver="second", genesis=None)
        cancel = {"run": RUN, "reason": "Cancel", "at": "2026-01-01T00:00:00.000Z"}
        await opened.writer.append([Record(type="cancel", path="/", core=None, envelope=cancel, core_hash="")])
        await opened.writer.aclose()
        before = model.keys()
        async with Process(store) as process:
            session = await process.run(None, epoch=2)
        # A run whose output is in the log has ended: it was closed as such before the cancel could be read.
        ended = any(r.path == "/!output" for r in await read(store))
        assert session.projection()["phase"] == ("Succeeded" if ended else "Cancelled"), at
        assert not since(model, before), at
        await sound(store)


async def _stays(store: Any, outcome: str, model: ModelServer) -> None:
    length, before = len(await read(store)), model.keys()
    async with Process(store) as process:
        session = await process.run(None, epoch=9)
    assert session.projection()["phase"].lower() == outcome
    assert len(await read(store)) == length
    assert not since(model, before)

"""Who owns a run: drivers that begin it together, come back late, wake up, duel, or die at its very end."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

import pytest

from crashes import RUN, Process, Struck, cut, new_store, read, results, sound, until
from decurion_ledger import Settings as LogSettings
from decurion_ledger.errors import NotFound, StaleLeader
from decurion_ledger.layout import final_key
from decurion_ledger.patience import Patience
from decurion_worker.driver import DriverSettings
from graphs import code, fan_out, graph, map_reduce, nested, scope

ROWS = {"rows": [[1, 2], [3]]}


async def test_of_two_drivers_that_begin_a_run_both_have_the_graph_and_input_of_the_first() -> None:
    store = new_store()
    async with Process(store) as first:
        held: list[Any] = []

        async def overtaken(key: str) -> None:
            if not held and key.endswith("/log/000000000000"):
                held.append(await first.open(nested(), ROWS))

        async with Process(Struck(store, before=overtaken)) as second:
            session = await second.run(map_reduce(), {"n": 3})
            assert held, "nobody came between"
            assert session.facts.graph_digest == held[0].facts.graph_digest == nested().digest
            assert session.engine.output == {"rows": [{"n": 5}, {"n": 9}]}
        await until(held[0].ended.is_set, what="the first driver's end")
        assert held[0].why.startswith("Fenced")
    await sound(store)


async def test_a_leader_from_before_the_restart_of_the_driver_is_refused_and_the_run_goes_on() -> None:
    store = new_store()
    struck = Struck(store, at=4)
    async with Process(struck) as process:
        await process.open(map_reduce(), {"n": 3}, epoch=6)
        await until(struck.dead.is_set, what="the death of the driver")
    length = len(await read(store))
    async with Process(store) as process:
        with pytest.raises(StaleLeader) as refused:
            await process.open(None, epoch=5)
        assert refused.value.highest == 6
        assert len(await read(store)) == length
        session = await process.run(None, epoch=6)
        assert session.engine.output == {"sum": 9}
    await sound(store)


async def test_a_driver_that_dies_between_close_and_final_leaves_a_run_that_the_next_opening_completes() -> None:
    store = new_store()
    struck = Struck(store)

    async def dying(key: str) -> None:
        if key == final_key(RUN):
            struck.dead.set()

    struck.before = dying
    async with Process(struck) as process:
        session = await process.open(map_reduce(), {"n": 3})
        await until(struck.dead.is_set, what="the close")
        assert session.projection()["phase"] == "Running", "an end was shown before it was final"
    log = await read(store)
    assert log[-1].type == "close"
    with pytest.raises(NotFound):
        await store.get(final_key(RUN))
    async with Process(store) as process:
        again = await process.run(None, epoch=1)
        assert again.projection()["phase"] == "Succeeded"
        assert again.facts.attempt == 1
    assert await store.get(final_key(RUN))
    assert await sound(store) == log


def _endless() -> Any:
    one = scope(code("wait", "while True:\n    pass", n="input.item"), output={}, inputs=("item",))
    return graph(scope(fan_out("each", "input.items", "one"), output={}, inputs=("items",), leaf=False), one=one)


async def test_a_duel_ends_with_the_later_leader_however_often_the_other_comes_back() -> None:
    store = new_store()
    async with Process(store) as old, Process(store) as new:
        first = await old.open(_endless(), {"items": [1]}, epoch=1)
        await until(lambda: bool(first.leases), what="work of the first owner")
        winner = await new.open(None, epoch=2)
        old.driver.cancel(RUN, "Cancel")  # it has nothing else to write, and finds out by its next write
        await until(first.ended.is_set, what="the fenced driver's end")
        assert first.why.startswith("Fenced")
        for _ in range(5):
            with pytest.raises(StaleLeader):
                await old.open(None, epoch=1)
        await until(lambda: bool(winner.leases), what="work of the later owner")
        assert winner.engine.cancelled is None
        new.driver.cancel(RUN, "Cancel")
        await until(winner.ended.is_set, what="the end of the run")
    log = await sound(store)
    assert [r.envelope["leader_epoch"] for r in log if r.type == "fence"] == [1, 2]


@pytest.mark.parametrize("answer", ["lost", "done"])
async def test_when_the_store_outlasts_the_patience_the_run_waits_in_its_log(answer: Literal["lost", "done"]) -> None:
    """Whether the write whose fate is unknown arrived (`done`) or not is found out by the next opening."""
    whole_store = new_store()
    async with Process(whole_store) as process:
        whole = await process.run(nested(), ROWS)
    store = new_store()
    struck = Struck(store, at=9)
    settings = DriverSettings(log=LogSettings(patience=Patience(total=0.2, first=0.01), interval=0.02))
    async with Process(struck, settings=settings) as process:
        struck.blow = lambda: setattr(struck, "away", answer)
        session = await process.open(nested(), ROWS)
        await until(session.ended.is_set, what="the end of the patience")
        assert "is unknown" in session.why
        assert session.facts.state_hash is None
        struck.away = ""
        again = await process.run(None)
        assert again.facts.state_hash == whole.facts.state_hash
        assert again.facts.attempt == 2
    assert results(await sound(store)) == results(await read(whole_store))


async def test_a_driver_that_stood_still_does_not_blame_its_runners() -> None:
    store = new_store()
    settings = DriverSettings(lease=3.0, tick=0.75)
    async with Process(store, settings=settings, runners=2) as process:
        session = await process.open(map_reduce(), {"n": 30})
        await until(lambda: bool(session.leases), what="work at a runner")
        time.sleep(3.5)  # noqa: ASYNC251 -- the stall itself: nothing of this process runs meanwhile
        async with asyncio.timeout(60):
            await session.ended.wait()
        assert len(process.driver.runner_names()) == 2
    log = await sound(store)
    assert not [r for r in log if r.type == "lease_lost"]
    assert log[-1].envelope["outcome"] == "succeeded"


async def test_a_log_cut_in_the_middle_is_opened_once_by_any_number_of_callers_at_once() -> None:
    store = new_store()
    async with Process(store) as process:
        await process.run(nested(), ROWS)
    half = await cut(await read(store), 7)
    async with Process(half) as process:
        sessions = await asyncio.gather(*(process.open(None, epoch=1) for _ in range(12)))
        assert len(set(map(id, sessions))) == 1
        await until(sessions[0].ended.is_set, what="the end of the run")
    assert sum(r.type == "fence" for r in await sound(half)) == 2

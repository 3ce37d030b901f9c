"""Writers that were stopped, or whose machine slept: what they may still acknowledge, and what they ask for that."""

import pytest

from decurion_ledger.errors import Fenced, RunDeleted
from decurion_ledger.layout import final_key, run_prefix, slot_key, tomb_key
from decurion_ledger.stores import Counted, MemoryStore, Put, Store
from decurion_ledger.writer import Settings
from faulty import Faulty, SteppedClock
from logs import RUN, close, commit, open_log

IDLE = Settings().idle


async def collected(store: Store) -> None:
    """The run is over, and all of it is deleted behind its tomb."""
    other = await open_log(store, leader_epoch=2, driver="second")
    await other.writer.finish(close())
    await store.put_new(tomb_key(RUN), b"{}")
    for key in [info.key async for info in store.list(run_prefix(RUN))]:
        await store.delete(key)


async def test_a_writer_that_slept_while_its_run_was_collected_acknowledges_nothing() -> None:
    store, clock = MemoryStore(), SteppedClock()
    sleeper = await open_log(store, clock=clock)
    await sleeper.writer.append([commit("a")])
    await collected(store)
    clock.pass_time(IDLE + 1.0)
    # Its next slot is free again, and the store takes it.
    with pytest.raises(RunDeleted):
        await sleeper.writer.append([commit("b")])
    with pytest.raises(RunDeleted):
        await sleeper.writer.append([commit("c")])


async def test_a_driver_that_slept_while_it_opened_a_run_does_not_begin_it_again() -> None:
    store, clock = MemoryStore(), SteppedClock()

    class Sleeping(Faulty):
        async def put_new(self, key: str, data: bytes) -> Put:
            if key == slot_key(RUN, 0):
                await collected(store)
                clock.pass_time(IDLE + 1.0)
            return await super().put_new(key, data)

    with pytest.raises(RunDeleted):
        await open_log(Sleeping(store), clock=clock, driver="sleeper")


async def test_a_writer_that_slept_between_its_close_record_and_final_does_not_say_that_the_run_is_there() -> None:
    store, clock = MemoryStore(), SteppedClock()

    class Sleeping(Faulty):
        async def put_new(self, key: str, data: bytes) -> Put:
            if key == final_key(RUN):
                await open_log(store, leader_epoch=2, driver="second")  # finds it closed, and completes it
                await store.put_new(tomb_key(RUN), b"{}")
                for info in [info async for info in store.list(run_prefix(RUN))]:
                    await store.delete(info.key)
                clock.pass_time(IDLE + 1.0)
            return await super().put_new(key, data)

    sleeper = await open_log(Sleeping(store), clock=clock)
    with pytest.raises(RunDeleted):
        await sleeper.writer.finish(close())


@pytest.mark.parametrize(("seconds", "requests"), [(IDLE - 1.0, 0), (IDLE + 1.0, 2)])
async def test_the_first_commit_for_long_costs_a_look(seconds: float, requests: int) -> None:
    clock = SteppedClock()
    store = Counted(MemoryStore())
    opened = await open_log(store, clock=clock)
    await opened.writer.append([commit("a")])
    clock.pass_time(seconds)
    before = store.gets
    await opened.writer.append([commit("b")])
    assert store.gets - before == requests
    await opened.writer.append([commit("c")])
    assert store.gets - before == requests


async def test_what_a_commit_says_of_the_owner_is_enough_for_the_length_of_a_stall() -> None:
    clock = SteppedClock()
    store = Counted(MemoryStore())
    opened = await open_log(store, clock=clock)
    await opened.writer.append([commit("a")])
    before = store.gets
    clock.pass_time(4.9)
    await opened.writer.confirm_recent()
    assert store.gets == before
    clock.pass_time(0.2)
    await opened.writer.confirm_recent()
    assert store.gets == before + 2
    clock.pass_time(4.9)
    await opened.writer.confirm_recent()
    assert store.gets == before + 2


async def test_the_time_of_a_commit_counts_from_when_it_was_sent() -> None:
    """The answer came quickly, and the process slept for a while before and after it: no single stretch is a stall."""
    clock = SteppedClock()

    async def slow(key: str) -> None:
        if key.endswith("log/000000000001"):
            clock.pass_time(3.0)

    store = MemoryStore()
    opened = await open_log(Faulty(store, written=slow), clock=clock)
    await opened.writer.append([commit("a")])
    await open_log(store, leader_epoch=2, driver="second")
    clock.pass_time(3.0)
    with pytest.raises(Fenced):
        await opened.writer.confirm_recent()
    with pytest.raises(Fenced):
        await opened.writer.append([commit("b")])

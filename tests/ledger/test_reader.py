"""Reading from outside: one record by its path, all of a log, the runs of a store."""

import pytest

from decurion_ledger import Record, RecordType, find, list_runs, read_log
from decurion_ledger.errors import LogCorrupt, RunNotFound
from decurion_ledger.layout import slot_key
from decurion_ledger.stores import Counted, MemoryStore, Store
from logs import RUN, commit, in_log, open_log


async def test_a_result_is_found_by_its_path_and_preferred_to_events(store: Store) -> None:
    opened = await open_log(store)
    failed = Record.event(RecordType.ATTEMPT_FAILED, "/n3", {"try": 1})
    await opened.writer.append([commit("n1", 1), failed])
    await opened.writer.append([commit("n2", 2), commit("n3", 3), failed])
    assert await find(store, RUN, "/n1") == commit("n1", 1)
    assert await find(store, RUN, "/n3") == commit("n3", 3)
    assert await find(store, RUN, "/n4") is None


async def test_without_a_result_the_last_event_at_the_path_is_found() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    for number in range(3):
        await opened.writer.append([Record.event(RecordType.ATTEMPT_FAILED, "/n", {"try": number})])
    found = await find(store, RUN, "/n")
    assert found is not None
    assert found.envelope == {"try": 2}


async def test_a_record_is_found_in_a_log_of_many_segments_without_reading_them(store: Store) -> None:
    opened = await open_log(store)
    for start in range(0, 20):
        await opened.writer.append([commit(f"s{start}n{i}", "x" * 600) for i in range(20)])
    counted = Counted(store)
    assert await find(counted, RUN, "/s19n7") == commit("s19n7", "x" * 600)
    assert counted.gets <= 2 + 24 + 1


async def test_an_index_larger_than_the_first_guess_is_read_whole() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    await opened.writer.append([commit(f"n{i}", i) for i in range(3000)])
    for i in (0, 1, 1500, 2999):
        assert await find(store, RUN, f"/n{i}") == commit(f"n{i}", i)


async def test_runs_are_listed_by_their_ids() -> None:
    store = MemoryStore()
    for run in ("b", "a", "a.b-c"):
        await open_log(store, run)
    await store.put("bundles/aa/bb", b"")
    await store.put("runs/index", b"")
    assert await list_runs(store) == ["a", "a.b-c", "b"]


async def test_a_log_longer_than_the_read_ahead_is_read_in_order() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    for i in range(30):
        await opened.writer.append([commit(f"n{i}", i)])
    assert await in_log(store) == [(0, "genesis"), (0, "fence")] + [(i + 1, f"/n{i}") for i in range(30)]


async def test_a_gap_is_refused_where_it_is() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    for i in range(5):
        await opened.writer.append([commit(f"n{i}", i)])
    await store.delete(slot_key(RUN, 3))
    reading = read_log(store, RUN)
    assert [(await anext(reading))[0] for _ in range(4)] == [0, 0, 1, 2]
    with pytest.raises(LogCorrupt, match="000000000003: the slot is missing"):
        await anext(reading)


async def test_reading_may_stop_in_the_middle() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    await opened.writer.append([commit("a")])
    reading = read_log(store, RUN)
    assert (await anext(reading))[0] == 0
    await reading.aclose()


async def test_a_run_without_a_log_is_not_found() -> None:
    with pytest.raises(RunNotFound, match="list its runs"):
        await find(MemoryStore("x"), RUN, "/a")

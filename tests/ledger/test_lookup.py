"""One record out of a long log in few requests, whatever has become of the index."""

from __future__ import annotations

import pytest

from decurion_ledger import Record, RecordType, ends, find, find_all, read_log, verify
from decurion_ledger.copying import copy_run
from decurion_ledger.errors import LogCorrupt, RunNotFound, Unavailable
from decurion_ledger.index import SLOTS, Indexer, parse_tail, spans
from decurion_ledger.layout import final_key, index_key, run_prefix, slot_key, tail_key
from decurion_ledger.stores import Counted, MemoryStore, Put, Store
from faulty import SteppedClock
from logs import RUN, close, commit, open_log


def event(name: str, number: int) -> Record:
    return Record.event(RecordType.ATTEMPT_FAILED, f"/{name}", {"try": number})


async def grown(store: Store, segments: int, *, per: int = 1, closed: bool = True) -> None:
    """A log of so many segments with commits, and paths that have events alone."""
    opened = await open_log(store)
    for number in range(1, segments - 1 if closed else segments):
        some = [commit(f"n{number}_{i}", number) for i in range(per)]
        await opened.writer.append([*some, event("again", number), event(f"n{number}_0", 0)])
    if closed:
        await opened.writer.finish(close())
    else:
        await opened.writer.aclose()
        await Indexer(store, RUN).bring_up(segments)


async def expected(store: Store) -> dict[str, Record]:
    found: dict[str, Record] = {}
    async for _, record in read_log(store, RUN):
        if record.path not in found or found[record.path].core is None:
            found[record.path] = record
    return found


def derived(store: MemoryStore) -> dict[str, bytes]:
    return {key: data for key, data in store._objects.items() if "/index/" in key or key.endswith("/tail")}


@pytest.mark.parametrize("slots", [0, 31, 32, 33, 255, 256, 300, 2048, 10_000, 300_000])
def test_a_log_of_any_length_has_few_indexes_that_cover_it(slots: int) -> None:
    found = list(spans(slots))
    assert [first for first, _ in found] == [0, *(end for _, end in found)][: len(found)]
    assert slots - (found[-1][1] if found else 0) < SLOTS
    assert len(found) <= 7 * 6
    assert all((end - first) % SLOTS == 0 for first, end in found)
    whole = list(spans(slots, closed=True))
    assert whole[: len(found)] == found
    assert not found or whole[-1][1] == slots


@pytest.mark.parametrize("closed", [True, False])
async def test_the_number_of_requests_does_not_grow_with_the_log(closed: bool) -> None:
    store = MemoryStore()
    await grown(store, 1100, closed=closed)
    for name, needed in (("n1_0", True), ("n700_0", True), ("n1098_0", True), ("again", True), ("none", False)):
        counted = Counted(store)
        found = await find(counted, RUN, f"/{name}")
        assert (found is not None) is needed
        # tail and final, indexes and footers, the record; where no result is found the indexes are read whole, too
        wholly = len(list(spans(1100, closed=True))) if name in ("again", "none") else 0
        assert counted.gets <= 2 + 64 + 1 + wholly


@pytest.mark.parametrize("segments", [5, 40, 70, 300])
async def test_every_path_is_found_as_in_the_whole_log(segments: int) -> None:
    store = MemoryStore()
    await grown(store, segments, per=3)
    for path, record in (await expected(store)).items():
        assert await find(store, RUN, path) == record
    assert await find(store, RUN, "/nothing") is None


async def test_the_last_event_is_found_and_a_result_before_it_wins() -> None:
    store = MemoryStore()
    await grown(store, 100)
    found = await find(store, RUN, "/again")
    assert found is not None
    assert found.envelope == {"try": 98}
    assert (await find(store, RUN, "/n3_0")) == commit("n3_0", 3)


async def test_all_records_of_paths_are_found_in_order_whatever_has_become_of_the_index() -> None:
    store = MemoryStore()
    await grown(store, 150, per=2)
    whole = [(slot, record) async for slot, record in read_log(store, RUN) if record.path in ("/again", "/n70_0", "/")]
    assert len(whole) > 150
    for key, data in [("", b""), *derived(store).items()]:
        if key:
            await store.put(key, data[:60])
        assert await find_all(store, RUN, "/", "/n70_0", "/again") == whole
        if key:
            await store.put(key, data)
    assert await find_all(store, RUN, "/nothing") == []
    with pytest.raises(RunNotFound):
        await find_all(MemoryStore(), RUN, "/")


@pytest.mark.parametrize("segments", [3, 200])
async def test_the_ends_of_a_closed_log_are_read_and_not_what_lies_between(segments: int) -> None:
    store = MemoryStore()
    await grown(store, segments)
    counted = Counted(store)
    first, last = await ends(counted, RUN)
    assert (first.type, last and last.type, counted.gets) == ("genesis", "close", 3)
    await store.delete(slot_key(RUN, 0))
    with pytest.raises(LogCorrupt, match="does not begin"):
        await ends(store, RUN)


async def test_the_ends_of_an_open_log_and_of_one_that_was_not_completed() -> None:
    store = MemoryStore()
    await grown(store, 5, closed=False)
    first, last = await ends(store, RUN)
    assert (first.type, last) == ("genesis", None)
    await grown(store2 := MemoryStore(), 5)
    await store2.delete(final_key(RUN))
    assert (await ends(store2, RUN))[1] == close()
    with pytest.raises(RunNotFound):
        await ends(MemoryStore(), RUN)


async def test_the_index_is_the_same_whoever_writes_it_and_is_caught_up_later() -> None:
    first, second = MemoryStore(), MemoryStore()
    for store in (first, second):
        await grown(store, 300)
    at_once = derived(first)
    assert len(at_once) == len(list(spans(300, closed=True))) + 1 + 7
    for key in derived(second):
        await second.delete(key)
    await Indexer(second, RUN).bring_up(300, closed=True)
    later = derived(second)
    assert later.items() <= at_once.items()
    assert tail_key(RUN) in later


async def test_whatever_has_become_of_the_index_the_record_is_found() -> None:
    store = MemoryStore()
    await grown(store, 300, per=2)
    whole = await expected(store)
    paths = [f"/n{n}_{i}" for n in (1, 40, 150, 280, 297) for i in (0, 1)] + ["/again", "/none"]
    for key, data in derived(store).items():
        for damaged in (None, b"", data[:100], data[:-1], data[::-1], bytes(len(data)), data + data):
            if damaged is None:
                await store.delete(key)
            else:
                await store.put(key, damaged)
            for path in paths:
                assert await find(store, RUN, path) == whole.get(path), (key, damaged, path)
        await store.put(key, data)


async def test_every_changed_byte_of_an_index_is_harmless() -> None:
    store = MemoryStore()
    await grown(store, 40)
    key = index_key(RUN, 0, 32)
    data = await store.get(key)
    for at in range(0, len(data), 7):
        await store.put(key, data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        for path in ("/n1_0", "/n20_0", "/again"):
            assert await find(store, RUN, path) is not None
            assert (await find(store, RUN, path)) == (
                commit(path[1:], int(path[2:].split("_")[0])) if path != "/again" else event("again", 38)
            )
    assert {problem.code for problem in await verify(store, RUN)} == {"DERIVED"}


class NoIndex(MemoryStore):
    """A store that does not take indexes."""

    async def put_new(self, key: str, data: bytes) -> Put:
        if "/index/" in key:
            raise Unavailable(key, "away")
        return await super().put_new(key, data)


async def test_a_log_does_not_depend_on_its_index() -> None:
    store = NoIndex()
    clock = SteppedClock()
    opened = await open_log(store, clock=clock)
    for number in range(1, 99):
        await opened.writer.append([commit(f"n{number}", number)])
    await opened.writer.finish(close())
    assert not derived(store)
    assert await find(store, RUN, "/n77") == commit("n77", 77)


async def test_an_index_is_not_copied_but_made_anew() -> None:
    source, target = MemoryStore(), MemoryStore()
    await grown(source, 100)
    key = index_key(RUN, 0, 32)
    await source.put(key, b"damaged")
    assert (await copy_run(source, RUN, target)).problems == []
    assert await target.get(key) != b"damaged"
    assert len(parse_tail(await target.get(tail_key(RUN)))) == 4
    assert not [k for k in target._objects if k.startswith(run_prefix(RUN)) and k.endswith("needs")]

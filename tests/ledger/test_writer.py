"""The protocol of the log: who owns it, what is acknowledged, and what the faults of a store may not change."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from decurion_ledger import LogWriter, Record, RecordType, list_runs, read_log, verify
from decurion_ledger.errors import (
    AccessDenied,
    BadRunId,
    Fenced,
    LogCorrupt,
    RecordTooLarge,
    RunClosed,
    RunNotFound,
    StaleLeader,
    StoreUnknown,
    Unavailable,
    WriterStopped,
)
from decurion_ledger.layout import final_key, slot_key
from decurion_ledger.log import fence
from decurion_ledger.patience import Patience
from decurion_ledger.stores import Counted, MemoryStore, Put, Store
from decurion_ledger.writer import Settings
from faulty import Fault, Faulty, SteppedClock
from logs import RUN, close, commit, forge, genesis, in_log, open_log


class Seen:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_stalled(self, run: str, reason: str) -> None:
        self.events.append(f"stalled: {reason}")

    def on_recovered(self, run: str) -> None:
        self.events.append("recovered")


async def test_a_run_from_genesis_to_final(store: Store) -> None:
    opened = await open_log(store)
    assert (opened.epoch, opened.leader_epoch, opened.fences, opened.closed) == (1, 1, 1, False)
    assert [r.type for _, r in opened.records] == ["genesis", "fence"]
    assert await opened.writer.append([commit("a", 1), commit("b", 2)]) == 1
    assert await opened.writer.append([commit("c", 3)]) == 2
    assert opened.writer.slot == 2
    await opened.writer.finish(close())
    assert await in_log(store) == [
        (0, "genesis"), (0, "fence"), (1, "/a"), (1, "/b"), (2, "/c"), (3, "close"),
    ]  # fmt: skip
    assert await verify(store, RUN) == []
    assert await list_runs(store) == [RUN]
    with pytest.raises(RunClosed):
        await opened.writer.append([commit("d")])


async def test_a_second_driver_replays_everything_and_fences_the_first(store: Store) -> None:
    first = await open_log(store, driver="driver-0")
    await first.writer.append([commit("a", 1)])
    second = await open_log(store, driver="driver-1", leader_epoch=2)
    assert [(slot, r.type) for slot, r in second.records] == [
        (0, "genesis"), (0, "fence"), (1, "commit"), (2, "fence"),
    ]  # fmt: skip
    assert (second.epoch, second.fences) == (2, 2)
    with pytest.raises(Fenced) as caught:
        await first.writer.append([commit("b")])
    fenced = caught.value
    assert (fenced.slot, fenced.epoch, fenced.leader_epoch, fenced.driver) == (2, 2, 2, "driver-1")
    with pytest.raises(Fenced):
        await first.writer.append([commit("c")])
    with pytest.raises(Fenced):
        await first.writer.finish(close())
    await second.writer.append([commit("b", 2)])
    assert await in_log(store) == [(0, "genesis"), (0, "fence"), (1, "/a"), (2, "fence"), (3, "/b")]
    assert await verify(store, RUN) == []


async def test_the_fence_record_and_the_genesis_are_as_they_are_named() -> None:
    opened = await open_log(MemoryStore(), leader_epoch=7, driver="driver-3")
    assert opened.records[1][1] == Record.event("fence", "/", {"epoch": 1, "leader_epoch": 7, "driver_id": "driver-3"})


# --- faults of the store


@pytest.mark.parametrize(
    ("faults", "writes"),
    [
        ([Fault.LOST_RESPONSE], 2),
        ([Fault.LOST_REQUEST], 2),
        ([Fault.CONFLICT], 2),
        ([Fault.BUSY] * 6, 7),
        ([Fault.LOST_REQUEST, Fault.LOST_RESPONSE, Fault.CONFLICT, Fault.BUSY], 5),
    ],
)
@pytest.mark.parametrize("slot", [0, 1])
async def test_whatever_the_store_answers_the_same_bytes_go_to_the_same_slot(
    store: Store, faults: list[Fault], writes: int, slot: int
) -> None:
    faulty = Faulty(store, {f"log/{slot:012d}": faults})
    opened = await open_log(faulty, clock=SteppedClock())
    assert await opened.writer.append([commit("a", 1)]) == 1
    assert await opened.writer.append([commit("b", 2)]) == 2
    sent = [data for key, data in faulty.sent if key == slot_key(RUN, slot)]
    assert len(sent) == writes
    assert len(set(sent)) == 1
    assert await in_log(store) == [(0, "genesis"), (0, "fence"), (1, "/a"), (2, "/b")]
    assert await verify(store, RUN) == []


async def test_a_refusal_while_the_run_is_open_is_waited_out() -> None:
    faulty = Faulty(MemoryStore(), {"log/000000000001": [Fault.DENIED] * 3})
    opened = await open_log(faulty, clock=SteppedClock())
    assert await opened.writer.append([commit("a", 1)]) == 1


async def test_what_somebody_must_mend_ends_the_writer_soon_and_nothing_is_lost() -> None:
    memory, clock = MemoryStore(), SteppedClock()
    faulty = Faulty(memory, {"log/000000000002": [Fault.BUSY] * 5 + [Fault.DENIED] * 99})
    opened = await open_log(faulty, clock=clock)
    await opened.writer.append([commit("a", 1)])
    began = clock.now()
    for _ in range(2):
        with pytest.raises(AccessDenied, match="give credentials"):
            await opened.writer.append([commit("b", 2)])
    assert clock.now() - began < 10.0
    again = await open_log(memory, leader_epoch=2)
    assert [record.path for _, record in again.records if record.core] == ["/a"]


async def test_a_log_whose_beginning_is_gone_is_not_closed_as_if_it_were_whole() -> None:
    memory = MemoryStore()
    opened = await open_log(memory)
    await memory.delete(slot_key(RUN, 0))
    await opened.writer.append([commit("a", 1)])
    with pytest.raises(LogCorrupt, match="is gone"):
        await opened.writer.finish(close())


async def test_a_refusal_at_the_opening_is_an_error_at_once() -> None:
    faulty = Faulty(MemoryStore(), {"log/000000000000": [Fault.DENIED]})
    with pytest.raises(AccessDenied):
        await open_log(faulty)
    assert len(faulty.sent) == 1


async def test_a_stalled_commit_is_reported_once_and_so_is_its_recovery() -> None:
    seen = Seen()
    faulty = Faulty(MemoryStore(), {"log/000000000001": [Fault.BUSY] * 10, "log/000000000002": [Fault.BUSY]})
    opened = await open_log(faulty, clock=SteppedClock(), observer=seen)
    await opened.writer.append([commit("a")])
    await opened.writer.append([commit("b")])
    assert [event.partition(":")[0] for event in seen.events] == ["stalled", "recovered"]
    assert "SlowDown (503)" in seen.events[0]


async def test_a_stall_of_final_and_of_a_confirmation_is_reported_too() -> None:
    seen = Seen()

    class Busy(Faulty):
        failing = 0

        async def get(self, key: str, range: tuple[int, int | None] | None = None) -> bytes:
            if self.failing:
                self.failing -= 1
                raise Unavailable(f"GET {key}", "SlowDown (503)")
            return await super().get(key, range)

    busy = Busy(MemoryStore(), {"final": [Fault.BUSY] * 9})
    opened = await open_log(busy, clock=SteppedClock(), observer=seen)
    busy.failing = 9
    await opened.writer.confirm()
    assert [event.partition(":")[0] for event in seen.events] == ["stalled", "recovered"]
    await opened.writer.finish(close())
    assert [event.partition(":")[0] for event in seen.events] == ["stalled", "recovered"] * 2


async def test_pauses_grow_up_to_their_limit() -> None:
    clock = SteppedClock()
    faulty = Faulty(MemoryStore(), {"log/000000000001": [Fault.BUSY] * 9})
    opened = await open_log(faulty, clock=clock)
    await opened.writer.append([commit("a")])
    assert clock.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize("arrived", [False, True])
async def test_out_of_patience_nothing_is_acknowledged_and_the_next_opening_tells(arrived: bool) -> None:
    store = MemoryStore()
    lost = [Fault.LOST_RESPONSE if arrived else Fault.LOST_REQUEST, *[Fault.BUSY] * 1000]
    opened = await open_log(
        Faulty(store, {"log/000000000001": lost}), clock=SteppedClock(), settings=Settings(patience=Patience(total=60))
    )
    appends = [asyncio.ensure_future(opened.writer.append([commit(name)])) for name in "abc"]
    done = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(e) for e in done] == [StoreUnknown] * 3
    assert "SlowDown (503)" in str(done[0])
    with pytest.raises(StoreUnknown):
        await opened.writer.append([commit("d")])
    again = await open_log(store)
    assert [r.path for _, r in again.records if r.core] == (["/a", "/b", "/c"] if arrived else [])
    assert await verify(store, RUN) == []


async def test_a_hanging_write_is_given_up_and_repeated() -> None:
    hang = [True]

    async def written(key: str) -> None:
        if key.endswith("log/000000000001") and hang:
            hang.pop()
            await asyncio.Event().wait()

    faulty = Faulty(MemoryStore(), written=written)
    opened = await open_log(faulty, settings=Settings(patience=Patience(attempt=0.05, first=0.001)))
    async with asyncio.timeout(20):
        assert await opened.writer.append([commit("a")]) == 1
    assert [key for key, _ in faulty.sent].count(slot_key(RUN, 1)) == 2


async def test_a_slot_that_is_taken_but_cannot_be_read_stops_the_writer() -> None:
    class Hiding(Faulty):
        async def put_new(self, key: str, data: bytes) -> Put:
            return Put.EXISTS if key == slot_key(RUN, 1) else await super().put_new(key, data)

    opened = await open_log(Hiding(MemoryStore()))
    with pytest.raises(LogCorrupt, match="taken but does not hold it"):
        await opened.writer.append([commit("a")])


async def test_bytes_of_nobody_in_the_next_slot_stop_the_writer() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    await store.put(slot_key(RUN, 1), b"x" * 100)
    with pytest.raises(LogCorrupt):
        await opened.writer.append([commit("a")])


# --- two drivers


async def test_of_two_drivers_that_begin_a_log_the_loser_adopts_the_genesis_of_the_winner() -> None:
    store = MemoryStore()
    rival: list[LogWriter] = []

    class Overtaken(Faulty):
        async def put_new(self, key: str, data: bytes) -> Put:
            if not rival:
                opened = await LogWriter.open(
                    store, RUN, leader_epoch=1, driver="driver-1", genesis=lambda: genesis(by="driver-1")
                )
                rival.append(opened.writer)
            return await super().put_new(key, data)

    calls: list[int] = []

    def mine() -> Record:
        calls.append(1)
        return genesis(by="driver-0")

    opened = await LogWriter.open(Overtaken(store), RUN, leader_epoch=1, driver="driver-0", genesis=mine)
    assert calls == [1]
    assert [(slot, r.type) for slot, r in opened.records] == [(0, "genesis"), (0, "fence"), (1, "fence")]
    assert opened.records[0][1].envelope["by"] == "driver-1"
    assert (opened.epoch, opened.fences) == (2, 2)
    with pytest.raises(Fenced):
        await rival[0].append([commit("a")])
    assert await verify(store, RUN) == []


async def test_a_late_write_of_a_fenced_driver_changes_nothing() -> None:
    store = MemoryStore()
    faulty = Faulty(store, {"log/000000000001": [Fault.LATE]})
    clock = SteppedClock()
    first = await open_log(faulty, clock=clock)
    second: list[LogWriter] = []

    async def take_over(seconds: float) -> None:
        if not second:
            second.append((await open_log(store, driver="driver-1", leader_epoch=2)).writer)

    clock.pause = take_over  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        await first.writer.append([commit("a")])
    await faulty.deliver_late()
    await second[0].append([commit("a", 2)])
    assert await in_log(store) == [(0, "genesis"), (0, "fence"), (1, "fence"), (2, "/a")]
    assert await verify(store, RUN) == []


async def test_a_write_that_arrives_between_replay_and_fence_is_absorbed_and_raises_the_epoch() -> None:
    store = MemoryStore()
    late = Faulty(store, {"log/000000000001": [Fault.LATE, *[Fault.BUSY] * 1000]})
    first = await open_log(late, clock=SteppedClock(), settings=Settings(patience=Patience(total=5)))
    with pytest.raises(StoreUnknown):
        await first.writer.append([commit("a", 1)])

    class Arrives(Faulty):
        async def put_new(self, key: str, data: bytes) -> Put:
            await late.deliver_late()
            return await super().put_new(key, data)

    second = await open_log(Arrives(store), driver="driver-1")
    assert [(slot, r.type) for slot, r in second.records] == [
        (0, "genesis"), (0, "fence"), (1, "commit"), (2, "fence"),
    ]  # fmt: skip
    assert second.epoch == 2
    assert await verify(store, RUN) == []


async def test_drivers_of_one_name_and_epoch_are_not_taken_for_each_other() -> None:
    store = MemoryStore()
    openings = [open_log(store, driver="driver-0", leader_epoch=5) for _ in range(4)]
    opened = await asyncio.gather(*openings)
    assert sorted(o.epoch for o in opened) == [1, 2, 3, 4]
    outcomes = await asyncio.gather(*(o.writer.append([commit(f"n{o.epoch}")]) for o in opened), return_exceptions=True)
    assert [type(o) for o in outcomes].count(Fenced) == 3
    assert await verify(store, RUN) == []


async def test_duelling_drivers_never_both_own_the_log_and_lose_no_acknowledged_record() -> None:
    store = MemoryStore()
    acknowledged: list[str] = []

    async def drive(number: int) -> None:
        for round in range(6):
            opened = await open_log(store, driver=f"driver-{number}", take_over=True)
            for step in range(4):
                name = f"d{number}_{round}_{step}"
                try:
                    await opened.writer.append([commit(name)])
                except Fenced:
                    break
                acknowledged.append(f"/{name}")
                for _ in range((number * 7 + step) % 5):
                    await asyncio.sleep(0)

    await asyncio.gather(*(drive(n) for n in range(5)))
    assert await verify(store, RUN) == []
    stored = [name for _, name in await in_log(store)]
    assert set(acknowledged) <= set(stored)
    assert stored.count("fence") == 30


async def test_a_leader_from_before_the_last_fence_is_refused_and_writes_nothing() -> None:
    store = Counted(MemoryStore())
    await open_log(store, leader_epoch=6)
    puts = store.puts
    with pytest.raises(StaleLeader) as caught:
        await open_log(store, leader_epoch=5)
    assert (caught.value.given, caught.value.highest) == (5, 6)
    assert store.puts == puts
    assert (await open_log(store, leader_epoch=6)).epoch == 2
    taken = await open_log(store, leader_epoch=0, take_over=True)
    assert (taken.epoch, taken.leader_epoch) == (3, 7)
    with pytest.raises(StaleLeader):
        await open_log(store, leader_epoch=6)


async def test_the_leader_epoch_is_checked_again_when_a_rival_fences_first() -> None:
    store = MemoryStore()
    await open_log(store, leader_epoch=1)

    class Overtaken(Faulty):
        async def put_new(self, key: str, data: bytes) -> Put:
            await open_log(store, leader_epoch=9, driver="driver-9")
            return await super().put_new(key, data)

    with pytest.raises(StaleLeader) as caught:
        await open_log(Overtaken(store), leader_epoch=5)
    assert caught.value.highest == 9
    assert await verify(store, RUN) == []


# --- stalls


async def test_after_a_stall_a_record_in_the_log_is_not_acknowledged_when_the_next_slot_is_taken() -> None:
    store = MemoryStore()
    clock = SteppedClock()

    async def stopped(key: str) -> None:
        if key == slot_key(RUN, 1):
            clock.pass_time(6)
            await open_log(store, driver="driver-1", leader_epoch=2)

    first = await open_log(Faulty(store, written=stopped), clock=clock)
    with pytest.raises(Fenced) as caught:
        await first.writer.append([commit("a")])
    assert caught.value.slot == 2
    assert await in_log(store) == [(0, "genesis"), (0, "fence"), (1, "/a"), (2, "fence")]


@pytest.mark.parametrize(("seconds", "probes"), [(4.9, 0), (5.1, 2)])
async def test_only_a_stall_costs_a_probe(seconds: float, probes: int) -> None:
    clock = SteppedClock()

    async def stopped(key: str) -> None:
        if key == slot_key(RUN, 1):
            clock.pass_time(seconds)

    counted = Counted(Faulty(MemoryStore(), written=stopped))
    opened = await open_log(counted, clock=clock)
    before = counted.gets
    assert await opened.writer.append([commit("a")]) == 1
    assert counted.gets - before == probes


async def test_a_probe_that_itself_stalled_is_repeated() -> None:
    clock = SteppedClock()
    store = MemoryStore()
    slow = [6.0, 6.0]

    class Slow(Faulty):
        async def get(self, key: str, range: tuple[int, int | None] | None = None) -> bytes:
            if key == slot_key(RUN, 1) and confirming and slow:
                clock.pass_time(slow.pop())
            return await store.get(key, range)

    confirming = False
    counted = Counted(Slow(store))
    opened = await open_log(counted, clock=clock)
    confirming, before = True, counted.gets
    await opened.writer.confirm()
    assert counted.gets - before == 6


async def test_confirming_tells_an_owner_from_one_that_was_fenced() -> None:
    store = MemoryStore()
    first = await open_log(store)
    await first.writer.confirm()
    await first.writer.append([commit("a")])
    await first.writer.confirm()
    await open_log(store, leader_epoch=2)
    with pytest.raises(Fenced):
        await first.writer.confirm()
    with pytest.raises(Fenced):
        await first.writer.append([commit("b")])


# --- group commit


async def test_what_is_appended_while_a_segment_is_on_its_way_shares_the_next_one_in_order() -> None:
    release = asyncio.Event()

    async def held(key: str) -> None:
        if key == slot_key(RUN, 1):
            await release.wait()

    store = MemoryStore()
    opened = await open_log(Faulty(store, written=held))
    appends = [asyncio.ensure_future(opened.writer.append([commit("n0")]))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    appends += [asyncio.ensure_future(opened.writer.append([commit(f"n{i}")])) for i in range(1, 40)]
    await asyncio.sleep(0)
    assert not any(append.done() for append in appends)
    release.set()
    assert await asyncio.gather(*appends) == [1] + [2] * 39
    assert [name for _, name in await in_log(store)][2:] == [f"/n{i}" for i in range(40)]


async def test_long_appends_are_split_at_5000_records_and_at_4_mib() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    many = [Record.event(RecordType.LEASE_LOST, "/", {"n": i}) for i in range(5001)]
    assert await opened.writer.append(many) == 2
    big = [Record.event(RecordType.LEASE_LOST, "/", {"text": "x" * 3_000_000}) for _ in range(3)]
    assert await opened.writer.append(big) == 5
    slots = [slot async for slot, _ in read_log(store, RUN)]
    assert [slots.count(slot) for slot in range(6)] == [2, 5000, 1, 1, 1, 1]
    assert await verify(store, RUN) == []


async def test_a_record_beyond_a_segment_is_refused_and_nothing_of_its_append_is_taken() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    with pytest.raises(RecordTooLarge, match="blobs"):
        await opened.writer.append([commit("a"), commit("b", "x" * 5_000_000)])
    assert await opened.writer.append([commit("c")]) == 1
    assert await in_log(store) == [(0, "genesis"), (0, "fence"), (1, "/c")]


async def test_appending_nothing_writes_nothing() -> None:
    store = Counted(MemoryStore())
    opened = await open_log(store)
    puts = store.puts
    assert await opened.writer.append([]) == 0
    assert store.puts == puts


async def test_an_interval_gathers_records_that_come_one_by_one() -> None:
    store = Counted(MemoryStore())
    opened = await open_log(store, settings=Settings(interval=0.05))

    async def trickle(i: int) -> None:
        await asyncio.sleep(0.001 * i)
        await opened.writer.append([commit(f"n{i}")])

    await asyncio.gather(*(trickle(i) for i in range(50)))
    assert store.puts <= 2 + 10


async def test_a_cancelled_append_is_committed_all_the_same_and_order_is_kept() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    first = asyncio.ensure_future(opened.writer.append([commit("a")]))
    await asyncio.sleep(0)
    first.cancel()
    assert await opened.writer.append([commit("b")]) == 1
    assert [name for _, name in await in_log(store)][2:] == ["/a", "/b"]


async def test_a_stopped_writer_tells_those_who_wait_and_takes_no_more() -> None:
    async def never(key: str) -> None:
        if key == slot_key(RUN, 1):
            await asyncio.Event().wait()

    opened = await open_log(Faulty(MemoryStore(), written=never))
    waiting = [asyncio.ensure_future(opened.writer.append([commit(name)])) for name in "ab"]
    await asyncio.sleep(0)
    await opened.writer.aclose()
    assert [type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)] == [WriterStopped] * 2
    with pytest.raises(WriterStopped):
        await opened.writer.append([commit("c")])
    with pytest.raises(WriterStopped):
        await opened.writer.confirm()


# --- closing and opening again


async def test_records_queued_before_the_close_are_in_the_log_before_it() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    appends = [asyncio.ensure_future(opened.writer.append([commit(f"n{i}")])) for i in range(3)]
    await asyncio.sleep(0)
    await opened.writer.finish(close())
    assert all(append.done() for append in appends)
    assert [name for _, name in await in_log(store)][-2:] == ["/n2", "close"]
    assert await verify(store, RUN) == []


async def test_opening_a_closed_run_completes_final_and_fences_nobody() -> None:
    store = MemoryStore()
    dying = Faulty(store, {"final": [Fault.LOST_REQUEST] * 1000})
    opened = await open_log(dying, clock=SteppedClock())
    await opened.writer.append([commit("a")])
    with pytest.raises(Exception, match="connection reset"):
        await opened.writer.finish(close())
    assert [p.code for p in await verify(store, RUN)] == ["FINAL-MISSING"]
    for leader_epoch in (1, 0, 9):
        again = await open_log(store, leader_epoch=leader_epoch)
        assert again.closed
        assert [r.type for _, r in again.records] == ["genesis", "fence", "commit", "close"]
        assert (again.epoch, again.fences) == (1, 1)
        with pytest.raises(RunClosed):
            await again.writer.append([commit("b")])
    assert await verify(store, RUN) == []


async def test_final_that_failed_can_be_written_by_calling_again() -> None:
    store = MemoryStore()
    opened = await open_log(
        Faulty(store, {"final": [Fault.LOST_RESPONSE, Fault.BUSY, Fault.BUSY]}),
        clock=SteppedClock(),
        settings=Settings(patience=Patience(total=0)),
    )
    for _ in range(3):
        with pytest.raises(Exception, match=r"reset|503"):
            await opened.writer.finish(close())
    await opened.writer.finish(close())
    assert await verify(store, RUN) == []


async def test_a_run_without_a_log_is_not_found() -> None:
    store = MemoryStore()
    with pytest.raises(RunNotFound):
        await LogWriter.open(store, RUN, leader_epoch=1, driver="d", genesis=None)
    with pytest.raises(RunNotFound):
        await in_log(store)
    with pytest.raises(RunNotFound):
        await verify(store, RUN)
    for name in ("", "a/b", "..", "-x", "a" * 129):
        with pytest.raises(BadRunId):
            await open_log(store, name)


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
async def test_a_closed_log_with_a_missing_slot_is_refused(missing: int) -> None:
    store = MemoryStore()
    opened = await open_log(store)
    await opened.writer.append([commit("a")])
    await opened.writer.append([commit("b")])
    await opened.writer.finish(close())
    await store.delete(slot_key(RUN, missing))
    with pytest.raises(LogCorrupt):
        await open_log(store, leader_epoch=2)


async def test_a_final_of_another_log_is_refused() -> None:
    store = MemoryStore()
    opened = await open_log(store)
    await opened.writer.finish(close())
    await store.put(final_key(RUN), b"{}")
    with pytest.raises(LogCorrupt, match="does not name the last segment"):
        await open_log(store)


async def test_a_log_copied_to_another_run_is_refused() -> None:
    store = MemoryStore()
    await open_log(store)
    await store.put(slot_key("other", 0), await store.get(slot_key(RUN, 0)))
    with pytest.raises(LogCorrupt, match=f"belongs to run {RUN}"):
        await open_log(store, "other")


async def test_a_segment_of_a_driver_that_was_fenced_is_refused() -> None:
    store, rival = MemoryStore(), MemoryStore()
    world = Faulty(store)
    first = await open_log(world)
    await rival.put(slot_key(RUN, 0), await store.get(slot_key(RUN, 0)))
    # the same driver in two worlds: one where it was fenced and one where it went on
    await open_log(store, leader_epoch=2)
    world.store = rival
    await first.writer.append([commit("a")])
    await first.writer.append([commit("b")])
    await store.put(slot_key(RUN, 2), await rival.get(slot_key(RUN, 2)))
    with pytest.raises(LogCorrupt, match="does not follow"):
        await open_log(store, leader_epoch=3)


START = (1, "d", [genesis(), fence(1, 1, "d")])


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([(1, "d", [genesis()])], "does not own"),
        ([START, (1, "e", [commit("a")])], "does not own"),
        ([START, (2, "d", [commit("a")])], "does not own"),
        ([START, (1, "e", [fence(1, 2, "e")])], "a fence has epoch 1 after 1"),
        ([START, (3, "e", [fence(2, 2, "e")])], "a fence has epoch 2 after 1"),
        ([START, (1, "d", [close()]), (1, "d", [commit("a")])], "behind its close record"),
    ],
)
async def test_a_log_that_breaks_the_rules_of_ownership_is_refused(segments: list, message: str) -> None:
    store = MemoryStore()
    await forge(store, *segments)
    with pytest.raises(LogCorrupt, match=message):
        await open_log(store, leader_epoch=9)


async def test_a_forged_log_without_a_fault_is_opened() -> None:
    store = MemoryStore()
    await forge(store, START, (1, "d", [commit("a")]), (2, "e", [fence(2, 2, "e")]), (2, "e", [commit("b")]))
    assert (await open_log(store, leader_epoch=9)).epoch == 3


# --- crash at every point


async def scenario(store: Store, acknowledged: list[str], clock: SteppedClock) -> None:
    opened = await open_log(store, clock=clock, take_over=True)
    if opened.closed:
        return
    have = {r.path for _, r in opened.records if r.core}

    async def add(*names: str) -> None:
        fresh = [commit(name) for name in names if f"/{name}" not in have]
        await opened.writer.append(fresh)
        acknowledged.extend(f"/{name}" for name in names)

    await add("a")
    await asyncio.gather(add("b", "c"), add("d"), add("e"))
    await add("f")
    await opened.writer.finish(close())
    acknowledged.append("final")


async def check_after_crash(store: Store, acknowledged: list[str]) -> None:
    before = list(acknowledged)
    await scenario(store, acknowledged, SteppedClock())
    assert await verify(store, RUN) == []
    results = [name for _, name in await in_log(store) if name.startswith("/")]
    assert sorted(results) == ["/a", "/b", "/c", "/d", "/e", "/f"]
    assert set(before) - {"final"} <= set(results)


async def crashed_after(steps: int, run: Callable[[], Awaitable[None]]) -> bool:
    """Let `run` go on for so many turns of the loop, then kill everything it started; True when it had ended by
    itself.
    """
    mine = asyncio.all_tasks()
    task = asyncio.ensure_future(run())
    for _ in range(steps):
        await asyncio.sleep(0)
    ended = task.done()
    victims = asyncio.all_tasks() - mine
    for victim in victims:
        victim.cancel()
    await asyncio.gather(*victims, task, return_exceptions=True)
    return ended


@pytest.mark.parametrize("faulty", [False, True])
async def test_a_crash_at_any_await_loses_nothing_acknowledged_and_repeats_nothing(faulty: bool) -> None:
    async def crash(steps: int) -> bool:
        store = MemoryStore()
        acknowledged: list[str] = []
        plan = {f"log/{slot:012d}": [Fault.LOST_RESPONSE, Fault.BUSY] for slot in range(5)}
        first = Faulty(store, {**plan, "final": [Fault.LOST_RESPONSE]} if faulty else {})
        ended = await crashed_after(steps, lambda: scenario(first, acknowledged, SteppedClock()))
        await check_after_crash(store, acknowledged)
        return ended

    steps = 0
    while not await crash(steps):
        steps += 1
    assert steps > 25


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("fatal", range(7))
async def test_a_crash_at_any_write_loses_nothing_acknowledged_and_repeats_nothing(
    fatal: int, carried_out: bool
) -> None:
    class Dying(Faulty):
        async def put_new(self, key: str, data: bytes) -> Put:
            dies = len(self.sent) == fatal
            if dies and not carried_out:
                await asyncio.Event().wait()
            result = await super().put_new(key, data)
            if dies:
                await asyncio.Event().wait()
            return result

    store = MemoryStore()
    acknowledged: list[str] = []
    first = Dying(store)
    await crashed_after(300, lambda: scenario(first, acknowledged, SteppedClock()))
    await check_after_crash(store, acknowledged)

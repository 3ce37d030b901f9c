"""Collecting old runs and blobs: only what is over, in two phases, cut off anywhere, with writers that share blobs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from decurion_ledger import Record, RecordType, Values, verify
from decurion_ledger.blobs import FRESH, keep_blob
from decurion_ledger.errors import RunDeleted, RunNotFound
from decurion_ledger.layout import BLOBS, SWEEPS, blob_key, needs_key, run_prefix, slot_key, tomb_key
from decurion_ledger.retention import HOLD, Collected, collect
from decurion_ledger.stores import MemoryStore, ObjectInfo, Put, Range, Store
from logs import RUN, close, commit, genesis, open_log
from test_copying import content, with_blobs

DAY = 86400.0


class Time:
    """A clock of store and collector that moves when told."""

    def __init__(self) -> None:
        self.at = 1_800_000_000.0
        self.pauses = 0

    def __call__(self) -> float:
        return self.at

    def now(self) -> float:
        return self.at

    async def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.at += seconds
        await asyncio.sleep(0)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(time: Time) -> MemoryStore:
    return MemoryStore(now=time)


async def gc(store: Store, time: Time, *, days: float = 30, dry_run: bool = False) -> Collected:
    return await collect(store, older_than=days * DAY, dry_run=dry_run, now=time, clock=time)


def fates(done: Collected) -> dict[str, str]:
    return {one.run: one.fate for one in done.runs}


async def write(store: MemoryStore, run: str, value: object, time: Time) -> Record:
    """A record of a run that names `value` in a blob."""
    packed = await Values(store, run, clock=time, now=time).pack([value])
    return Record.event(RecordType.TURN, "/t", {"values": packed})


async def test_a_closed_run_goes_in_two_phases_and_its_blobs_with_it(store: MemoryStore, time: Time) -> None:
    await with_blobs(store)
    before = await content(store)
    time.at += 29 * DAY
    assert fates(await gc(store, time)) == {RUN: "kept"}
    time.at += 2 * DAY
    assert fates(await gc(store, time)) == {RUN: "condemned"}
    assert before.items() <= (await content(store)).items()
    time.at += HOLD - 60
    assert fates(await gc(store, time)) == {RUN: "condemned"}
    time.at += 61
    done = await gc(store, time)
    assert fates(done) == {RUN: "deleted"}
    assert done.blobs == sum(key.startswith(BLOBS) for key in before)
    assert list(await content(store)) == [tomb_key(RUN)]
    with pytest.raises(RunDeleted):
        await open_log(store)
    with pytest.raises(RunDeleted):
        await verify(store, RUN)


async def test_a_dry_run_tells_the_same_and_writes_nothing(store: MemoryStore, time: Time) -> None:
    await with_blobs(store)
    time.at += 31 * DAY
    before = await content(store)
    assert fates(await gc(store, time, dry_run=True)) == {RUN: "condemned"}
    assert await content(store) == before
    await gc(store, time)
    time.at += HOLD + 1
    before = await content(store)
    done = await gc(store, time, dry_run=True)
    assert (fates(done), done.blobs > 0) == ({RUN: "deleted"}, True)
    assert await content(store) == before


async def test_no_slot_of_an_open_run_and_nothing_that_it_shares_is_deleted(store: MemoryStore, time: Time) -> None:
    await with_blobs(store, "old")
    opened = await open_log(store)
    await opened.writer.append([await write(store, RUN, "b" * 9000, time)])
    for _ in range(3):
        time.at += 400 * DAY
        await gc(store, time, days=0)
    assert await verify(store, RUN) == []
    assert not await content(store, run_prefix("old"))
    await opened.writer.append([commit("n")])
    await opened.writer.finish(close())


async def test_a_blob_is_kept_as_long_as_one_run_needs_it(store: MemoryStore, time: Time) -> None:
    await with_blobs(store, "old")
    time.at += 40 * DAY
    await with_blobs(store, "young")
    for _ in range(2):
        time.at += HOLD + 1
        done = await gc(store, time, days=35)
    assert fates(done) == {"old": "deleted", "young": "kept"}
    assert await verify(store, "young") == []


async def test_what_an_open_run_stored_and_has_not_named_yet_is_kept(store: MemoryStore, time: Time) -> None:
    opened = await open_log(store)
    time.at += 5 * DAY
    record = await write(store, RUN, "w" * 9000, time)
    for _ in range(2):
        time.at += 100 * DAY  # a laptop that slept
        done = await gc(store, time)
        assert done.held_by == RUN
    await opened.writer.append([record])
    assert await verify(store, RUN) == []


async def test_an_orphan_is_deleted_when_it_is_old_and_no_open_run_is_older(store: MemoryStore, time: Time) -> None:
    await write(store, RUN, "w" * 9000, time)
    time.at += HOLD - 1
    assert (await gc(store, time)).blobs == 0
    time.at += 2
    assert (await gc(store, time)).blobs == 1
    assert not await content(store, BLOBS)


async def test_a_run_may_name_its_own_retention(store: MemoryStore, time: Time) -> None:
    from decurion_ledger import LogWriter

    for run, retention in (("short", 3600), ("long", 90 * 86400), ("always", -1)):
        opened = await LogWriter.open(
            store, run, leader_epoch=1, driver="d", genesis=lambda r=retention: genesis(retention=r)
        )
        await opened.writer.finish(close())
    time.at += 2 * DAY
    assert fates(await gc(store, time)) == {"short": "condemned", "long": "kept", "always": "kept"}
    time.at += 900 * DAY
    assert fates(await gc(store, time)) == {"short": "deleted", "long": "condemned", "always": "kept"}


async def test_a_run_that_an_open_one_takes_over_is_kept(store: MemoryStore, time: Time) -> None:
    from decurion_ledger import LogWriter

    await with_blobs(store, "old")
    time.at += 31 * DAY
    await gc(store, time)
    fork = await LogWriter.open(
        store, "fork", leader_epoch=1, driver="d", genesis=lambda: genesis(earlier={"run": "old"})
    )
    time.at += 2 * DAY
    assert fates(await gc(store, time)) == {"old": "needed", "fork": "open"}
    assert await verify(store, "old") == []
    await fork.writer.finish(close())
    assert fates(await gc(store, time))["old"] == "deleted"


async def test_a_writer_that_finds_its_blob_old_makes_it_young(store: MemoryStore, time: Time) -> None:
    raw = b'"shared"'
    sha = hashlib.sha256(raw).hexdigest()
    await keep_blob(store, sha, raw, clock=time, now=time)
    time.at += FRESH - 1
    await keep_blob(store, sha, raw, clock=time, now=time)
    assert (await store.head(blob_key(sha))).modified < time.at
    time.at += 2
    await keep_blob(store, sha, raw, clock=time, now=time)
    assert (await store.head(blob_key(sha))).modified == time.at


class Between(MemoryStore):
    """A store in which `act` happens before the request with this number is carried out."""

    def __init__(self, time: Time) -> None:
        super().__init__(now=time)
        self.requests = -1
        self.at = -1
        self.act = None

    async def _step(self) -> None:
        if self.at < 0:
            return
        self.requests += 1
        if self.requests == self.at and self.act is not None:
            act, self.act = self.act, None
            at, self.at = self.at, -1
            await act()
            self.at = at

    async def put_new(self, key: str, data: bytes) -> Put:
        await self._step()
        return await super().put_new(key, data)

    async def put(self, key: str, data: bytes) -> None:
        await self._step()
        await super().put(key, data)

    async def get(self, key: str, range: Range | None = None) -> bytes:
        await self._step()
        return await super().get(key, range)

    async def head(self, key: str) -> ObjectInfo:
        await self._step()
        return await super().head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._step()
        async for info in super().list(prefix, after):
            yield info

    async def delete(self, key: str) -> None:
        await self._step()
        await super().delete(key)


class Killed(BaseException):
    """The end of a process."""


async def aged(time: Time) -> Between:
    """A store whose next collection deletes a run, and blobs that another one shares in part."""
    store = Between(time)
    await with_blobs(store, "old", values=(["q" * 9000],))
    time.at += 31 * DAY
    await with_blobs(store, "young", values=())
    await gc(store, time)
    time.at += HOLD + 1
    return store


async def steps() -> int:
    time = Time()
    store = await aged(time)
    store.at = 10**6
    await gc(store, time)
    return store.requests


async def test_a_collection_that_is_killed_anywhere_is_completed_by_the_next() -> None:
    count = await steps()
    assert count >= 20
    for at in range(count + 1):
        time = Time()
        store = await aged(time)

        async def die() -> None:
            raise Killed

        store.at, store.act = at, die
        with pytest.raises(Killed):
            await gc(store, time)
        assert await verify(store, "young") == []
        time.at += 3600
        await gc(store, time)
        assert await verify(store, "young") == []
        assert not await content(store, run_prefix("old"))
        assert len(await content(store, BLOBS)) == 1
        assert not await content(store, SWEEPS)


async def test_a_run_that_begins_at_any_step_of_a_collection_loses_nothing_that_it_shares() -> None:
    count = await steps()
    met = 0
    for at in range(count + 1):
        time = Time()
        store = await aged(time)
        running: list[asyncio.Task[None]] = []

        async def begin(store: Between = store, time: Time = time, running: list[asyncio.Task[None]] = running) -> None:
            async def all_of_it() -> None:
                opened = await open_log(store, "new")
                await opened.writer.append([await write(store, "new", ["q" * 9000], time)])

            running.append(asyncio.create_task(all_of_it()))
            for _ in range(40):
                await asyncio.sleep(0)

        store.at, store.act = at, begin
        await gc(store, time)
        await asyncio.gather(*running)
        assert await verify(store, "new") == []
        assert await verify(store, "young") == []
        met += time.pauses > 0
    assert met > 0, "no writer met a sweep of its blob"


async def test_a_run_whose_needs_are_unknown_stops_the_deletion_of_blobs(store: MemoryStore, time: Time) -> None:
    await with_blobs(store, "old")
    await write(store, "x", "orphan" * 2000, time)
    await store.delete(slot_key("old", 0))
    time.at += 31 * DAY
    before = await content(store, BLOBS)
    done = await gc(store, time)
    assert "nobody knows" in done.unread
    assert fates(done) == {"old": "broken"}
    assert await content(store, BLOBS) == before


async def test_what_a_closed_run_needs_is_read_once_and_never_believed_when_it_is_damaged(
    store: MemoryStore, time: Time
) -> None:
    await with_blobs(store)
    time.at += 2 * DAY
    await gc(store, time)
    kept = await store.get(needs_key(RUN))
    for damaged in (b"", kept[:-1], kept.replace(b"[", b"[ "), kept.replace(kept[12:20], b"00000000")):
        await store.put(needs_key(RUN), damaged)
        await gc(store, time)
        assert await store.get(needs_key(RUN)) == kept
        assert await verify(store, RUN) == []


async def test_a_blob_that_a_run_needs_and_that_is_gone_is_told(store: MemoryStore, time: Time) -> None:
    await with_blobs(store)
    key = next(iter(await content(store, BLOBS)))
    await gc(store, time)
    await store.delete(key)
    assert (await gc(store, time)).missing == [key]


async def test_a_writer_that_slept_through_the_end_of_its_run_acknowledges_nothing(
    store: MemoryStore, time: Time
) -> None:
    zombie = await open_log(store, clock=time)
    successor = await open_log(store, leader_epoch=2, clock=time)
    await successor.writer.finish(close())
    time.at += 31 * DAY
    await gc(store, time)
    time.at += HOLD + 1
    await gc(store, time)
    with pytest.raises(RunDeleted):
        await zombie.writer.confirm()


async def test_a_run_without_a_log_is_still_told_from_a_deleted_one(store: MemoryStore) -> None:
    with pytest.raises(RunNotFound):
        await verify(store, RUN)

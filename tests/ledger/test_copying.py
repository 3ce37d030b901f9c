"""A closed run copied to another store: whole, proved, resumable, and never two open logs of one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from decurion_ledger import Record, RecordType, Values, make_core
from decurion_ledger.copying import copy_run
from decurion_ledger.errors import BadRunId, CopyDiffers, LogCorrupt, RunDeleted, RunNotFound, RunOpen
from decurion_ledger.layout import BLOBS, CHECKS, FORMAT, slot_key, tomb_key
from decurion_ledger.references import blobs_of
from decurion_ledger.stores import Counted, LocalStore, MemoryStore, Put, Store
from logs import RUN, close, commit, open_log

WIDE = [{"n": i, "text": "x" * (5000 if i % 100 == 0 else 60), "inner": []} for i in range(1200)]
NESTED = [{"rows": [{"n": i, "t": "y" * 90} for i in range(1000)]}, *({"pad": "z" * 100} for _ in range(700))]


async def with_blobs(store: Store, run: str = RUN, *, values: tuple[object, ...] = (WIDE, NESTED)) -> None:
    """A closed run with a blob, a wide list, and a wide list in an item of another."""
    opened = await open_log(store, run)
    kept = await Values(store, run).keep([*values, "b" * 9000])
    records = []
    for number, name in enumerate(kept.names):
        core = make_core(
            type=RecordType.COMMIT,
            path=f"/v{number}",
            node="1" * 64,
            parents=[],
            input=None,
            outcome="ok",
            delta=name,
            schema=None,
        )
        records.append(Record.result(core, {"values": {name: kept.packed[name]}}))
    await opened.writer.append(records)
    await opened.writer.append([commit("n", 1)])
    await opened.writer.finish(close())


async def content(store: Store, prefix: str = "") -> dict[str, bytes]:
    return {info.key: await store.get(info.key) async for info in store.list(prefix) if info.key != FORMAT}


class Cut:
    """A store that takes `left` writes and is away from then on."""

    def __init__(self, store: Store, left: int) -> None:
        self.uri = store.uri
        self.left = left
        self.store = store
        self.get, self.head, self.list, self.delete, self.aclose = (
            store.get,
            store.head,
            store.list,
            store.delete,
            store.aclose,
        )

    async def put_new(self, key: str, data: bytes) -> Put:
        if key == FORMAT or key.startswith(CHECKS):
            return await self.store.put_new(key, data)
        if self.left <= 0:
            raise CutOff(key, "cut")
        self.left -= 1
        return await self.store.put_new(key, data)

    async def put(self, key: str, data: bytes) -> None:
        await self.store.put(key, data)


class CutOff(LogCorrupt):
    """Not repeated by anybody."""


async def test_a_copy_holds_every_object_that_the_run_needs_and_no_other(store: Store) -> None:
    source = MemoryStore()
    await with_blobs(source)
    before = await content(source)
    await with_blobs(source, "other", values=([*WIDE, 1],))
    copied = await copy_run(source, RUN, store)
    assert copied.problems == []
    assert await content(store) == before
    assert copied.blobs == sum(key.startswith(BLOBS) for key in before)
    assert copied.bytes == sum(map(len, before.values()))
    assert {f"{BLOBS}{sha[:2]}/{sha}" async for sha in blobs_of(store, RUN)} == {
        key for key in before if key.startswith(BLOBS)
    }


async def test_a_copy_that_is_cut_off_anywhere_is_no_open_run_and_is_completed() -> None:
    source, target = MemoryStore(), MemoryStore()
    await with_blobs(source, values=(WIDE[:300],))
    whole = await content(source)
    cuts = 0
    for left in range(len(whole)):
        target = MemoryStore()
        with pytest.raises(CutOff):
            await copy_run(source, RUN, Cut(target, left))
        if left:
            with pytest.raises(LogCorrupt):
                await open_log(target)
        copied = await copy_run(source, RUN, target)
        assert copied.present == left
        assert copied.problems == []
        assert await content(target) == whole
        cuts += 1
    assert cuts >= 5


async def test_an_open_run_a_deleted_one_and_none_are_refused() -> None:
    source, target = MemoryStore(), MemoryStore()
    with pytest.raises(RunNotFound):
        await copy_run(source, RUN, target)
    opened = await open_log(source)
    with pytest.raises(RunOpen, match="still open"):
        await copy_run(source, RUN, target)
    await opened.writer.finish(close())
    await target.put(tomb_key(RUN), b"")
    with pytest.raises(RunDeleted):
        await copy_run(source, RUN, target)
    assert not await content(target, "runs/")


async def test_another_log_under_the_same_id_is_never_mixed_with_the_copy() -> None:
    source, target = MemoryStore(), MemoryStore()
    await with_blobs(source, values=())
    other = await open_log(target)
    await other.writer.append([commit("mine", 1)])
    with pytest.raises(CopyDiffers, match=slot_key(RUN, 0)):
        await copy_run(source, RUN, target)


async def test_a_damaged_blob_is_not_copied_where_other_runs_would_take_it_for_theirs() -> None:
    source, target = MemoryStore(), MemoryStore()
    await with_blobs(source, values=())
    key = next(iter(await content(source, BLOBS)))
    await source.put(key, b"x" + (await source.get(key))[1:])
    with pytest.raises(LogCorrupt, match="does not have its hash"):
        await copy_run(source, RUN, target)
    assert key not in await content(target)


async def test_a_second_copy_sends_nothing(tmp_path: Path) -> None:
    source, target = MemoryStore(), LocalStore(tmp_path / "to")
    await with_blobs(source)
    await copy_run(source, RUN, target)
    counted = Counted(target)
    again = await copy_run(source, RUN, counted)
    assert (again.bytes, again.blobs, again.objects) == (0, 0, 0)
    assert again.present == len(await content(source))
    await target.aclose()


@pytest.mark.parametrize(("run", "error"), [("no/id", BadRunId), ("nobody", RunNotFound)])
async def test_nothing_is_written_for_a_run_that_is_not_there(run: str, error: type[Exception]) -> None:
    target = MemoryStore()
    with pytest.raises(error):
        await copy_run(MemoryStore(), run, target)
    assert [info.key async for info in target.list("")] == []

"""Anchors: what they find that a log alone cannot show, and what they are when somebody forges them."""

import orjson
import pytest

from decurion_crds.canonical import canonical
from decurion_ledger import Anchors, SigningKey, anchor, anchored_runs, examine
from decurion_ledger.anchoring import CHECKPOINT, anchor_key
from decurion_ledger.errors import RunNotFound
from decurion_ledger.layout import slot_key
from decurion_ledger.stores import MemoryStore
from logs import RUN, close, commit, open_log

KEY = SigningKey.generate()
OTHER = SigningKey.generate()
AT = "2026-12-02T10:00:00Z"


async def stores(*, anchored: int = 2) -> tuple[MemoryStore, MemoryStore]:
    """A log of two slots, and one more after each anchor but the last."""
    store, anchors = MemoryStore(), MemoryStore()
    opened = await open_log(store, nonce="0" * 16)
    await opened.writer.append([commit("a", 1)])
    for number in range(anchored):
        report, new = await anchor(store, RUN, anchors, key=KEY, at=AT)
        assert (report.problems, new) == ([], True)
        await opened.writer.append([commit(f"b{number}", number)])
    return store, anchors


async def found(store: MemoryStore, anchors: MemoryStore, key: SigningKey = KEY) -> list[tuple[str, int]]:
    report = await examine(store, RUN, anchors=Anchors(anchors, (key.public,)))
    return [(problem.code, problem.invariant) for problem in report.problems]


async def test_a_log_that_only_grew_fits_its_anchors_and_is_anchored_once_for_each_length() -> None:
    store, anchors = await stores()
    assert await found(store, anchors) == []
    assert await anchored_runs(anchors) == [RUN]
    report, new = await anchor(store, RUN, anchors, key=KEY, at=AT)
    assert (report.slots, report.anchors, new) == (4, 2, True)
    _, new = await anchor(store, RUN, anchors, key=KEY, at="later")
    assert not new


async def test_a_log_cut_below_an_anchor_is_found_and_not_anchored_again() -> None:
    store, anchors = await stores()
    await store.delete(slot_key(RUN, 3))
    assert await found(store, anchors) == []
    await store.delete(slot_key(RUN, 2))
    assert (await examine(store, RUN)).problems == []
    assert await found(store, anchors) == [("ROLLED-BACK", 5)]
    report, new = await anchor(store, RUN, anchors, key=KEY, at=AT)
    assert (len(report.problems), new) == (1, False)


async def test_a_log_put_back_and_written_anew_is_found() -> None:
    store, anchors = await stores()
    for slot in (1, 2, 3):
        await store.delete(slot_key(RUN, slot))
    opened = await open_log(store, leader_epoch=2)
    await opened.writer.append([commit("a", "other")])
    await opened.writer.finish(close())
    assert (await examine(store, RUN)).problems == []
    assert await found(store, anchors) == [("ROLLED-BACK", 5), ("ROLLED-BACK", 5)]


async def test_a_closed_log_that_is_open_again_is_found() -> None:
    store, anchors = await stores(anchored=0)
    opened = await open_log(store, leader_epoch=2)
    await opened.writer.finish(close())
    report, _ = await anchor(store, RUN, anchors, key=KEY, at=AT)
    assert report.closed
    for key in [info.key async for info in store.list("runs/")]:
        await store.delete(key)
    assert await found(store, anchors) == [("ROLLED-BACK", 5)]


async def test_of_a_run_that_nobody_anchored_nothing_is_said() -> None:
    with pytest.raises(RunNotFound):
        await found(MemoryStore(), MemoryStore())


async def test_every_flipped_bit_of_an_anchor_is_found() -> None:
    store, anchors = await stores()
    key = anchor_key(RUN, 2)
    data = await anchors.get(key)
    for bit in range(0, len(data) * 8, 11):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        await anchors.put(key, bytes(changed))
        assert await found(store, anchors) == [("ANCHOR", 15)], bit


@pytest.mark.parametrize("forged", ["key", "run", "place", "members", "json"])
async def test_an_anchor_of_somebody_else_of_another_run_or_in_another_place_is_found(forged: str) -> None:
    store, anchors = await stores(anchored=1)
    held = orjson.loads(await anchors.get(anchor_key(RUN, 2)))
    if forged == "run":
        held["checkpoint"]["run"] = "another"
    if forged in ("key", "run"):
        by = OTHER if forged == "key" else KEY
        held["key"] = by.public
        held["signature"] = by.sign(CHECKPOINT, canonical(held["checkpoint"])).hex()
    if forged == "members":
        held["more"] = 1
    data = canonical(held) if forged != "json" else b"[]"
    await anchors.put(anchor_key(RUN, 7 if forged == "place" else 2), data)
    assert await found(store, anchors) == [("ANCHOR", 15)]


def test_the_key_of_an_anchor_is_pinned() -> None:
    assert anchor_key("r", 3) == "anchors/45/r/000000000003"

"""The verifier: silent on what a writer left, and loud on every change of it."""

import hashlib

import pytest

from decurion_crds.canonical import canonical
from decurion_ledger import (
    Record,
    RecordType,
    Values,
    core_hash,
    make_core,
    verify,
    vhash,
)
from decurion_ledger.layout import blob_key, final_key, slot_key
from decurion_ledger.log import fence
from decurion_ledger.stores import MemoryStore
from logs import RUN, close, commit, forge, genesis, open_log

BIG = {"text": "a longer text " * 400}


async def small_log(store: MemoryStore, run: str = RUN, *, closed: bool = True) -> None:
    """A log with every kind of object: four slots and more, two fences, inline values, a blob, parents, final."""
    opened = await open_log(store, run, nonce="0" * 16)
    plan = commit("plan", {"n": 1})
    await opened.writer.append([plan, Record.event(RecordType.ATTEMPT_FAILED, "/read", {"class": "Transient"})])
    opened = await open_log(store, run, leader_epoch=2, driver="driver-1", nonce="1" * 16)
    read = make_core(
        type=RecordType.COMMIT,
        path="/read",
        node="2" * 64,
        parents=[("/plan", plan.core_hash)],
        input=vhash({"n": 1}),
        outcome="ok",
        delta=vhash(BIG),
        schema=None,
    )
    await opened.writer.append([Record.result(read, {"values": await Values(store, run).pack([BIG])})])
    if closed:
        await opened.writer.finish(close())


async def objects(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: await store.get(info.key) async for info in store.list("")}


async def codes(store: MemoryStore, run: str = RUN) -> set[str]:
    return {problem.code for problem in await verify(store, run)}


@pytest.mark.parametrize("closed", [False, True])
async def test_an_honest_log_has_no_problem(closed: bool) -> None:
    store = MemoryStore()
    await small_log(store, closed=closed)
    assert await verify(store, RUN) == []
    assert len(await objects(store)) == (7 if closed else 5)


@pytest.mark.parametrize("closed", [False, True])
async def test_a_flipped_bit_in_any_object_is_reported(closed: bool) -> None:
    store = MemoryStore()
    await small_log(store, closed=closed)
    missed = []
    for key, data in (await objects(store)).items():
        # one bit in each byte of segments and `final`, and one in twelve bytes of the blob
        for bit in range(0, len(data) * 8, 97 if key.startswith("blobs/") else 9):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            await store.put(key, bytes(changed))
            if not await verify(store, RUN):
                missed.append((key, bit))
        await store.put(key, data)
    assert missed == []
    assert await verify(store, RUN) == []


async def test_every_truncated_or_lengthened_object_is_reported() -> None:
    store = MemoryStore()
    await small_log(store)
    for key, data in (await objects(store)).items():
        for changed in (b"", data[:-1], data[:-57], data[: len(data) // 2], data[1:], data + b"\0", data + data):
            await store.put(key, changed)
            assert await verify(store, RUN), (key, len(changed))
        await store.put(key, data)


async def test_every_missing_object_is_reported_with_its_key() -> None:
    store = MemoryStore()
    await small_log(store)
    for key, data in (await objects(store)).items():
        await store.delete(key)
        problems = await verify(store, RUN)
        assert problems, key
        if "/log/" not in key or not key.endswith("4"):
            assert key in {problem.where for problem in problems}
        await store.put(key, data)


async def test_removing_the_newest_slots_of_a_final_log_is_reported() -> None:
    store = MemoryStore()
    await small_log(store)
    for slot in (4, 3, 2, 1):
        await store.delete(slot_key(RUN, slot))
        assert await codes(store) == {"TRUNCATED"}


async def test_exchanged_slots_are_reported() -> None:
    store = MemoryStore()
    await small_log(store)
    for one in range(5):
        for other in range(one):
            a, b = slot_key(RUN, one), slot_key(RUN, other)
            data_a, data_b = await store.get(a), await store.get(b)
            await store.put(a, data_b)
            await store.put(b, data_a)
            assert {"WRONG-PLACE", "CHAIN"} <= await codes(store)
            await store.put(a, data_a)
            await store.put(b, data_b)


async def test_objects_of_another_run_are_reported() -> None:
    store = MemoryStore()
    await small_log(store)
    await small_log(store, "another-run")
    keys = [(slot_key(RUN, slot), slot_key("another-run", slot)) for slot in range(5)]
    for mine, theirs in [*keys, (final_key(RUN), final_key("another-run"))]:
        data = await store.get(mine)
        await store.put(mine, await store.get(theirs))
        assert await verify(store, RUN), mine
        await store.put(mine, data)
    for mine, theirs in [*keys, (final_key(RUN), final_key("another-run"))]:
        await store.put(mine, await store.get(theirs))
    assert "WRONG-PLACE" in await codes(store)


async def test_a_slot_behind_the_close_and_a_foreign_name_are_reported() -> None:
    store = MemoryStore()
    await small_log(store)
    await store.put(slot_key(RUN, 5), await store.get(slot_key(RUN, 4)))
    assert "BEYOND-CLOSE" in await codes(store)
    await store.delete(slot_key(RUN, 5))
    await store.put(slot_key(RUN, 4) + "x", b"")
    assert await codes(store) == {"FOREIGN-OBJECT"}


async def test_a_closed_log_without_final_is_reported() -> None:
    store = MemoryStore()
    await small_log(store)
    await store.delete(final_key(RUN))
    assert await codes(store) == {"FINAL-MISSING"}


async def test_a_problem_names_object_code_and_reason() -> None:
    store = MemoryStore()
    await small_log(store)
    await store.delete(slot_key(RUN, 1))
    first = (await verify(store, RUN))[0]
    assert str(first) == "slot 1 [SLOT-MISSING, invariant 1] the slot is missing but later ones exist"
    assert first.to_json() == {
        "code": "SLOT-MISSING",
        "invariant": 1,
        "slot": 1,
        "path": None,
        "object": slot_key(RUN, 1),
        "message": "the slot is missing but later ones exist",
    }


# --- logs that a faulty writer could have left: every hash is right, a rule is broken


async def forged(*segments: tuple[int, str, list[Record]], final: bool = False) -> set[str]:
    store = MemoryStore()
    await forge(store, *segments, final=final)
    return await codes(store)


START = (1, "d", [genesis(), fence(1, 1, "d")])


def dependent(*parents: tuple[str, str]) -> Record:
    core = make_core(
        type="commit", path="/b", node="0" * 64, parents=parents, input=None, outcome="ok", delta=None, schema=None
    )
    return Record.result(core, {})


IN_BRANCH = commit("m[00000]/a", 1)


async def test_the_forged_log_without_a_fault_has_no_problem() -> None:
    a = commit("a", 1)
    assert await forged(START, (1, "d", [a, dependent(("/a", a.core_hash))]), (1, "d", [close()]), final=True) == set()


@pytest.mark.parametrize(
    ("segments", "code"),
    [
        ([(1, "d", [genesis()])], "OWNER"),
        ([(1, "d", [fence(1, 1, "d"), genesis()])], "GENESIS"),
        ([START, (1, "d", [genesis()])], "GENESIS"),
        ([START, (1, "e", [commit("a")])], "OWNER"),
        ([START, (2, "d", [commit("a")])], "OWNER"),
        ([START, (1, "e", [fence(1, 2, "e")])], "EPOCH"),
        ([START, (2, "e", [fence(2, 2, "d")])], "EPOCH"),
        ([START, (1, "d", [commit("a", 1)]), (1, "d", [commit("a", 2)])], "DUPLICATE-PATH"),
        ([START, (1, "d", [commit("a", 1), commit("a", 1)])], "DUPLICATE-PATH"),
        ([START, (1, "d", [dependent(("/a", commit("a", 1).core_hash))])], "PARENT"),
        ([START, (1, "d", [commit("a", 2), dependent(("/a", commit("a", 1).core_hash))])], "PARENT"),
        ([START, (1, "d", [IN_BRANCH, dependent(("/m[00000]/a", IN_BRANCH.core_hash))])], "ISOLATION"),
        ([START, (1, "d", [close(), commit("a")])], "BEYOND-CLOSE"),
        ([START, (1, "d", [close()]), (1, "d", [commit("a")])], "BEYOND-CLOSE"),
        ([START, (1, "d", [Record.event("cancel", "no path", {})])], "RECORD-FORMAT"),
    ],
)
async def test_a_broken_rule_is_reported_though_all_hashes_are_right(segments: list, code: str) -> None:
    assert code in await forged(*segments)


async def test_values_and_cores_that_do_not_have_their_hash_are_reported() -> None:
    wrong_value = Record.result(commit("a", 1).core or {}, {"values": {vhash(1): {"inline": 2}}})
    assert await forged(START, (1, "d", [wrong_value])) == {"VALUE-HASH"}
    core = commit("a", 1).core or {}
    held = {"values": {core["delta"]: {"inline": 1}}}
    wrong_core = Record("commit", "/a", core, held, core_hash({**core, "delta": "0" * 64}))
    assert await forged(START, (1, "d", [wrong_core])) == {"CORE-HASH"}


async def test_a_blob_with_another_value_than_its_record_names_is_reported() -> None:
    store = MemoryStore()
    await small_log(store)
    raw = canonical(BIG)
    key = blob_key(hashlib.sha256(raw).hexdigest())
    assert await store.get(key) == raw
    await store.put(key, canonical({"text": "another"}))
    assert await codes(store) == {"BLOB"}
    await store.delete(key)
    assert await codes(store) == {"BLOB-MISSING"}


@pytest.mark.parametrize(
    "value",
    [
        [],
        [["x" * 300] * 300] * 3,
        {"rows": [{"i": i, "text": "y" * 100} for i in range(1500)], "more": [1, 2]},
        {"$list": {"count": 1, "root": "0"}},
        {"deep": [{"$list": ["z" * 70_000, {"$list": [1]}]}]},
        "w" * 100_000,
        [1.0, 1, -0.0, 1e16, "é", "\u2028", None, True],
    ],
)
async def test_it_computes_the_same_value_hashes_as_the_writer(value: object) -> None:
    store = MemoryStore()
    packed = await Values(store, RUN).pack([value])
    opened = await open_log(store)
    core = commit("a", value).core or {}
    await opened.writer.append([Record.result(core, {"values": packed})])
    assert await verify(store, RUN) == []


# --- objects that are made from the log


async def test_an_index_that_is_not_what_the_log_makes_it_is_reported_and_may_be_missing() -> None:
    store = MemoryStore()
    opened = await open_log(store, nonce="0" * 16)
    for i in range(40):
        await opened.writer.append([commit(f"a{i}", i)])
    await opened.writer.finish(close())
    assert await verify(store, RUN) == []
    made = [key for key in await objects(store) if "/index/" in key or key.endswith("/tail")]
    assert len(made) == 3
    for key in made:
        data = await store.get(key)
        for bit in range(0, len(data) * 8, 397):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            await store.put(key, bytes(changed))
            assert await codes(store) == {"DERIVED"}
        await store.delete(key)
        assert await verify(store, RUN) == []
        await store.put(key, data)


async def test_what_no_run_has_is_reported() -> None:
    store = MemoryStore()
    await small_log(store)
    folder = final_key(RUN).removesuffix("final")
    await store.put(f"{folder}another", b"x")
    assert await codes(store) == {"FOREIGN-OBJECT"}
    await store.delete(f"{folder}another")
    await store.put(f"{folder}packs/{'0' * 64}", b"x")
    assert await codes(store) == {"PACK"}

"""Proofs of inclusion: for every record of every size of log, and nothing else than what was written."""

import copy
from typing import Any

import pytest

from decurion_crds.canonical import merkle_root
from decurion_ledger import SigningKey, anchor, check_proof, prove
from decurion_ledger.errors import LogCorrupt, RecordNotFound, RunNotFound
from decurion_ledger.layout import slot_key
from decurion_ledger.proving import audit_path
from decurion_ledger.stores import MemoryStore
from decurion_ledger.verifier.proofs import _root
from logs import RUN, commit
from test_signatures import OTHER_ROOT, ROOT, opened, signer

KEY = SigningKey.generate()


async def store_of(slots: int, *, signed: bool = True) -> MemoryStore:
    """A log of `slots` slots behind the first; slot n holds the results /a<n>x0 to /a<n>x<n>."""
    store = MemoryStore()
    log = await opened(store, signer() if signed else None)
    for slot in range(1, slots + 1):
        await log.writer.append([commit(f"a{slot}x{i}", i) for i in range(slot + 1)])
    return store


@pytest.mark.parametrize("count", range(1, 18))
def test_the_way_to_the_root_is_found_for_each_leaf(count: int) -> None:
    leaves = [bytes([i]) for i in range(count)]
    root = merkle_root("d", leaves)
    for index, leaf in enumerate(leaves):
        path = audit_path("d", leaves, index)
        assert _root("d", leaf, index, count, path) == root
        for at, number in ((index + 1, count), (index, count + 1)):
            try:
                assert _root("d", leaf, at, number, path) != root or number != count
            except ValueError:
                continue


async def test_each_record_is_proved_with_the_root_key_alone() -> None:
    store = await store_of(5)
    for slot in range(1, 6):
        for i in range(slot + 1):
            proof = (await prove(store, RUN, f"/a{slot}x{i}")).to_json()
            proved = check_proof(proof, roots=[ROOT.public])
            assert (proved.fault, proved.slot, proved.slots, proved.issuer) == (None, slot, 6, ROOT.public)
    assert (await prove(store, RUN, "/")).segment["slot"] == 0


async def test_a_proof_holds_no_other_record() -> None:
    store = await store_of(3)
    text = str((await prove(store, RUN, "/a3x1")).to_json())
    assert "/a3x1" in text
    assert not any(path in text for path in ("/a3x0", "/a3x2", "/a2x0"))


def leaves_of(found: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(found, dict):
        return [leaf for name in found for leaf in leaves_of(found[name], (*at, name))]
    if isinstance(found, list):
        return [leaf for i in range(len(found)) for leaf in leaves_of(found[i], (*at, i))]
    return [at]


async def test_a_proof_of_which_anything_was_changed_proves_nothing() -> None:
    store, anchors = await store_of(5), MemoryStore()
    await anchor(store, RUN, anchors, key=KEY, at="2026-12-02T10:00:00Z")
    proof = (await prove(store, RUN, "/a4x2", anchors=anchors)).to_json()
    keys = {"roots": [ROOT.public], "anchor_keys": [KEY.public]}
    proved = check_proof(proof, **keys)
    assert (proved.fault, proved.anchored) == (None, ("2026-12-02T10:00:00Z", KEY.public))
    places = leaves_of(proof)
    assert len(places) > 30
    for place in places:
        changed = copy.deepcopy(proof)
        held = changed
        for step in place[:-1]:
            held = held[step]
        old = held[place[-1]]
        if isinstance(old, bool):
            held[place[-1]] = not old
        elif isinstance(old, int):
            held[place[-1]] = old + 1
        else:
            held[place[-1]] = ("0" if old[0] != "0" else "1") + old[1:]
        assert check_proof(changed, **keys).fault is not None, place
        del held[place[-1]]
        assert check_proof(changed, **keys).fault is not None, place


async def test_other_keys_and_an_anchor_that_is_not_there_are_told() -> None:
    store = await store_of(2)
    proof = (await prove(store, RUN, "/a1x0")).to_json()
    assert "none of the root keys" in str(check_proof(proof, roots=[OTHER_ROOT.public]).fault)
    assert "anchor" in str(check_proof(proof, anchor_keys=[KEY.public]).fault)


async def test_an_unsigned_proof_holds_in_itself_and_not_under_a_root_key() -> None:
    proof = (await prove(await store_of(2, signed=False), RUN, "/a1x0")).to_json()
    proved = check_proof(proof)
    assert (proved.fault, proved.issuer) == (None, "")
    assert "unsigned" in str(check_proof(proof, roots=[ROOT.public]).fault)


@pytest.mark.parametrize("found", [None, [], {}, {"kind": "decurion-inclusion-proof", "format": 1}, "x"])
def test_what_is_no_proof_proves_nothing(found: Any) -> None:
    assert check_proof(found).fault is not None


async def test_an_anchor_older_than_the_record_is_not_taken() -> None:
    store, anchors = await store_of(1), MemoryStore()
    await anchor(store, RUN, anchors, key=KEY, at="t")
    log = await opened(store, signer(), leader_epoch=2)
    await log.writer.append([commit("late", 1)])
    assert (await prove(store, RUN, "/late", anchors=anchors)).anchor is None
    assert (await prove(store, RUN, "/a1x0", anchors=anchors)).log["slots"] == 2


async def test_what_cannot_be_proved_is_told() -> None:
    with pytest.raises(RunNotFound):
        await prove(MemoryStore(), RUN, "/a")
    store = await store_of(2)
    with pytest.raises(RecordNotFound, match="/b"):
        await prove(store, RUN, "/b")
    await store.delete(slot_key(RUN, 1))
    with pytest.raises(LogCorrupt):
        await prove(store, RUN, "/a2x0")

"""Value hashes do not depend on where a value is kept; packing puts it where the sizes say."""

import asyncio
import hashlib
import math
import sys

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decurion_crds.canonical import canonical
from decurion_crds.wide import ItemRef, ListRef, Merged, mark
from decurion_ledger import Values, open_store, pack, unpack, vhash
from decurion_ledger.errors import BlobCorrupt, NotJson, Unavailable, ValueMissing, ValueTooWide
from decurion_ledger.layout import blob_key
from decurion_ledger.merges import merged
from decurion_ledger.patience import Patience
from decurion_ledger.stores import Counted, MemoryStore
from faulty import Fault, Faulty, SteppedClock
from logs import RUN

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.just("$list"), inner, max_size=4)
    ),
    max_leaves=12,
)


def test_value_hashes_are_pinned() -> None:
    assert vhash(None) == "4ed8cdff5a878afb279985c961eb7a9235ba2fa52acc56ce4fa47f8f83f887e7"
    assert vhash({"b": [1, 1.0, "é"], "a": None}) == "64e7811f0a9c2b16b1f59c3414eb227d3cfb237e006bc5006f33fa613125913e"
    assert vhash(["x" * 1000] * 100) == "8209d5e334b4d9f167f1dd71c9ba6c2f333ec94f9b83795bdb8c83eaa534d0d8"
    assert (
        vhash({"rows": [{"i": i} for i in range(10_000)]})
        == "1e727b707f19d6fa9d64550b9b7a62c47276095014783cfd4b9558e51ebb2bcf"
    )


def test_a_small_value_is_hashed_as_it_stands() -> None:
    value = {"b": [1, 2], "a": "x"}
    assert vhash(value) == hashlib.sha256(b"decurion/value/v1\0" + canonical(value)).hexdigest()


def test_a_wide_list_is_hashed_by_the_hashes_of_its_items() -> None:
    items = [{"i": i, "text": "t" * 50} for i in range(1000)]
    level = [hashlib.sha256(b"decurion/list/v1\0\0" + bytes.fromhex(vhash(item))).digest() for item in items]
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [hashlib.sha256(b"decurion/list/v1\0\1" + p[0] + p[1]).digest() if len(p) == 2 else p[0] for p in pairs]
    folded = {"$list": {"count": 1000, "root": level[0].hex()}}
    assert vhash(items) == hashlib.sha256(b"decurion/value/v1\0" + canonical(folded)).hexdigest()
    wrapped = {"rows": folded}
    assert vhash({"rows": items}) == hashlib.sha256(b"decurion/value/v1\0" + canonical(wrapped)).hexdigest()


def test_the_limit_of_a_wide_list_is_64_kib_of_canonical_form() -> None:
    def plain(value: object) -> str:
        return hashlib.sha256(b"decurion/value/v1\0" + canonical(value)).hexdigest()

    at_limit = ["x" * (65_536 - 4)]
    above = ["x" * (65_536 - 3)]
    assert (len(canonical(at_limit)), len(canonical(above))) == (65_536, 65_537)
    assert vhash(at_limit) == plain(at_limit)
    assert vhash(above) != plain(above)
    assert vhash("x" * 100_000) == plain("x" * 100_000)


def test_a_value_cannot_pass_for_a_folded_list() -> None:
    items = [{"i": i, "text": "t" * 50} for i in range(1000)]
    leaves = [hashlib.sha256(b"decurion/list/v1\0\0" + bytes.fromhex(vhash(item))).digest() for item in items]
    while len(leaves) > 1:
        pairs = [leaves[i : i + 2] for i in range(0, len(leaves), 2)]
        leaves = [
            hashlib.sha256(b"decurion/list/v1\0\1" + p[0] + p[1]).digest() if len(p) == 2 else p[0] for p in pairs
        ]
    forged = {"$list": {"count": 1000, "root": leaves[0].hex()}}
    assert vhash(forged) != vhash(items)
    assert vhash({"$list": {"value": forged}}) != vhash(forged)
    assert len({vhash({"$list": 1}), vhash({"$list": {"value": 1}}), vhash({"$list": {"value": {"$list": 1}}})}) == 3


@given(json_values, json_values)
def test_values_share_a_hash_iff_they_share_canonical_bytes(a: object, b: object) -> None:
    assert (vhash(a) == vhash(b)) == (canonical(a) == canonical(b))


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [None, -math.inf],
        {"a": {"b": [1.0, math.nan]}},
        (1, math.nan),
        2**64,
        {1: "a"},
        {"a": {1, 2}},
        b"bytes",
        "\ud800",
        object(),
    ],
)
async def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(NotJson, match=r".+: .+\."):
        vhash(value)
    store = Counted(MemoryStore())
    with pytest.raises(NotJson):
        await pack(store, RUN, [value])
    assert store.puts == 0


def test_nesting_beyond_the_serialiser_is_refused_and_not_a_crash() -> None:
    value: list = []
    for _ in range(sys.getrecursionlimit() * 2):
        value = [value]
    with pytest.raises(NotJson):
        vhash(value)


async def test_sizes_decide_between_inline_and_blob() -> None:
    store = Counted(MemoryStore())
    at_limit, above = "x" * 4094, "x" * 4095
    packed = await pack(store, RUN, [at_limit, above])
    raw = canonical(above)
    assert packed == {
        vhash(at_limit): {"inline": at_limit},
        vhash(above): {"blob": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)},
    }
    assert await store.get(blob_key(hashlib.sha256(raw).hexdigest())) == raw
    assert store.puts == 1


async def test_a_record_holds_at_most_16_kib_inline() -> None:
    packed = await pack(MemoryStore(), RUN, [f"{i}" + "x" * 4000 for i in range(6)])
    assert ["inline" in held for held in packed.values()] == [True] * 4 + [False] * 2


@given(st.lists(json_values, max_size=5))
async def test_what_was_packed_is_unpacked_by_its_hash(values: list) -> None:
    store = MemoryStore()
    many = [*values, *(["x" * 6000, value] for value in values)]
    envelope = {"values": await pack(store, RUN, many)}
    for value in many:
        assert canonical(await unpack(store, envelope, vhash(value))) == canonical(value)


async def test_equal_values_are_stored_once_a_process() -> None:
    store = Counted(MemoryStore())
    values = Values(store, RUN)
    big = {"text": "x" * 5000}
    first = await values.pack([big, dict(big)])
    assert await values.pack([big]) == first
    assert store.puts == 1
    assert await values.unpack({"values": first}, vhash(big)) == big


async def test_a_blob_is_sent_until_the_store_has_answered() -> None:
    store = Faulty(MemoryStore(), {blob_key(hashlib.sha256(canonical("x" * 5000)).hexdigest()): [
        Fault.LOST_REQUEST, Fault.CONFLICT, Fault.LOST_RESPONSE,
    ]})  # fmt: skip
    packed = await Values(store, RUN, clock=SteppedClock()).pack(["x" * 5000])
    assert await unpack(store, {"values": packed}, vhash("x" * 5000)) == "x" * 5000
    assert len(store.sent) == 4


async def test_out_of_patience_the_error_of_the_store_is_raised_and_the_blob_is_sent_anew() -> None:
    key = blob_key(hashlib.sha256(canonical("x" * 5000)).hexdigest())
    store = Faulty(MemoryStore(), {key: [Fault.BUSY] * 3})
    values = Values(store, RUN, clock=SteppedClock(), patience=Patience(total=0.1))
    with pytest.raises(Unavailable):
        await values.pack(["x" * 5000])
    store.plan.clear()
    await values.pack(["x" * 5000])
    assert (await store.head(key)).size == 5002


async def test_missing_and_changed_values_are_told_apart() -> None:
    store = MemoryStore()
    big = "x" * 5000
    envelope = {"values": await pack(store, RUN, [big])}
    key = blob_key(envelope["values"][vhash(big)]["blob"])
    with pytest.raises(ValueMissing):
        await unpack(store, envelope, vhash("another"))
    with pytest.raises(ValueMissing):
        await unpack(store, {}, vhash("another"))
    await store.put(key, canonical("y" * 5000))
    with pytest.raises(BlobCorrupt, match="length and SHA-256"):
        await unpack(store, envelope, vhash(big))
    await store.delete(key)
    with pytest.raises(BlobCorrupt, match="missing"):
        await unpack(store, envelope, vhash(big))


WIDE = [{"i": i, "text": "x" * 40} for i in range(2_000)]


async def test_a_wide_list_comes_back_as_a_reference_that_knows_its_size() -> None:
    store = open_store("memory://wide")
    values = Values(store, RUN)
    kept = await values.keep([{"rows": WIDE, "n": 1}])
    back = await values.unpack({"values": kept.packed}, kept.names[0])
    ref = back["rows"]
    assert isinstance(ref, ListRef)
    assert (ref.count, ref.bytes) == (2_000, len(canonical(WIDE)))
    assert back == kept.values[0]
    assert kept.names == [vhash({"rows": WIDE, "n": 1})] == [vhash(back)]
    assert await Values(store, RUN).load(back) == {"rows": WIDE, "n": 1}
    assert await Values(store, RUN).item(ItemRef(ref, 1_999)) == WIDE[1_999]


async def test_the_index_names_chunks_of_512_items_and_large_items_have_blobs_of_their_own() -> None:
    store = open_store("memory://wide-chunks")
    values = Values(store, RUN)
    rows = [{"i": i, "text": "y" * (6_000 if i % 500 == 0 else 90)} for i in range(1_500)]
    kept = await values.keep([rows])
    ref = kept.values[0]
    index = orjson.loads(await store.get(blob_key(ref.index)))
    assert (index["count"], index["bytes"], len(index["chunks"])) == (1_500, len(canonical(rows)), 3)
    chunk = orjson.loads(await store.get(blob_key(index["chunks"][0][0])))
    assert len(chunk) == 512
    assert chunk[0].keys() == {"blob", "bytes"}
    assert chunk[1] == [rows[1]]
    assert await values.load(ref) == rows


@pytest.mark.parametrize(
    "value",
    [
        {"$list": {"value": 1}},
        {"$list": {"bytes": 1, "count": 1, "index": "a", "root": "b"}},
        {"rows": WIDE, "mine": {"$list": {"count": 1, "root": "b"}}},
        [WIDE, WIDE, "end"],
        [[WIDE] * 3, {"$list": WIDE}],
        [{"$list": i} for i in range(10_000)],
        [["z" * 3_500] * 20] * 800,
    ],
    ids=["escape", "like a reference", "both", "lists in a list", "nested", "a list of escapes", "a wide list of them"],
)
async def test_references_and_what_looks_like_one_keep_their_hash_through_the_store(value: object) -> None:
    store = open_store("memory://wide-forms")
    values = Values(store, RUN)
    kept = await values.keep([value])
    back = await values.unpack({"values": kept.packed}, kept.names[0])
    assert vhash(back) == kept.names[0] == vhash(value)
    again = await values.keep([back])
    assert again.names == kept.names
    assert again.packed == kept.packed or "inline" in kept.packed[kept.names[0]]
    assert await values.load(back, limit=1 << 40) == value


async def test_more_than_the_limit_is_not_loaded_and_the_error_says_what_to_do() -> None:
    values = Values(open_store("memory://wide-limit"), RUN)
    (ref,) = (await values.keep([WIDE])).values
    with pytest.raises(ValueTooWide, match=r"its lists have 0\.1 MiB, more than .* map over the list"):
        await values.load(mark({"a": ref}), limit=1_000)


async def same(items: list) -> list:
    return items


async def numbers(items: list) -> list:
    return [item["i"] for item in items]


async def test_lists_are_appended_and_rebuilt_chunk_by_chunk_to_what_they_would_be_whole() -> None:
    values = Values(open_store("memory://wide-append"), RUN)
    (ref,) = (await values.keep([WIDE])).values
    both = await merged(values, Merged("rows", "append", "", "first", (("a", ref), ("b", [1, 2]), ("c", ref))))
    assert vhash(both) == vhash([*WIDE, 1, 2, *WIDE])
    assert await values.rebuilt(ref, same) == ref
    narrow = await values.rebuilt(ref, numbers)
    assert narrow == [row["i"] for row in WIDE]


async def test_a_chunk_that_many_want_is_fetched_once_and_a_wrong_index_is_refused() -> None:
    store = open_store("memory://wide-once")
    (ref,) = (await Values(store, RUN).keep([WIDE])).values
    counted = Counted(store)
    values = Values(counted, RUN)
    got = await asyncio.gather(*(values.item(ItemRef(ref, i)) for i in range(512)))
    assert list(got) == WIDE[:512]
    assert counted.gets == 2
    with pytest.raises(BlobCorrupt, match="not the index"):
        await values.load(ListRef(ref.count, ref.bytes, "0" * 64, ref.index))

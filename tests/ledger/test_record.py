"""Records: pinned bytes and hashes, what a core hash depends on, and what decoding refuses."""

import hashlib
import random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decurion_ledger.errors import RecordCorrupt
from decurion_ledger.record import Record, RecordType, core_hash, decode, encode, make_core, record_hash

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def a_core(**changes: object) -> dict:
    fields: dict = {
        "type": RecordType.COMMIT,
        "path": "/extract[00017]/read",
        "node": "1" * 64,
        "parents": [("/plan", "2" * 64)],
        "input": "3" * 64,
        "outcome": "ok",
        "delta": "4" * 64,
        "schema": "5" * 64,
        "writes": [("rows", "6" * 64)],
    }
    return make_core(**(fields | changes))


def test_the_stored_form_and_both_hashes_are_pinned() -> None:
    record = Record.result(a_core(), {"attempt": 1, "epoch": 2})
    stored = encode(record)
    assert stored == (
        b'{"core":{"delta":"' + b"4" * 64 + b'","input":"' + b"3" * 64 + b'","node":"' + b"1" * 64
        + b'","outcome":"ok","parents":[["/plan","' + b"2" * 64 + b'"]],"path":"/extract[00017]/read","schema":"'
        + b"5" * 64 + b'","type":"commit","v":0,"workspace":null,"writes":[["rows","' + b"6" * 64
        + b'"]]},"core_hash":"' + record.core_hash.encode() + b'","envelope":{"attempt":1,"epoch":2}}'
    )  # fmt: skip
    assert record.core_hash == "0d750e11ea7914182634d5bef6856a747e0b1e20cb32e045787122cec7d8eee8"
    assert record_hash(stored) == "62ee72fd8aedbd3dc15497b5dd6660bc966cf285c265e01451bdcf18f36546f1"


def test_the_hashes_are_sha256_behind_their_domains() -> None:
    core = a_core()
    canonical = orjson.dumps(core, option=orjson.OPT_SORT_KEYS)
    assert core_hash(core) == hashlib.sha256(b"decurion/core/v0\0" + canonical).hexdigest()
    assert record_hash(b"x") == hashlib.sha256(b"decurion/record/v0\0x").hexdigest()


def test_record_types_keep_their_persisted_names() -> None:
    assert {t.value for t in RecordType} == {
        "genesis", "fence", "commit", "skip", "attempt_failed", "scope_opened", "join", "lease_lost", "cancel", "close",
            "timer_set", "timer_fired", "effect_intended", "effect_settled", "turn",
            "approval_requested", "approval_given", "suspended", "resumed", "race_won", "conflict", "budget",
    }  # fmt: skip


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_what_was_encoded_decodes_to_itself(envelope: dict) -> None:
    for record in (Record.result(a_core(), envelope), Record.event(RecordType.FENCE, "/", envelope)):
        assert decode(encode(record)) == record
        assert b"\n" not in encode(record)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_the_stored_form_is_canonical(envelope: dict) -> None:
    for record in (Record.result(a_core(), envelope), Record.event(RecordType.FENCE, "/", envelope)):
        stored = encode(record)
        assert orjson.dumps(orjson.loads(stored), option=orjson.OPT_SORT_KEYS) == stored


def test_order_of_parents_and_writes_does_not_matter() -> None:
    parents = [(f"/extract[{i:05d}]!output", f"{i:064x}") for i in range(12)]
    writes = [(f"c{i}", f"{i:064x}") for i in range(12)]
    expected = core_hash(a_core(parents=parents, writes=writes))
    shuffled = random.Random(1)
    for _ in range(5):
        shuffled.shuffle(parents)
        shuffled.shuffle(writes)
        assert core_hash(a_core(parents=parents, writes=writes)) == expected


def test_the_core_hash_does_not_depend_on_the_envelope_but_the_record_hash_does() -> None:
    one, two = Record.result(a_core(), {"attempt": 1}), Record.result(a_core(), {"attempt": 2})
    assert one.core_hash == two.core_hash
    assert record_hash(encode(one)) != record_hash(encode(two))


@pytest.mark.parametrize(
    "change",
    [
        {"type": RecordType.SKIP},
        {"path": "/extract[00018]/read"},
        {"node": "0" * 64},
        {"parents": []},
        {"input": None},
        {"outcome": "skipped"},
        {"outcome": {"failed": {"class": "Terminal", "code": "X"}}},
        {"delta": None},
        {"schema": None},
        {"writes": []},
    ],
)
def test_every_field_enters_the_core_hash(change: dict) -> None:
    assert core_hash(a_core(**change)) != core_hash(a_core())


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'"x"',
        b'{"envelope":{},"path":"/"}',
        b'{"envelope":[],"path":"/","type":"fence"}',
        b'{"envelope":{},"path":1,"type":"fence"}',
        b'{"core":null,"core_hash":"","envelope":{}}',
        b'{"core":{"path":"/a"},"core_hash":"","envelope":{}}',
        encode(Record.result(a_core(), {})).replace(b'"input":"3', b'"input":"2'),
        encode(Record.result(a_core(), {})).replace(b'"core_hash":"', b'"core_hush":"'),
        b"\xff\xfe",
    ],
)
def test_what_is_no_record_is_refused_with_its_place(stored: bytes) -> None:
    with pytest.raises(RecordCorrupt, match="slot 7"):
        decode(stored, "slot 7")

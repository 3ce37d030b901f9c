"""Segments: a golden one, frames and index, and what parsing refuses."""

import base64
import random

import pytest

from decurion_ledger import Record, RecordType, decode
from decurion_ledger.errors import RecordTooLarge, SegmentCorrupt
from decurion_ledger.log import fence
from decurion_ledger.segment import (
    Encoded,
    Header,
    build,
    extract,
    footer_bytes,
    locate,
    parse,
    prepare,
    segment_hash,
    start_hash,
)
from logs import RUN, commit, genesis

# the bytes of a segment of format 0: they must stay readable for as long as the format has that number
GOLDEN = base64.b64decode(
    "ZGVjdXJpb24AAAEdeyJjb3VudCI6MywiZHJpdmVyIjoiZHJpdmVyLTAiLCJlcG9jaCI6MSwiZm9ybWF0IjowLCJub25jZSI6IjAwMDAwMDAwMD"
    "AwMDAwMDAiLCJwcmV2aW91cyI6IjcwZTBiMDc2OWJiNzliMzI1OWEzYjFiYTlhNzlmYjRkNTUyY2Q0OGNkNWVlOGQ5OTRiYmMzZDNjZTE5OTU4"
    "Y2UiLCJyb290IjoiOWNlYmM3YTNmOTFlY2FkOGQzMTk4ODdlZThjN2QwMDI0ZjE5NWE0NWEwZmFkODhhN2Q5NWY5Nzc2ZThmNDU5YSIsInJ1bi"
    "I6IjAxOThjN2QyLTNmMDAtNzAwMC04MDAwLTAwMDAwMDAwMDAwMSIsInNsb3QiOjB9KLUv/WCjAU0LAFYZSiBAaasDO06F/qf/6iFU3JIZNWFV"
    "FJhIZNs2s3CdivL5mkEAPgBCACybpIePzNGsILNnbboGpTn28ZPgERNJ+ucoAJ4Ng9ILQ2GA5ouxdO3DEZifCzAx+Wl+ODwiicrhCfCdIEcvaj"
    "8hTdnKOalsa2MXJFKPm9vIqh97+w7PKJJq/JyifRx5U2rNBW792KJLXUR0MsmyndqlmuwmaXuMSo5LbU9XcAGKQc+YLAUKYvCD4Bc/Z4xEApnH"
    "oajwMdGIufw8EgzAL0xtJSY/L0ASyGQUyM/T4ZuR+vOer9m6QlO8SxtDDFHJvQIATdM0TYI/qMZRjSfApRVHXJw/itpz7OZaLhQSUvOppUg5bm"
    "qi2dRjxDIlTknFZUalZNTUrpWiQmuXiDCcphkjFgAARGCrLglAxCrhf89Mb+SqPQyFplH6hsfVwMgugIIliRNKUoZloRYj1oYXgoLhMzSzeMmm"
    "VjKHYujXkgcAAAAAAAABKQAAAXMAAAKjalDchYQTTH3lN8AFL/bSNgAAAAAAAACSAAACEHfhxv9NTpQwd2lt6K6t5VpJdorA8/V1zNNmsTQ1Cg"
    "Y3il7asoJjJEMhngUeSt4tHQAAAAAAAAAAAAAANtzoVvMPn+tGbsh9N336dzyKyeI0KlOGq87E28RFjB6nil7asoJjJEMhngUeSt4tHQAAAAAA"
    "AAA3AAAAWpEsVTwqNwTI31Xbnhmd/DLYgBB7HZhsUMD9kPyspGefAAAAAAAAApwAAAABAAAAA2RlY3VyaW9uLkk3CGyEOYpiK8tOjLy1XOI9L6"
    "nFlEFEm20CFAyV5wE="
)


def built(records: list[Record], **changes: object) -> tuple[Header, bytes]:
    fields: dict = {"run": RUN, "slot": 3, "epoch": 2, "driver": "d", "nonce": "0" * 16, "previous": "f" * 64}
    return build([prepare(r) for r in records], **(fields | changes))


def many(count: int) -> list[Record]:
    pick = random.Random(1)
    return [commit(f"n{i}", "".join(pick.choices("abcdef", k=pick.randrange(2000)))) for i in range(count)]


def test_a_golden_segment_is_read_as_it_was_written() -> None:
    segment = parse(GOLDEN, "golden")
    assert segment.hash == "2e4937086c84398a622bcb4e8cbcb55ce23d2fa9c59441449b6d02140c95e701"
    assert segment.header == Header(
        run=RUN,
        slot=0,
        epoch=1,
        driver="driver-0",
        nonce="0" * 16,
        previous=start_hash(RUN),
        root="9cebc7a3f91ecad8d319887ee8c7d0024f195a45a0fad88a7d95f9776e8f459a",
        count=3,
    )
    assert segment.records == (genesis(), fence(1, 7, "driver-0"), commit("a", {"x": 1}))


def test_the_merkle_root_does_not_depend_on_the_compression_and_is_pinned() -> None:
    header, _ = built([genesis(), fence(1, 7, "driver-0"), commit("a", {"x": 1})])
    assert header.root == "9cebc7a3f91ecad8d319887ee8c7d0024f195a45a0fad88a7d95f9776e8f459a"
    assert start_hash(RUN) == "70e0b0769bb79b3259a3b1ba9a79fb4d552cd48cd5ee8d994bbc3d3ce19958ce"


@pytest.mark.parametrize("count", [1, 2, 3, 100, 333])
def test_what_was_built_is_parsed(count: int) -> None:
    records = many(count)
    header, data = built(records)
    segment = parse(data, "slot 3")
    assert segment.header == header
    assert list(segment.records) == records
    assert segment.hash == segment_hash(data)
    assert header.count == count


def test_each_record_is_found_by_its_path_with_one_frame() -> None:
    records = [*many(200), Record.event(RecordType.ATTEMPT_FAILED, "/n7", {"try": 2}), commit("large", "x" * 200_000)]
    _, data = built(records)
    size = footer_bytes(data[-100:], "slot 3")
    footer = data[-size:]
    for record in records:
        found = [extract(data[p.start : p.end], p, "slot 3") for p in locate(footer, record.path, "slot 3")]
        assert record in found
        assert all(p.raw <= 64 * 1024 or record.path == "/large" for p in locate(footer, record.path, "slot 3"))
    assert len(locate(footer, "/n7", "slot 3")) == 2
    assert locate(footer, "/nowhere", "slot 3") == []
    assert locate(data, "/n7", "slot 3") == locate(footer, "/n7", "slot 3")


def test_a_frame_of_another_segment_is_not_taken() -> None:
    _, data = built([commit("a", 1)])
    _, other = built([commit("a", 2)])
    place = locate(data, "/a", "slot 3")[0]
    with pytest.raises(SegmentCorrupt, match="slot 3"):
        extract(other[place.start : place.end], place, "slot 3")


def test_text_with_line_ends_and_high_planes_survives() -> None:
    records = [commit("a", "line\nline\r\n\u2028\u2029 \U0001f600 \x00")]
    assert list(parse(built(records)[1], "x").records) == records


def test_every_cut_and_every_flipped_byte_is_refused() -> None:
    _, data = built(many(3))
    for end in range(len(data)):
        with pytest.raises(SegmentCorrupt):
            parse(data[:end], "slot 3")
    for at in range(len(data)):
        with pytest.raises(SegmentCorrupt):
            parse(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "slot 3")


def test_a_footer_that_is_none_is_refused() -> None:
    for tail in (b"", b"x" * 10, b"x" * 200):
        with pytest.raises(SegmentCorrupt, match="trailer"):
            locate(tail, "/a", "slot 3")


def test_a_record_that_no_segment_can_hold_is_refused_with_its_path() -> None:
    with pytest.raises(RecordTooLarge, match="/big"):
        prepare(commit("big", "x" * 4 * 1024 * 1024))


def test_preparing_keeps_path_bytes_and_hash() -> None:
    record = commit("a", 1)
    path, data, leaf = prepare(record)
    assert (path, decode(data), len(leaf)) == ("/a", record, 32)
    assert isinstance(prepare(record), Encoded)

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

# the bytes of a segment of format 1: they must stay readable for as long as the format has that number
GOLDEN = base64.b64decode(
    "ZGVjdXJpb24AAAFzeyJjb250ZW50IjoiYzY3MzlmOTlmZGNhM2IzZGUyMzk4ODJjOGYzZjI2ZmY0NDhlZGVhMzg5OGE5YWIxYzkzNjdkYzdhYTBhZD"
    "EyYSIsImNvdW50IjozLCJkcml2ZXIiOiJkcml2ZXItMCIsImVwb2NoIjoxLCJmb3JtYXQiOjEsImtleSI6IiIsIm5vbmNlIjoiMDAwMDAwMDAwMDAw"
    "MDAwMCIsInByZXZpb3VzIjoiNzBlMGIwNzY5YmI3OWIzMjU5YTNiMWJhOWE3OWZiNGQ1NTJjZDQ4Y2Q1ZWU4ZDk5NGJiYzNkM2NlMTk5NThjZSIsIn"
    "Jvb3QiOiI5Y2ViYzdhM2Y5MWVjYWQ4ZDMxOTg4N2VlOGM3ZDAwMjRmMTk1YTQ1YTBmYWQ4OGE3ZDk1Zjk3NzZlOGY0NTlhIiwicnVuIjoiMDE5OGM3"
    "ZDItM2YwMC03MDAwLTgwMDAtMDAwMDAwMDAwMDAxIiwic2xvdCI6MH0otS/9YKMBTQsAVhlKIEBpqwM7ToX+p//qIVTckhk1YVUUmEhk2zazcJ2K8v"
    "maQQA+AEIALJukh4/M0awgs2dtugalOfbxk+ARE0n65ygAng2D0gtDYYDmi7F07cMRmJ8LMDH5aX44PCKJyuEJ8J0gRy9qPyFN2co5qWxrYxckUo+b"
    "28iqH3v7Ds8okmr8nKJ9HHlTas0Fbv3YoktdRHQyybKd2qWa7CZpe4xKjkttT1dwAYpBz5gsBQpi8IPgFz9njEQCmcehqPAx0Yi5/DwSDMAvTG0lJj"
    "8vQBLIZBTIz9Phm5H6856v2bpCU7xLG0MMUcm9AgBN0zRNgj+oxlGNJ8ClFUdcnD+K2nPs5louFBJS86mlSDluaqLZ1GPEMiVOScVlRqVk1NSulaJC"
    "a5eIMJymGSMWAABEYKsuCUDEKuF/z0xv5Ko9DIWmUfqGx9XAyC6AgiWJE0pShmWhFiPWhheCguEzNLN4yaZWModi6NeSBwAAAAAAAAF/AAABcwAAAq"
    "NqUNyFhBNMfeU3wAUv9tI2AAAAAAAAAJIAAAIQd+HG/01OlDB3aW3orq3lWkl2isDz9XXM02axNDUKBjeKXtqygmMkQyGeBR5K3i0dAAAAAAAAAAAA"
    "AAA23OhW8w+f60ZuyH03ffp3PIrJ4jQqU4arzsTbxEWMHqeKXtqygmMkQyGeBR5K3i0dAAAAAAAAADcAAABakSxVPCo3BMjfVdueGZ38MtiAEHsdmG"
    "xQwP2Q/KykZ58AAAAAAAAC8gAAAAEAAAADZGVjdXJpb26vWxLpkg/jYehYBe9dIpyecH1sp7FJwzCMuKZaD/Yh+g=="
)


def built(records: list[Record], **changes: object) -> tuple[Header, bytes]:
    fields: dict = {"run": RUN, "slot": 3, "epoch": 2, "driver": "d", "nonce": "0" * 16, "previous": "f" * 64}
    return build([prepare(r) for r in records], **(fields | changes))


def many(count: int) -> list[Record]:
    pick = random.Random(1)
    return [commit(f"n{i}", "".join(pick.choices("abcdef", k=pick.randrange(2000)))) for i in range(count)]


def test_a_golden_segment_is_read_as_it_was_written() -> None:
    segment = parse(GOLDEN, "golden")
    assert segment.hash == "af5b12e9920fe361e85805ef5d229c9e707d6ca7b149c3308cb8a65a0ff621fa"
    assert segment.header == Header(
        run=RUN,
        slot=0,
        epoch=1,
        driver="driver-0",
        nonce="0" * 16,
        key="",
        previous=start_hash(RUN),
        root="9cebc7a3f91ecad8d319887ee8c7d0024f195a45a0fad88a7d95f9776e8f459a",
        count=3,
        content="c6739f99fdca3b3de239882c8f3f26ff448edea3898a9ab1c9367dc7aa0ad12a",
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

"""The format, read on its own: hashes, trees, and the parts of a segment."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import zstandard

from decurion_ledger.zstd import decompressor

HEADER: Mapping[str, type] = {
    "format": int,
    "run": str,
    "slot": int,
    "epoch": int,
    "driver": str,
    "nonce": str,
    "key": str,
    "previous": str,
    "root": str,
    "count": int,
    "content": str,
}


FORMAT = 1
MOST_RAW = 8 * 1024 * 1024
"""Bytes of records above which nothing is read: a segment holds 4 MiB of them."""
UNREADABLE = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    RecursionError,
    struct.error,
    zstandard.ZstdError,
)
"""What reading of anything raises that was not written by a writer."""


class OtherFormat(ValueError):
    """A segment of a format that is not known here."""


class Sealed(NamedTuple):
    """A segment whose hashes hold: its header, what is signed, the signature, and where its frames begin and end."""

    header: dict[str, Any]
    stored: bytes
    signature: bytes
    start: int
    hash: bytes


def sealed(data: bytes) -> Sealed:
    """Raises `ValueError`, `KeyError`, `TypeError` or `struct.error` for what is no segment, or is changed."""
    if data[:8] != b"decurion":
        raise ValueError("the magic is missing")
    (length,) = struct.unpack_from(">I", data, 8)
    stored, start = data[12 : 12 + length], 12 + length
    header = orjson.loads(stored)
    number = header.get("format") if isinstance(header, dict) else None
    if isinstance(number, int) and number != FORMAT:
        do = "verify it with a newer release" if number > FORMAT else "nothing reads that any more"
        raise OtherFormat(f"it has format {number}, and this release knows {FORMAT}: {do}")
    if not isinstance(header, dict) or {name: type(value) for name, value in header.items()} != HEADER:
        raise ValueError("the header has other members")
    if orjson.dumps(header, option=orjson.OPT_SORT_KEYS) != stored:
        raise ValueError("the header is not in canonical form")
    signature = data[start : start + 64] if header["key"] else b""
    start += len(signature)
    if sha("segment/v0", stored + signature) != data[-32:]:
        raise ValueError("header and signature do not have the hash at its end")
    if sha("content/v0", data[start:-32]).hex() != header["content"]:
        raise ValueError("the bytes do not have the hash in the header")
    return Sealed(header, stored, signature, start, data[-32:])


class Content(NamedTuple):
    """Records; index entries: path hash, frame, offset, length, record hash; frames: offset, stored, raw length."""

    lines: list[bytes]
    entries: list[tuple[bytes, int, int, int, bytes]]
    frames: list[tuple[int, int, int]]


def content(data: bytes, start: int) -> Content:
    """What a segment holds whose frames begin at `start`. Raises as `sealed`, or `zstandard.ZstdError`."""
    if data[-40:-32] != b"decurion":
        raise ValueError("the magic is missing")
    at, frames, records = struct.unpack_from(">QII", data, len(data) - 56)
    if at + 16 * frames + 60 * records + 56 != len(data):
        raise ValueError("the tables do not fill the place behind the frames")
    raw = list(_frames(data, start, at, frames))
    lines = [line for frame in raw for line in frame[:-1].split(b"\n")]
    index = [struct.unpack_from(">16sIII32s", data, at + 16 * frames + 60 * i) for i in range(records)]
    for _, frame, offset, size, leaf in index:
        if sha("record/v0", raw[frame][offset : offset + size]) != leaf:
            raise ValueError("an index entry does not lead to its record")
    table = [struct.unpack_from(">QII", data, at + 16 * i) for i in range(frames)]
    return Content(lines, index, table)


def _frames(data: bytes, start: int, end: int, count: int) -> Iterator[bytes]:
    size = 0
    for i in range(count):
        offset, stored, raw = struct.unpack_from(">QII", data, end + 16 * i)
        size += raw
        if offset != start or size > MOST_RAW:
            raise ValueError("a frame is not where the one before it ends, or they hold more than a segment may")
        frame = plain(data[offset : offset + stored], raw)
        if len(frame) != raw or not frame.endswith(b"\n"):
            raise ValueError("a frame has another length than the table says")
        start += stored
        yield frame
    if start != end:
        raise ValueError("the frames do not fill the place before the tables")


def plain(frame: bytes, most: int) -> bytes:
    """The content of a zstd frame of at most `most` bytes, for which no more memory is taken. Raises `ValueError` or
    `zstandard.ZstdError`.
    """
    size = zstandard.frame_content_size(frame)
    if not 0 <= size <= most:
        raise ValueError(f"a frame claims {size} bytes")
    return decompressor().decompress(frame, max_output_size=max(size, 1))


def sha(domain: str, data: bytes) -> bytes:
    return hashlib.sha256(f"decurion/{domain}\0".encode() + data).digest()


def unhex(text: str) -> bytes:
    """The bytes that `text` is the hex of, in the one form that is written. Raises `ValueError`."""
    found = bytes.fromhex(text)
    if found.hex() != text:
        raise ValueError("hex is written in small letters and without spaces")
    return found


def canonical(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def tree(domain: str, leaves: list[bytes]) -> bytes:
    """The Merkle tree hash of RFC 6962, section 2.1, each hash behind the domain's prefix."""
    if not leaves:
        return sha(domain, b"")
    if len(leaves) == 1:
        return sha(domain, b"\0" + leaves[0])
    left = 1 << ((len(leaves) - 1).bit_length() - 1)
    return sha(domain, b"\1" + tree(domain, leaves[:left]) + tree(domain, leaves[left:]))

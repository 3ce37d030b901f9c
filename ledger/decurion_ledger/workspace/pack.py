"""Packs: many small objects in one, with an index at the end.

    frame frame … frame | index | length of the index (8 bytes) | magic (8 bytes)

A frame is one object, compressed where that makes it smaller. The index says of each object its name, its kind, where
it lies and how large it is; it may also say that one lies in another pack, so that many packs are found through one.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import orjson
import zstandard

from decurion_crds.canonical import canonical
from decurion_ledger.errors import BlobCorrupt
from decurion_ledger.zstd import compressor, decompressor

PACK_FORMAT = 1
MAX_OBJECT = 32 * 1024 * 1024
"""The largest object, in bytes: a folder of very many files. Large files are kept in chunks."""
MAX_INDEX = 256 * 1024 * 1024
_MAGIC = b"DCRNPCK1"
_TRAILER = struct.Struct(">Q8s")
_LEVEL = 3
_KINDS = frozenset({"file", "tree", "chunks"})
_HASH = re.compile(r"[0-9a-f]{64}")

ObjectKind = Literal["file", "tree", "chunks"]


class Blob(NamedTuple):
    """An object to be kept. `chunks` is the list of the chunks of the file that is called `name`."""

    name: str
    kind: ObjectKind
    raw: bytes


class Place(NamedTuple):
    """Where an object lies: `length` bytes from `offset` of a pack, `size` when they are decompressed."""

    pack: str
    kind: ObjectKind
    offset: int
    length: int
    size: int


def make_pack(blobs: Iterable[Blob], elsewhere: Mapping[str, Place] | None = None) -> tuple[str, bytes]:
    """The name and the bytes of a pack of `blobs`, whose index also names what lies `elsewhere`."""
    compress = compressor(_LEVEL).compress
    frames: list[bytes] = []
    rows: list[list[Any]] = []
    offset = 0
    for name, kind, raw in sorted(blobs):
        frame = compress(raw) if len(raw) > 64 else raw
        frame = frame if len(frame) < len(raw) else raw
        rows.append([name, kind, offset, len(frame), len(raw)])
        frames.append(frame)
        offset += len(frame)
    for name, place in sorted((elsewhere or {}).items()):
        rows.append([name, place.kind, place.offset, place.length, place.size, place.pack])
    index = compress(canonical({"format": PACK_FORMAT, "objects": rows}))
    whole = b"".join([*frames, index, _TRAILER.pack(len(index), _MAGIC)])
    return hashlib.sha256(whole).hexdigest(), whole


def index_length(tail: bytes, where: str) -> int:
    """Bytes of index and trailer, given the last bytes of a pack. Raises `BlobCorrupt`."""
    if len(tail) < _TRAILER.size:
        raise BlobCorrupt(where, "it is too short for a pack")
    length, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
    if magic != _MAGIC or length > MAX_INDEX:
        raise BlobCorrupt(where, "it is no pack of this format")
    return int(length) + _TRAILER.size


def read_index(pack: str, tail: bytes, where: str) -> dict[str, Place]:
    """What the index says, given the end of a pack with all of its index. Raises `BlobCorrupt`."""
    length = index_length(tail, where)
    try:
        held = orjson.loads(decompressed(tail[-length : -_TRAILER.size], MAX_INDEX))
        if held["format"] != PACK_FORMAT:
            raise ValueError(f"format {held['format']}")
        return {row[0]: _place(row, pack) for row in held["objects"]}
    except (ValueError, KeyError, TypeError, IndexError, zstandard.ZstdError) as e:
        raise BlobCorrupt(where, f"its index cannot be read ({e})") from e


def _place(row: list[Any], own: str) -> Place:
    """Raises `ValueError` for a row that no writer of ours leaves: what it says is asked of the store, and is taken as
    a part of a key.
    """
    name, kind, offset, length, size, *elsewhere = row
    names = all(isinstance(one, str) and _HASH.fullmatch(one) for one in (name, *elsewhere))
    numbers = all(type(number) is int and number >= 0 for number in (offset, length, size))
    if not names or not numbers or kind not in _KINDS or not length <= size <= MAX_OBJECT or len(elsewhere) > 1:
        raise ValueError(f"a row of it is malformed: {str(name)[:80]!r}")
    return Place(elsewhere[0] if elsewhere else own, kind, offset, length, size)


def decompressed(frame: bytes, most: int) -> bytes:
    """The content of a zstd frame of at most `most` bytes. Raises `ValueError`, before it takes memory for more."""
    size = zstandard.frame_content_size(frame)
    if not 0 <= size <= most:
        raise ValueError(f"a frame claims {size} bytes, more than {most}")
    return decompressor().decompress(frame, max_output_size=size) if size else b""


def unframed(frame: bytes, place: Place, where: str) -> bytes:
    """The bytes of an object. Raises `BlobCorrupt`."""
    try:
        if place.size > MAX_OBJECT:
            raise ValueError(f"an object of {place.size} bytes")
        raw = frame if place.length == place.size else decompressed(frame, place.size)
        if len(raw) != place.size:
            raise ValueError(f"{len(raw)} bytes in place of {place.size}")
    except (ValueError, zstandard.ZstdError) as e:
        raise BlobCorrupt(where, f"an object of it cannot be read ({e})") from e
    return raw

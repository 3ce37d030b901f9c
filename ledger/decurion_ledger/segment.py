"""Segments: the bytes of one slot.

    magic            "decurion"
    u32 length       of the header
    header           canonical JSON: format, run, slot, epoch, driver, nonce, key, previous, root, count, content
    signature        64 bytes, Ed25519, where the header names a key
    frames           zstd, each of at most 64 KiB of records or of one longer record; a line feed ends each record
    frame table      per frame: u64 offset, u32 stored length, u32 raw length
    index            per record: 16 bytes path hash, u32 frame, u32 offset and u32 length in it, 32 bytes record hash
    trailer          u64 offset of the frame table, u32 frames, u32 records, magic
    segment hash     32 bytes, SHA-256 of header and signature under the domain segment/v0

Integers are big-endian. The index is sorted by path hash, then by position. Each frame can be read alone, so
that with the tail of a segment one ranged request finds a record. The header holds the Merkle root (domain
records/v0) of the record hashes in order, the hash of the previous segment, and the hash (domain content/v0) of
all bytes from the first frame to the trailer. So header and signature stand for all of it: with them, and with
the hashes beside the way to the root, one record is proved. What is signed is the header under the domain
signature/v0. This is format 1; what reads it is kept, and `tests/ledger/golden` holds ledgers of it.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson
import zstandard

from decurion_crds.canonical import canonical, digest, merkle_root
from decurion_ledger.errors import NewerFormat, RecordTooLarge, SegmentCorrupt
from decurion_ledger.record import Record, decode, encode, record_hash
from decurion_ledger.signing import SIGNATURE_BYTES, SigningKey
from decurion_ledger.zstd import compressor, decompressor

FORMAT = 1
MAGIC = b"decurion"
MAX_RECORDS = 5_000
MAX_BYTES = 4 * 1024 * 1024
FRAME_BYTES = 64 * 1024
LEVEL = 3
SIGNED = "signature/v0"
"""The domain under which a header is signed."""

_LENGTH = struct.Struct(">I")
_FRAME = struct.Struct(">QII")
_ENTRY = struct.Struct(">16sIII32s")
_TRAILER = struct.Struct(">QII8s")
_HASH_BYTES = 32
_RESULT = b'{"core":'
"""How the stored form of a record with a core begins."""
TAIL_BYTES = _TRAILER.size + _HASH_BYTES


class _OtherFormat(ValueError):
    """A header names another format. Never leaves this module."""

    def __init__(self, number: object) -> None:
        super().__init__(number)
        self.number = number


class Encoded(NamedTuple):
    """A record as it is stored, with its path and the raw bytes of its record hash."""

    path: str
    data: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """Who wrote the segment, where it belongs, what it holds. Hashes are hex; `nonce` is the writer's own, `key` its
    public key, in hex, or empty where it has none.
    """

    run: str
    slot: int
    epoch: int
    driver: str
    nonce: str
    key: str
    previous: str
    root: str
    count: int
    content: str


@dataclass(frozen=True, slots=True)
class Segment:
    header: Header
    records: tuple[Record, ...]
    hash: str


@dataclass(frozen=True, slots=True)
class Located:
    """Where a record lies: bytes `[start, end)` of the segment hold its frame, `[offset, offset + length)` of
    that the record."""

    start: int
    end: int
    raw: int
    offset: int
    length: int
    hash: bytes


def prepare(record: Record) -> Encoded:
    """`record`, ready for a segment. Raises `RecordTooLarge` when it could not stand in one even alone."""
    data = encode(record)
    if len(data) >= MAX_BYTES:
        raise RecordTooLarge(record.path, len(data), MAX_BYTES)
    return Encoded(record.path, data, bytes.fromhex(record_hash(data)))


def start_hash(run: str) -> str:
    """What stands as `previous` in slot 0, so that a log cannot be moved to another run."""
    return digest("log/v0", run.encode())


def build(
    records: Sequence[Encoded],
    *,
    run: str,
    slot: int,
    epoch: int,
    driver: str,
    nonce: str,
    previous: str,
    key: SigningKey | None = None,
) -> tuple[Header, bytes]:
    """The header and the bytes of the segment of these records, at most `MAX_RECORDS` and `MAX_BYTES` of
    them, signed by `key`.
    """
    root = merkle_root("records/v0", [r.hash for r in records])
    public = key.public if key is not None else ""
    fields = Header(run, slot, epoch, driver, nonce, public, previous, root, len(records), content="0" * 64)
    # The offsets in the tables are those in the segment; the length of the header does not depend on its values.
    before = len(MAGIC) + _LENGTH.size + len(_stored(fields)) + (SIGNATURE_BYTES if key is not None else 0)
    content = _content(records, before)
    fields = replace(fields, content=digest("content/v0", content))
    header = _stored(fields)
    signature = key.sign(SIGNED, header) if key is not None else b""
    end = bytes.fromhex(digest("segment/v0", header, signature))
    return fields, b"".join((MAGIC, _LENGTH.pack(len(header)), header, signature, content, end))


def head_of(data: bytes) -> tuple[bytes, bytes]:
    """The bytes of header and signature of a segment that was parsed."""
    return _header(data)[1]


def _stored(header: Header) -> bytes:
    return canonical({"format": FORMAT, **{name: getattr(header, name) for name in Header.__slots__}})


def _content(records: Sequence[Encoded], offset: int) -> bytes:
    """Frames, tables and trailer; `offset` is the place of the first frame in the segment."""
    compress = compressor(LEVEL).compress
    parts, table, index = [], [], []
    for number, frame in enumerate(_frames(records)):
        raw = b"".join(r.data + b"\n" for r in frame)
        stored = compress(raw)
        parts.append(stored)
        table.append(_FRAME.pack(offset, len(stored), len(raw)))
        offset += len(stored)
        at = 0
        for r in frame:
            index.append((path_hash(r.path), number, at, len(r.data), r.hash))
            at += len(r.data) + 1
    index.sort(key=lambda entry: entry[:3])
    parts += table
    parts += (_ENTRY.pack(*entry) for entry in index)
    parts.append(_TRAILER.pack(offset, len(table), len(index), MAGIC))
    return b"".join(parts)


def segment_hash(data: bytes) -> str:
    """The hash, in hex, that stands at the end of a segment's bytes."""
    return data[-_HASH_BYTES:].hex()


def parse(data: bytes, where: str) -> Segment:
    """The segment of these bytes, all hashes inside it checked; not the signature, which is `verify`'s to check. Raises
    `SegmentCorrupt`, naming `where`.
    """
    try:
        header, signed, start = _header(data)
        if digest("segment/v0", *signed) != segment_hash(data):
            raise ValueError("header and signature do not have the hash at its end")
        if digest("content/v0", data[start:-_HASH_BYTES]) != header.content:
            raise ValueError("the bytes do not have the hash in the header")
        lines = list(_lines(data))
    except _OtherFormat as e:
        if isinstance(e.number, int) and e.number > FORMAT:
            raise NewerFormat(where, e.number, FORMAT) from e
        raise SegmentCorrupt(where, f"it has format {e.number!r:.20}, which nothing reads any more") from e
    except (ValueError, KeyError, TypeError, struct.error, zstandard.ZstdError) as e:
        raise SegmentCorrupt(where, f"not a segment of format {FORMAT} ({e})") from e
    leaves = [bytes.fromhex(record_hash(line)) for line in lines]
    if len(lines) != header.count or merkle_root("records/v0", leaves) != header.root:
        raise SegmentCorrupt(where, "the records do not have the Merkle root in the header")
    return Segment(header, tuple(decode(line, where) for line in lines), segment_hash(data))


def path_hash(path: str) -> bytes:
    """The 16 bytes by which the index is sorted."""
    return hashlib.sha256(path.encode()).digest()[:16]


def footer_bytes(tail: bytes, where: str) -> int:
    """How many bytes at the end of the segment hold frame table, index and trailer; `tail` are its last
    bytes.
    """
    _, frames, records = _trailer(tail, where)
    return frames * _FRAME.size + records * _ENTRY.size + TAIL_BYTES


def locate(footer: bytes, path: str, where: str) -> list[Located]:
    """The records at `path`, in order; `footer` are the last `footer_bytes` of the segment."""
    _, frames, records = _trailer(footer, where)
    tables = footer[-(frames * _FRAME.size + records * _ENTRY.size + TAIL_BYTES) :]
    base = frames * _FRAME.size

    def entry(i: int) -> tuple[bytes, int, int, int, bytes]:
        return _ENTRY.unpack_from(tables, base + i * _ENTRY.size)

    wanted = path_hash(path)
    found = []
    for i in range(bisect_left(range(records), wanted, key=lambda i: entry(i)[0]), records):
        name, frame, offset, length, record = entry(i)
        if name != wanted:
            break
        start, stored, raw = _FRAME.unpack_from(tables, frame * _FRAME.size)
        found.append(Located(start, start + stored, raw, offset, length, record))
    return found


def extract(frame: bytes, located: Located, where: str) -> Record:
    """The record at `located`, out of its frame's bytes. Raises `SegmentCorrupt` or `RecordCorrupt`."""
    try:
        raw = _decompressed(frame, located.raw)
    except (ValueError, zstandard.ZstdError) as e:
        raise SegmentCorrupt(where, f"a frame cannot be read ({e})") from e
    data = raw[located.offset : located.offset + located.length]
    if not bytes.fromhex(record_hash(data)).startswith(located.hash):
        raise SegmentCorrupt(where, "a record does not have the hash in the index")
    return decode(data, where)


def entries_of(data: bytes, where: str) -> list[tuple[bytes, Located, bool]]:
    """Path hash and place of each record of a segment, and whether it is a result. Raises `SegmentCorrupt`."""
    offset, frames, records = _trailer(data, where)
    try:
        places = [_FRAME.unpack_from(data, offset + i * _FRAME.size) for i in range(frames)]
        raws = list(_unpacked(data, places))
        found = []
        for i in range(records):
            name, frame, at, length, record = _ENTRY.unpack_from(data, offset + frames * _FRAME.size + i * _ENTRY.size)
            start, stored, raw = places[frame]
            is_result = raws[frame].startswith(_RESULT, at)
            found.append((name, Located(start, start + stored, raw, at, length, record), is_result))
    except (ValueError, IndexError, struct.error, zstandard.ZstdError) as e:
        raise SegmentCorrupt(where, f"not a segment of format {FORMAT} ({e})") from e
    return found


class Lookup:
    """Finds records in the bytes of one segment; each frame is decompressed once while this is kept.

    Raises `SegmentCorrupt`, naming `where`.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        self._where = where
        self._footer = data[-footer_bytes(data, where) :]
        self._raw: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        """Bytes in memory: those that are stored, and the frames that were read."""
        return len(self._data) + sum(map(len, self._raw.values()))

    def record(self, path: str) -> Record | None:
        """The first record at `path`, checked by its hash."""
        for located in locate(self._footer, path, self._where):
            raw = self._frame(located)
            data = raw[located.offset : located.offset + located.length]
            if record_hash(data) != located.hash.hex():
                raise SegmentCorrupt(self._where, "a record does not have the hash in the index")
            return decode(data, self._where)
        return None

    def _frame(self, located: Located) -> bytes:
        raw = self._raw.get(located.start)
        if raw is None:
            try:
                raw = _decompressed(self._data[located.start : located.end], located.raw)
            except (ValueError, zstandard.ZstdError) as e:
                raise SegmentCorrupt(self._where, f"a frame cannot be read ({e})") from e
            self._raw[located.start] = raw
        return raw


def _frames(records: Sequence[Encoded]) -> Iterator[list[Encoded]]:
    frame: list[Encoded] = []
    size = 0
    for r in records:
        if frame and size + len(r.data) + 1 > FRAME_BYTES:
            yield frame
            frame, size = [], 0
        frame.append(r)
        size += len(r.data) + 1
    if frame:
        yield frame


def _header(data: bytes) -> tuple[Header, tuple[bytes, bytes], int]:
    """The header, the bytes of header and signature, and where the frames begin."""
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("the magic is missing")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    start = len(MAGIC) + _LENGTH.size
    stored = data[start : start + length]
    fields: dict[str, Any] = orjson.loads(stored)
    number = fields.pop("format")
    if number != FORMAT:
        raise _OtherFormat(number)
    header = Header(**fields)
    end = start + length + (SIGNATURE_BYTES if header.key else 0)
    return header, (stored, data[start + length : end]), end


def _lines(data: bytes) -> Iterator[bytes]:
    offset, frames, _ = _TRAILER.unpack(data[-TAIL_BYTES:-_HASH_BYTES])[:3]
    for frame in _unpacked(data, [_FRAME.unpack_from(data, offset + i * _FRAME.size) for i in range(frames)]):
        yield from frame.split(b"\n")[:-1]


def _unpacked(data: bytes, places: Sequence[tuple[int, int, int]]) -> Iterator[bytes]:
    """The frames of a segment, unpacked. Raises `ValueError` for more than one can hold."""
    if sum(raw for _, _, raw in places) > 2 * MAX_BYTES:
        raise ValueError("its frames hold more than a segment may")
    for start, stored, raw in places:
        yield _decompressed(data[start : start + stored], raw)


def _decompressed(frame: bytes, raw: int) -> bytes:
    if raw > MAX_BYTES or zstandard.frame_content_size(frame) != raw:
        raise ValueError("a frame has another length than the table says")
    return decompressor().decompress(frame, max_output_size=raw)


def _trailer(tail: bytes, where: str) -> tuple[int, int, int]:
    if len(tail) < TAIL_BYTES or tail[-_HASH_BYTES - len(MAGIC) : -_HASH_BYTES] != MAGIC:
        raise SegmentCorrupt(where, "the trailer is missing")
    offset, frames, records, _ = _TRAILER.unpack(tail[-TAIL_BYTES:-_HASH_BYTES])
    return offset, frames, records

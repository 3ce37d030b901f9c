"""Objects of a run that are made from its log: its index, and the list of the blobs that it needs. Each may be missing,
for it is made anew; what is there must be what the log makes it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from decurion_ledger.verifier.form import canonical, sha

_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, struct.error)
_ENTRY = struct.Struct(">16sIIIIII8sB")


def entries(
    slot: int, tables: Iterable[tuple[Any, ...]], frames: Sequence[tuple[int, int, int]], results: set[bytes]
) -> list[bytes]:
    """The entries of an index for one segment: `tables` are its own index, `frames` offset, stored and raw length of
    each frame, `results` the hashes of the records that are results.
    """
    found = []
    for name, frame, offset, length, leaf in tables:
        start, stored, raw = frames[frame]
        found.append(_ENTRY.pack(name, slot, start, stored, raw, offset, length, leaf[:8], leaf in results))
    return found


def index_fault(name: str, data: bytes, slots: Mapping[int, list[bytes]]) -> str | None:
    """What is wrong with `index/<first>-<end>`, whose name behind `index/` this is."""
    try:
        first, end = (int(part) for part in name.split("-"))
        if name != f"{first:012d}-{end:012d}" or not 0 <= first < end:
            return "no index has such a name"
        body = b"".join(sorted(entry for slot in range(first, end) for entry in slots[slot]))
    except _UNREADABLE:
        return "it is the index of slots that are not there"
    ends = struct.pack(">II", first, end)
    wanted = body + ends + sha("index/v0", body + ends + bytes(32))
    return None if data == wanted else "it does not name the records of its slots"


def tail_fault(data: bytes, slots: Mapping[int, list[bytes]]) -> str | None:
    try:
        found = orjson.loads(data)
        at = 0
        for first, end, records in found["indexes"]:
            if first != at or end <= first or sum(len(slots[slot]) for slot in range(first, end)) != records:
                return "it names an index that the log cannot have"
            at = end
    except _UNREADABLE:
        return "it cannot be read, or names slots that are not there"
    return None if canonical(found) == data and found.keys() == {"indexes"} else "it is not in canonical form"


def needs_fault(data: bytes, blobs: set[str], final: bytes | None) -> str | None:
    said = {"blobs": sorted(blobs), "final": hashlib.sha256(final or b"").hexdigest()}
    body, _, end = data.rpartition(b"\n")
    try:
        found = orjson.loads(body)
        same = {**found, "blobs": sorted(found["blobs"])} == said and canonical(found) == body
    except _UNREADABLE:
        same = False
    whole = hashlib.sha256(body).hexdigest().encode() == end
    return None if same and whole else "it is not the list of the blobs that the log names"

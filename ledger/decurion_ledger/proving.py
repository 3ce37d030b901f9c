"""Proofs of inclusion: that a record is in the log of a run, for somebody who has keys and no access to the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from decurion_crds.canonical import Json, merkle_root
from decurion_ledger.errors import LogCorrupt, NotFound, RecordNotFound, RunNotFound
from decurion_ledger.layout import run_prefix, slot_key
from decurion_ledger.record import RecordType, encode, record_hash
from decurion_ledger.segment import head_of, parse
from decurion_ledger.stores.port import Store

AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Proof:
    """`record` is the stored text of the record, `segment` its place in its segment and what was signed of that, `log`
    the place of the segment in the log, `certificate` who appointed the driver, `anchor` a checkpoint of the log.
    """

    run: str
    path: str
    record: str
    segment: dict[str, Json]
    certificate: Json
    log: dict[str, Json]
    anchor: Json

    def to_json(self) -> dict[str, Json]:
        return {"kind": "decurion-inclusion-proof", "format": 1, **asdict(self)}


async def prove(store: Store, run: str, path: str, *, anchors: Store | None = None) -> Proof:
    """The proof of the result at `path`, or of the last event there. With `anchors`, of a log as long as the longest of
    its anchors said.

    Raises `RunNotFound`, `RecordNotFound`, `LogCorrupt` or the store's error.
    """
    keys = sorted([info.key async for info in store.list(f"{run_prefix(run)}log/")])
    if not keys:
        raise RunNotFound(run, store.uri)
    hashes: list[bytes] = []
    found: tuple[int, int, Json, list[bytes], str, bytes] | None = None
    certificate: Json = None
    named: Json = None
    settled = False
    for start in range(0, len(keys), AT_ONCE):
        some = [slot_key(run, slot) for slot in range(start, min(start + AT_ONCE, len(keys)))]
        for slot, data in enumerate(await asyncio.gather(*(_read(store, key) for key in some)), start):
            segment = parse(data, slot_key(run, slot))
            hashes.append(bytes.fromhex(segment.hash))
            lines = [encode(record) for record in segment.records]
            leaves = [bytes.fromhex(record_hash(line)) for line in lines]
            for index, record in enumerate(segment.records):
                if record.type == RecordType.FENCE:
                    named = record.envelope.get("certificate")
                if record.path == path and not settled:
                    stored, signature = head_of(data)
                    found = slot, index, lines[index].decode(), leaves, stored.decode(), signature
                    certificate, settled = named, record.core is not None
    if found is None:
        raise RecordNotFound(run, path)
    slot, index, record, leaves, header, signature = found
    anchor, slots = await _anchor(anchors, run, len(hashes), slot)
    return Proof(
        run=run,
        path=path,
        record=record,
        segment={
            "slot": slot,
            "index": index,
            "header": header,
            "signature": signature.hex(),
            "hashes": audit_path("records/v0", leaves, index),
        },
        certificate=certificate,
        log={
            "slots": slots,
            "root": merkle_root("final/v0", hashes[:slots]),
            "hashes": audit_path("final/v0", hashes[:slots], slot),
        },
        anchor=anchor,
    )


def audit_path(domain: str, leaves: Sequence[bytes], index: int) -> list[str]:
    """The hashes, in hex, beside the way from leaf `index` to the root of the tree of RFC 6962, lowest first."""
    if len(leaves) <= 1:
        return []
    left = 1 << ((len(leaves) - 1).bit_length() - 1)
    if index < left:
        return [*audit_path(domain, leaves[:left], index), merkle_root(domain, leaves[left:])]
    return [*audit_path(domain, leaves[left:], index - left), merkle_root(domain, leaves[:left])]


async def _read(store: Store, key: str) -> bytes:
    try:
        return await store.get(key)
    except NotFound as e:
        raise LogCorrupt(key, "the slot is missing but later ones exist") from e


async def _anchor(anchors: Store | None, run: str, slots: int, slot: int) -> tuple[Json, int]:
    """The longest anchor that holds `slot`, and of how many slots it is; without one the log as it is."""
    if anchors is None:
        return None, slots
    prefix = f"anchors/{run_prefix(run).removeprefix('runs/')}"
    lengths = sorted([int(info.key.rpartition("/")[2]) async for info in anchors.list(prefix)])
    fitting = [length for length in lengths if slot < length <= slots]
    if not fitting:
        return None, slots
    return orjson.loads(await anchors.get(f"{prefix}{fitting[-1]:012d}")), fitting[-1]

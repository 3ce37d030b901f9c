"""Records: what one log entry is, how it becomes bytes, and the two hashes of it.

A *result* has a core: the part that is the same in every executor and every attempt, hashed by `core_hash`
and linked to the cores of its data dependencies. An *event* has none. Both have an envelope: run, lease,
epoch, timing, usage, values. `record_hash` covers the stored bytes of the whole record and is its leaf in the
segment's Merkle tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import orjson

from decurion_crds.canonical import Json, canonical, digest
from decurion_ledger.errors import RecordCorrupt

CORE_VERSION = 0


class RecordType(StrEnum):
    """Persisted names of the record types in use."""

    GENESIS = "genesis"
    FENCE = "fence"
    COMMIT = "commit"
    SKIP = "skip"
    ATTEMPT_FAILED = "attempt_failed"
    TURN = "turn"
    EFFECT_INTENDED = "effect_intended"
    EFFECT_SETTLED = "effect_settled"
    SCOPE_OPENED = "scope_opened"
    JOIN = "join"
    LEASE_LOST = "lease_lost"
    TIMER_SET = "timer_set"
    TIMER_FIRED = "timer_fired"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_GIVEN = "approval_given"
    RACE_WON = "race_won"
    BUDGET = "budget"
    CONFLICT = "conflict"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    CANCEL = "cancel"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a log. `core_hash` is hex, and empty iff `core` is None. Make it with `result` or
    `event`.
    """

    type: str
    path: str
    core: dict[str, Json] | None
    envelope: dict[str, Json]
    core_hash: str

    @classmethod
    def result(cls, core: dict[str, Json], envelope: dict[str, Json]) -> Record:
        """A record around a core made by `make_core`."""
        return cls(core["type"], core["path"], core, envelope, core_hash(core))

    @classmethod
    def event(cls, type: str, path: str, envelope: dict[str, Json]) -> Record:
        """A record without a core."""
        return cls(str(type), path, None, envelope, "")


Failed: TypeAlias = dict[Literal["failed"], dict[str, str]]
"""`{"failed": {"class": …, "code": …}}`: the outcome of a node whose failure is its result."""

Outcome: TypeAlias = Literal["ok", "skipped"] | Failed


def make_core(
    *,
    type: str,
    path: str,
    node: str | None,
    parents: Iterable[tuple[str, str]],
    input: str | None,
    outcome: Outcome,
    delta: str | None,
    schema: str | None,
    writes: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """The core of a result.

    `node` is the digest of the compiled node, `parents` the (path, core hash) of data dependencies, `input`
    and `delta` value hashes of what went in and came out, `schema` the hash of the output's schema, `writes`
    the (channel, value hash) pairs. Parents are put in order of their paths, writes in order of their
    channels.
    """
    return {
        "v": CORE_VERSION,
        "type": str(type),
        "path": path,
        "node": node,
        "parents": sorted([p, h] for p, h in parents),
        "input": input,
        "outcome": outcome,
        "schema": schema,
        "delta": delta,
        "writes": sorted([c, h] for c, h in writes),
        "workspace": None,
    }


def core_hash(core: dict[str, Json]) -> str:
    """SHA-256, in hex, of the core's canonical bytes under the domain `core/v0`."""
    return digest("core/v0", canonical(core))


def record_hash(encoded: bytes) -> str:
    """SHA-256, in hex, of a record's stored bytes under the domain `record/v0`."""
    return digest("record/v0", encoded)


def encode(record: Record) -> bytes:
    """The stored form: canonical JSON on one line, `core core_hash envelope` of a result, `envelope path
    type` of an event.
    """
    envelope = canonical(record.envelope)
    if record.core is None:
        head = canonical({"path": record.path, "type": str(record.type)})
        return b'{"envelope":' + envelope + b"," + head[1:]
    return b'{"core":%b,"core_hash":"%b","envelope":%b}' % (
        canonical(record.core),
        record.core_hash.encode(),
        envelope,
    )


def decode(encoded: bytes, where: str = "record") -> Record:
    """The record of its stored form. Raises `RecordCorrupt`, naming `where`, also when the core hash does not
    match.
    """
    try:
        raw = orjson.loads(encoded)
        envelope = raw["envelope"]
        if "core" not in raw:
            return Record(_text(raw["type"]), _text(raw["path"]), None, _object(envelope), "")
        core = _object(raw["core"])
        record = Record(_text(core["type"]), _text(core["path"]), core, _object(envelope), core_hash(core))
    except (ValueError, KeyError, TypeError) as e:
        raise RecordCorrupt(where, f"not a record of this format ({e})") from e
    if record.core_hash != raw.get("core_hash"):
        raise RecordCorrupt(where, f"the core at {record.path} does not have the hash stored beside it")
    return record


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is expected")
    return value


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    return value

"""Values of records that are in the log, as far as a driver wants them."""

from __future__ import annotations

from typing import Literal

from decurion_crds.canonical import Json, canonical
from decurion_crds.wide import has_refs
from decurion_ledger import Record, Values
from decurion_worker.engine import Applied, Engine, failure_of
from decurion_worker.link import Done

MAX_KEYS = 256 * 1024 * 1024
"""Bytes of keys of one map that a driver holds."""


async def applied(values: Values, engine: Engine, slot: int, record: Record) -> Applied:
    """A record with the values that the engine wants; of a branch's end only what is at hand.

    Raises `BlobCorrupt`, or the store's error.
    """
    if record.core is None or not engine.wants_value(record):
        return Applied(record, slot=slot)
    delta = record.core["delta"]
    if engine.is_branch_end(record):
        held = (record.envelope.get("values") or {}).get(delta, {})
        if isinstance(held.get("sealed"), str):
            opened = await values.unpack(record.envelope, delta)
            return Applied(record, opened, slot=slot, size=len(held["sealed"]))
        if "inline" not in held:
            return Applied(record, slot=slot)
        return Applied(record, held["inline"], slot=slot, size=len(canonical(held["inline"])))
    value: Json = await values.unpack(record.envelope, delta) if delta is not None else None
    if record.type == "scope_opened" and has_refs(value) and "keys" in value:
        # Branches are named by them: they are needed as they are.
        value["keys"] = await values.load(value["keys"], limit=MAX_KEYS)
    writes = {name: await values.unpack(record.envelope, h) for name, h in record.core["writes"]}
    return Applied(record, value, writes, slot)


async def done(values: Values, record: Record, *, read: bool = False) -> Done:
    """What the rest of a branch needs of a node that is committed; with `read` what that had read, too. Raises as
    `applied`.
    """
    core = record.core or {}
    delta = core["delta"]
    output = await values.unpack(record.envelope, delta) if delta is not None else None
    writes = [(name, await values.unpack(record.envelope, h)) for name, h in core["writes"]]
    failure = failure_of(record)
    status: Literal["ok", "skipped", "failed"] = "skipped" if record.type == "skip" else "ok"
    return Done(
        status="failed" if failure else status,
        output=output,
        core_hash=record.core_hash,
        failure=failure,
        writes=tuple(writes),
        instead=failure is not None and delta is not None,
        files=record.envelope.get("workspace"),
        at=record.envelope.get("at") if record.type == "scope_opened" else None,
        input=await values.unpack(record.envelope, core["input"]) if read and core["input"] is not None else None,
    )

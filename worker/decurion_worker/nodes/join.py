"""The wide output of a map, built on a runner from the ends of its branches as they stand in the log.

The driver keeps of a branch that ended where its end is, and not what it gave. Outputs are read back segment by
segment and put into chunks in item order; memory is bounded by these, whatever the map's width.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator

from decurion_crds.canonical import Json
from decurion_ledger import Record, SlotReader, Values, branch_key
from decurion_ledger.lists import ListBuilder
from decurion_ledger.values import form_of
from decurion_worker.engine.scopes import BranchStatus

BLOBS = 16
"""Finished blobs that are held before they are stored."""


async def joined_output(values: Values, reader: SlotReader, *, path: str, env: dict[str, Json]) -> dict[str, Json]:
    """`{"items", "failures", "total"}` of the map at `path`. `env` is that of the item: `status` (one byte a branch),
    `slots` (four bytes a branch), `keys` and `failures`.

    Raises `LogCorrupt`, `BlobCorrupt`, or the store's error.
    """
    builder = ListBuilder()
    async for end in _ends(reader, path, env):
        delta = end.core["delta"] if end.core is not None else ""
        held, name = end.envelope["values"][delta], bytes.fromhex(delta)
        if "blob" in held:
            size, folded = held.get("size", held["bytes"]), held.get("folded", held["bytes"])
            builder.add_blob(hash=name, blob=held["blob"], bytes=held["bytes"], size=size, folded=folded)
        else:
            form = form_of(await values.unpack(end.envelope, delta), builder.blobs)
            builder.add(hash=name, stored=form.stored, size=form.size, folded=len(form.folded))
        if len(builder.blobs) >= BLOBS:
            await values.flush(builder)
    items = await values.finish(builder)
    return {"items": items, "failures": env["failures"], "total": len(env["status"])}


async def _ends(reader: SlotReader, path: str, env: dict[str, Json]) -> AsyncIterator[Record]:
    """The `!output` records of the branches that succeeded, in item order."""
    slots = array("I")
    slots.frombytes(env["slots"])
    keys = env["keys"]
    for index, status in enumerate(env["status"]):
        if status == BranchStatus.OK:
            token = f"{index:05d}" if keys is None else f"k:{branch_key(keys[index])}"
            yield await reader.record(slots[index], f"{path}[{token}]!output")

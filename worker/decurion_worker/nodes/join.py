"""The wide output of a map, built on a runner from the ends of its branches as they stand in the log.

The driver keeps of a branch that ended where its end is, and not what it gave. Outputs are read back segment by
segment and put into chunks in item order; memory is bounded by these, whatever the map's width.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from typing import NamedTuple

from decurion_crds.canonical import Json
from decurion_ledger import Record, SlotReader, Values, branch_key
from decurion_ledger.forms import form_of
from decurion_worker.engine.opened import BranchStatus

BLOBS = 16
"""Finished blobs that are held before they are stored."""


class JoinedOutput(NamedTuple):
    """The output of a map, and the versions of the files that its branches left, by their positions."""

    value: dict[str, Json]
    files: dict[int, Json]


async def joined_output(values: Values, reader: SlotReader, *, path: str, env: dict[str, Json]) -> JoinedOutput:
    """`{"items", "failures", "total"}` of the map at `path`. `env` is that of the item: `status` (one byte a branch),
    `slots` (four bytes a branch), `keys` and `failures`.

    Raises `LogCorrupt`, `BlobCorrupt`, or the store's error.
    """
    builder, files = values.builder(), {}
    async for index, end in _ends(reader, path, env):
        if "workspace" in end.envelope:
            files[index] = end.envelope["workspace"]
        delta = end.core["delta"] if end.core is not None else ""
        held, name = end.envelope["values"][delta], bytes.fromhex(delta)
        if values.is_sealing or "sealed" in held:
            await values.extend(builder, [await values.unpack(end.envelope, delta)])
            continue
        if "blob" in held:
            size, folded = held.get("size", held["bytes"]), held.get("folded", held["bytes"])
            builder.add_blob(hash=name, blob=held["blob"], bytes=held["bytes"], size=size, folded=folded)
        else:
            form = form_of(await values.unpack(end.envelope, delta), builder.blobs)
            builder.add(hash=name, stored=form.stored, size=form.size, folded=len(form.folded))
        if len(builder.blobs) >= BLOBS:
            await values.flush(builder)
    items = await values.finish(builder)
    return JoinedOutput({"items": items, "failures": env["failures"], "total": len(env["status"])}, files)


async def _ends(reader: SlotReader, path: str, env: dict[str, Json]) -> AsyncIterator[tuple[int, Record]]:
    """Position and `!output` record of the branches that succeeded, in item order."""
    slots = array("I")
    slots.frombytes(env["slots"])
    keys = env["keys"]
    for index, status in enumerate(env["status"]):
        if status == BranchStatus.OK:
            token = f"{index:05d}" if keys is None else f"k:{branch_key(keys[index])}"
            yield index, await reader.record(slots[index], f"{path}[{token}]!output")

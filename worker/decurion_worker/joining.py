"""The end of a map whose items write files: what they made is merged, and what they do not agree on is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from decurion_crds.canonical import Json
from decurion_ledger import Record, RecordType
from decurion_ledger.workspace import Version
from decurion_worker.context import Execution
from decurion_worker.errors import WorkError
from decurion_worker.failure import Failure
from decurion_worker.link import WorkItem
from decurion_worker.nodes.join import JoinedOutput
from decurion_worker.nodes.merging import collects, conflict_error, merge_items, rows
from decurion_worker.nodes.node import failure_from


class JoinedFiles(NamedTuple):
    """The value of a join with what is said of files in it, or why there is none."""

    value: Json
    version: Version | None = None
    failure: Failure | None = None


async def join_files(
    execution: Execution,
    item: WorkItem,
    joined: JoinedOutput,
    *,
    envelope: Mapping[str, Json],
    emit: Callable[[Record], Awaitable[None]],
) -> JoinedFiles:
    """The merge of what the items made of the files. That they do not agree on some is a record of its own."""
    if item.files is None:
        return JoinedFiles(joined.value)
    try:
        merged = await merge_items(execution, item.files["base"], joined.files)
        found = rows(execution, merged.conflicts)
        if found:
            await emit(await _conflict(execution, found, envelope))
        if merged.version is None:
            raise conflict_error(execution, merged.conflicts)
    except WorkError as error:
        return JoinedFiles(None, failure=failure_from(execution.path, error))
    value = {**joined.value, "conflicts": found} if collects(execution) else joined.value
    return JoinedFiles(value, merged.version)


async def _conflict(execution: Execution, found: list[Json], envelope: Mapping[str, Json]) -> Record:
    """The event that says what the items do not agree on, whether that fails the map, is settled or collected."""
    context = execution.context
    told = {"count": len(found), "conflicts": context.values.name(found), "values": await context.values.pack([found])}
    return Record.event(RecordType.CONFLICT, f"{execution.path}!join", {"run": context.run, **envelope, **told})

"""Node kind `transform`: named expressions over the snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import Expr
from decurion_worker.context import Execution


async def run_transform(execution: Execution, fields: Mapping[str, Expr], snapshot: Mapping[str, Json]) -> Json:
    """The fields' values as an object, or the value of `$value` alone."""
    values = await execution.context.evaluate(fields, snapshot, seconds=execution.node.timeout_seconds)
    return values["$value"] if set(fields) == {"$value"} else values

"""What a scope comes to, wherever it ran: its output, and the files that it leaves."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import Scope
from decurion_crds.expressions import ExpressionFailed
from decurion_ledger.workspace import Version
from decurion_worker.context import RunContext
from decurion_worker.errors import ExpressionFailure, WorkError
from decurion_worker.failure import Failure, unsaid
from decurion_worker.files import missing_artefact
from decurion_worker.nodes.node import check_output, failure_from


async def scope_files(
    context: RunContext, scope: Scope, path: str, files: Json
) -> tuple[Version | None, Failure | None]:
    """The files that a scope leaves, None for one that has nothing to do with them; or why there are none."""
    if not scope.filed:
        return None, None
    where = f"{path or '/'}!output"
    try:
        version = await context.files.view(scope, files, path=where)
        declared = context.graph.workspace.artefacts if context.graph.workspace is not None and not path else ()
        missing = await missing_artefact(context.files, declared, version)
        return (version, None) if missing is None else (None, failure_from(where, missing))
    except WorkError as error:
        return None, failure_from(where, error)


async def scope_output(
    context: RunContext, scope: Scope, path: str, env: Mapping[str, Json]
) -> tuple[Json, Failure | None]:
    """A scope's output: its expressions over the scope, checked against its schema; or why there is none."""
    where = f"{path or '/'}!output"
    try:
        values = await context.evaluate(scope.output, env)
        value = values["$value"] if set(scope.output) == {"$value"} else values
        return await check_output(context, where, scope.output_schema, value), None
    except ExpressionFailed as error:
        failure = failure_from(where, ExpressionFailure(where, error.name, error.message))
    except WorkError as error:
        failure = failure_from(where, error)
    return None, unsaid(failure) if scope.sealed_output else failure

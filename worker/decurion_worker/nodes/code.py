"""Node kind `code`: Python in the interpreter, with clock and randomness of the run."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json, digest
from decurion_crds.compiled import Code
from decurion_crds.wide import has_refs
from decurion_ledger.errors import ValueTooWide
from decurion_worker.context import Execution
from decurion_worker.errors import ValueTooLarge


async def run_code(execution: Execution, code: Code, snapshot: Mapping[str, Json]) -> Json:
    """The value of the source's last expression. Randomness is seeded by run seed and path: it is repeatable."""
    context = execution.context
    seed = digest("seed/v0", context.seed.encode(), b"\0", execution.path.encode())
    inputs = dict(snapshot)
    for name, value in snapshot.items():
        if has_refs(value):
            inputs[name] = await _loaded(execution, name, value)
    return await context.evaluator.code(
        code, inputs, seconds=execution.node.timeout_seconds, seed=seed, clock=context.clock
    )


async def _loaded(execution: Execution, name: str, value: Json) -> Json:
    try:
        return await execution.context.values.load(value)
    except ValueTooWide as error:
        raise ValueTooLarge(execution.path, f"with.{name}", str(error)) from error

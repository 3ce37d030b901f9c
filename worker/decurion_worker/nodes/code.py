"""Node kind `code`: Python in the interpreter, with clock and randomness of the run."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json, digest
from decurion_crds.compiled import Code
from decurion_worker.context import Execution


async def run_code(execution: Execution, code: Code, snapshot: Mapping[str, Json]) -> Json:
    """The value of the source's last expression. Randomness is seeded by run seed and path: it is repeatable."""
    context = execution.context
    seed = digest("seed/v0", context.seed.encode(), b"\0", execution.path.encode())
    return await context.evaluator.code(
        code, snapshot, seconds=execution.node.timeout_seconds, seed=seed, clock=context.clock
    )

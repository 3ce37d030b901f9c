"""Between two rounds of a loop: whether the last one was the last, and what the next one starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decurion_crds.canonical import Json
from decurion_crds.compiled import ITERATIONS, LoopBlock
from decurion_crds.expressions import ExpressionFailed
from decurion_worker.context import Execution
from decurion_worker.engine.rounds import Best, Round
from decurion_worker.errors import LoopExhausted, WorkError
from decurion_worker.failure import Failure, unsaid
from decurion_worker.nodes.node import check_output, expression_failure, failure_from, plain


@dataclass(frozen=True, slots=True)
class After:
    """What comes after a round: the `input` of the next one, or the `output` or the `failure` of the loop."""

    best: Best | None = None
    input: dict[str, Json] | None = None
    output: Json = None
    failure: Failure | None = None

    @property
    def opening(self) -> dict[str, Json]:
        """What the record of the next round says."""
        return {"input": self.input} | ({"best": self.best.to_json()} if self.best is not None else {})


async def after_round(execution: Execution, env: Mapping[str, Json], last: Round) -> After:
    """What comes after a round, for the environment `env` of the loop's node. Failures are results, not exceptions."""
    block = execution.node.loop
    assert block is not None
    try:
        return await _after(execution, block, {**env, "output": last.output, "iteration": last.number}, last)
    except WorkError as error:
        failure = failure_from(execution.path, error)
    except ExpressionFailed as error:
        failure = expression_failure(execution.path, error)
    return After(last.best, failure=failure if execution.node.sealed is None else unsaid(failure))


async def _after(execution: Execution, block: LoopBlock, env: Mapping[str, Json], last: Round) -> After:
    evaluate = execution.context.evaluate
    best = last.best
    if block.score is not None:
        score = plain(execution, await evaluate({"loop.score": block.score}, env))["loop.score"]
        if best is None or score > best.score:
            best = Best(last.number, score, last.output, last.core, last.files)
    ended = block.until is not None and bool((await evaluate({"loop.until": block.until}, env))["loop.until"])
    if not ended and last.number >= block.max_iterations and block.on_exhausted == "fail":
        raise LoopExhausted(execution.path, block.max_iterations)
    if ended or last.number >= block.max_iterations:
        kept = best.output if best is not None and block.keep == "best" else last.output
        value = {**kept, ITERATIONS: last.number}
        return After(best, output=await check_output(execution.context, execution.path, execution.node.output, value))
    changed = plain(execution, await evaluate({f"loop.next.{n}": e for n, e in block.next.items()}, env))
    given = {**last.input, **{name.removeprefix("loop.next."): value for name, value in changed.items()}}
    schema = execution.context.scope(block.template).input_schema
    return After(best, input=await check_output(execution.context, execution.path, schema, given))

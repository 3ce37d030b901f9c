"""One question of a node to its model and, where that cannot answer, to those that stand in for it.

Only what a server is to blame for is asked elsewhere: that it is away, overloaded, too slow, or allows no more, once
the tries of the node are used up. Whoever has answered is asked for the rest of the node; a runner that takes an agent
over goes on with the model of its last turn.
"""

from __future__ import annotations

import random
from dataclasses import replace

from decurion_crds.canonical import digest
from decurion_worker.context import Execution, note_failure
from decurion_worker.errors import ModelRefused, Transient, WorkError
from decurion_worker.models import ChatRequest, ChatResponse, call_with_retries

_ACCOUNT_USED_UP = 402


async def ask(execution: Execution, request: ChatRequest) -> ChatResponse:
    """The answer of the node's model, or of the first that stands in for it and answers: `execution.llm` says which.

    `request` has the parameters of the node; those of the LLM that is asked lie below them. Raises the failure of the
    last that was asked; those of the others are in the failed attempts.
    """
    models = execution.context.graph.models(execution.llm)
    for name in models:
        execution.llm = name
        try:
            return await _ask(execution, request)
        except WorkError as error:
            if name == models[-1] or not _of_server(error):
                raise
            note_failure(execution, error)
    raise AssertionError("unreachable: the last model answers or raises")


async def _ask(execution: Execution, request: ChatRequest) -> ChatResponse:
    name, own = execution.llm, request.idempotency_key
    spec = execution.context.graph.llms[name]
    # Two models may be served at one place, which would take the same key for the same call.
    key = digest("effect/v0", own.encode(), b"\0", name.encode()) if execution.fallback else own
    parameters = {**(spec.get("parameters") or {}), **request.parameters}
    return await call_with_retries(
        await execution.context.model(name),
        replace(request, parameters=parameters, idempotency_key=key),
        transient=execution.node.retry.transient,
        rng=random.Random(key),
        on_attempt_failed=lambda error: note_failure(execution, error),
        retried=execution.retries,
    )


def _of_server(error: WorkError) -> bool:
    """Whether another server may do what this one did not."""
    return isinstance(error, Transient) or (isinstance(error, ModelRefused) and error.status == _ACCOUNT_USED_UP)

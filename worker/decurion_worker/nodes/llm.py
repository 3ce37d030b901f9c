"""Node kind `llm`: one question to a model, its answer checked against the node's schema.

A failure of transport is tried again as the node's `retry.transient` says; an answer that breaks the schema goes back
to the model with the schema's complaints, `retry.repair` times. Every call carries a key made of run, path and turn,
so a server that knows keys answers a repeated call from its memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from decurion_crds.canonical import Json
from decurion_crds.compiled import LlmCall, Schema
from decurion_crds.expressions import ExpressionFailed
from decurion_worker.context import Execution, note_failure
from decurion_worker.drawers import messages
from decurion_worker.errors import OutputInvalid, TimedOut
from decurion_worker.models import (
    ChatRequest,
    Message,
    parse_output,
    repair_messages,
)
from decurion_worker.nodes.asking import ask
from decurion_worker.spending import counted, error_of, usage_of, used_up


async def run_llm(execution: Execution, call: LlmCall, snapshot: Mapping[str, Json]) -> Json:
    """The model's answer as a value of the node's schema.

    Raises `Transient` when the tries are used up, `OutputInvalid` when the repairs are, `LimitUsedUp` when a limit of
    the node is, `TimedOut` when the time of all tries is, `Terminal` when nothing helps, `ExpressionFailed` when an
    expression of the prompt or of the choices does.
    """
    seconds = execution.node.limits.seconds if execution.node.limits is not None else None
    try:
        async with asyncio.timeout(seconds):
            return await _answer(execution, call, snapshot)
    except TimeoutError:
        raise TimedOut(execution.path, seconds or 0.0, field="limits.seconds") from None


async def _answer(execution: Execution, call: LlmCall, snapshot: Mapping[str, Json]) -> Json:
    node, context = execution.node, execution.context
    request = await _request(execution, call, snapshot)
    # Choices differ from call to call: a validator of them is of no use to the next one.
    validator = context.validator(node.output) if not call.choices else None
    for turn in range(node.retry.repair + 1):
        response = await ask(execution, request)
        execution.charge(usage_of(context.graph.llms[execution.llm], response.usage))
        execution.turns = turn + 1
        try:
            return parse_output(response, request.schema, validator)
        except OutputInvalid as error:
            if turn == node.retry.repair or not execution.retries(error):
                raise
            note_failure(execution, error)
            _may_go_on(execution)
            request = replace(
                request,
                messages=repair_messages(request, response.text, error.errors),
                idempotency_key=context.idempotency_key(execution.path, turn + 1),
            )
    raise AssertionError("unreachable: the last turn returns or raises")


def _may_go_on(execution: Execution) -> None:
    """That the model may be asked once more. Raises `LimitUsedUp` when nothing is left of a limit of the node."""
    limits, used = execution.node.limits, counted(execution.usage)
    name = used_up(limits, used, ("tokens", "nanoUSD", "steps")) if limits is not None else None
    if limits is not None and name is not None:
        raise error_of(execution.path, name, used[name], limits.amounts[name])


async def _request(execution: Execution, call: LlmCall, snapshot: Mapping[str, Json]) -> ChatRequest:
    context, node = execution.context, execution.node
    execution.llm = call.ref
    return ChatRequest(
        messages=await _messages(execution, call, snapshot),
        schema=await _schema(execution, call, snapshot),
        parameters=dict(call.parameters),
        deadline_seconds=node.timeout_seconds,
        idempotency_key=context.idempotency_key(execution.path),
    )


async def _schema(execution: Execution, call: LlmCall, snapshot: Mapping[str, Json]) -> Schema:
    """The node's output, its text fields narrowed to the choices of this call."""
    schema = execution.node.output
    if not call.choices:
        return schema
    properties = dict(schema["properties"])
    for name, choices in (await execution.context.evaluate(call.choices, snapshot)).items():
        choices = await execution.context.load(choices, name=f"choices.{name}")
        if not choices:
            raise ExpressionFailed("the list is empty; skip the node by when", name=f"choices.{name}")
        properties[name] = {**properties[name], "enum": list(dict.fromkeys(choices))}
    return {**schema, "properties": properties}


async def _messages(execution: Execution, call: LlmCall, snapshot: Mapping[str, Json]) -> tuple[Message, ...]:
    context = execution.context
    given = [Message("system", await context.render(call.system, snapshot))] if call.system is not None else []
    given += [Message(one.role, await context.render(one.content, snapshot)) for one in call.messages]
    return (*given, *messages(execution, await context.render(call.prompt, snapshot)))

"""Node kind `tool`: one call of a tool, its arguments and result checked against the tool's schemas.

A tool that reads only, or knows a repeated call by its key, is called again after a failure of transport as the node's
`retry.transient` says. Any other call is an effect: that it is about to happen is in the log before it goes out, and
what came of it before anything is made of that. Whether such a call was carried out must be known, or nothing goes on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import orjson

from decurion_crds.canonical import Json
from decurion_crds.compiled import WORKSPACE, Argument, Expr, Schema, Text, ToolCall
from decurion_crds.errors import OutputMismatch, ValueRefused
from decurion_crds.values import normalise
from decurion_worker.context import Execution, note_failure
from decurion_worker.effects import Effectful
from decurion_worker.errors import (
    ToolArgumentsInvalid,
    ToolFailed,
    ToolResultInvalid,
)
from decurion_worker.models import is_text, with_retries
from decurion_worker.nodes.workspace_tool import call_workspace
from decurion_worker.permits import Permit
from decurion_worker.tools import ToolAnswer, ToolCaller


async def run_tool(execution: Execution, call: ToolCall, snapshot: Mapping[str, Json]) -> Json:
    """The node's output.

    Raises `Transient` when the tries are used up, `ToolArgumentsInvalid`, `ToolFailed`, `ToolResultInvalid`,
    `EffectInDoubt`, `Terminal` when nothing helps, `ExpressionFailed` when an expression does.
    """
    path = execution.path
    given = await _arguments(execution, call.arguments, snapshot)
    arguments = await checked_arguments(execution, call.name, call.input, given)
    answer = await call_tool(execution, call, path, arguments)
    if answer.failed:
        raise ToolFailed(path, call.name, answer.text)
    value = tool_value(execution, call, answer)
    if call.result is None:
        return value
    raw = {"raw": {"text": answer.text, "value": value}}
    return (await execution.context.evaluate({"tool.result": call.result}, raw))["tool.result"]


async def checked_arguments(execution: Execution, name: str, input: Schema, arguments: Json) -> dict[str, Json]:
    """`arguments` in the types that the tool `name` declares as its `input`. Raises `ToolArgumentsInvalid`."""
    try:
        normal: dict[str, Json] = await execution.context.checked(input, arguments)
    except OutputMismatch as error:
        raise ToolArgumentsInvalid(execution.path, name, error.problems) from error
    except ValueRefused as error:
        raise ToolArgumentsInvalid(execution.path, name, [str(error)]) from error
    return normal


def tool_value(execution: Execution, call: ToolCall, answer: ToolAnswer) -> Json:
    """The value of the tool's output: what came as such, or the text, as one JSON value where that is due.

    Raises `ToolResultInvalid`.
    """
    schema = call.output
    value = answer.value
    if is_text(schema) and not (isinstance(value, dict) and value.keys() == {"text"}):
        # Servers put a bare text into an object of their own choice as well.
        value = {"text": answer.text}
    elif value is None:
        value = _json(execution, call, answer.text, schema)
    try:
        normal: Json = normalise(value, schema)
        execution.context.validator(schema).check(normal)
    except OutputMismatch as error:
        raise _broken(execution, call, "; ".join(error.problems[:3])) from error
    except ValueRefused as error:
        raise _broken(execution, call, str(error)) from error
    return normal


def _json(execution: Execution, call: ToolCall, text: str, schema: Schema) -> Json:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not schema or schema.keys() == {"title"}:
            return None
        raise _broken(execution, call, f"it is a text and no JSON value ({error.msg})") from error


def _broken(execution: Execution, call: ToolCall, why: str) -> ToolResultInvalid:
    return ToolResultInvalid(
        f"{execution.path}: what the tool {call.name} gave breaks its declared output: {why}; correct the output in "
        f"the MCPServer {call.server}, or the server"
    )


async def _arguments(execution: Execution, tree: Argument, snapshot: Mapping[str, Json]) -> Json:
    """The tree with its expressions and texts in place."""
    exprs: dict[str, Expr] = {}
    texts: dict[str, Text] = {}
    _gather(tree, "tool.arguments", exprs, texts)
    context = execution.context
    values = await context.evaluate(exprs, snapshot) if exprs else {}
    found = {name: await context.load(value, name=name) for name, value in values.items()}
    found |= {name: await context.render(text, snapshot) for name, text in texts.items()}
    return _filled(tree, "tool.arguments", found)


def _gather(place: Argument, name: str, exprs: dict[str, Expr], texts: dict[str, Text]) -> None:
    if place.expr is not None:
        exprs[name] = place.expr
    elif place.text is not None:
        texts[name] = place.text
    for below, inner in _below(place, name):
        _gather(inner, below, exprs, texts)


def _filled(place: Argument, name: str, found: Mapping[str, Json]) -> Json:
    if place.expr is not None or place.text is not None:
        return found[name]
    if place.items is not None:
        return [_filled(inner, below, found) for below, inner in _below(place, name)]
    if place.fields is not None:
        return {field: _filled(inner, f"{name}.{field}", found) for field, inner in place.fields.items()}
    return place.value


def _below(place: Argument, name: str) -> list[tuple[str, Argument]]:
    items = [(f"{name}[{i}]", inner) for i, inner in enumerate(place.items or ())]
    return items + [(f"{name}.{field}", inner) for field, inner in (place.fields or {}).items()]


# ---------------------------------------------------------------------------- the call


async def call_tool(
    execution: Execution, call: ToolCall, path: str, arguments: dict[str, Json], *, seconds: float | None = None
) -> ToolAnswer:
    """What the tool gives, an effect at `path`; taken from the log where it was carried out before. `seconds` bound one
    try, those of the node where there are none.
    """
    if call.server == WORKSPACE:
        return await call_workspace(execution, call.name, arguments)
    seconds = execution.node.timeout_seconds if seconds is None else seconds
    server = await execution.context.tool_server(call.server)
    turn = execution.context.turn
    if call.repeatable:

        async def once() -> ToolAnswer:
            async with turn(call):
                return await _once(execution, server, call, path, arguments, seconds)

        return await with_retries(
            once,
            transient=execution.node.retry.transient,
            rng=random.Random(path),
            on_attempt_failed=lambda error: note_failure(execution, error, tool=call.name),
            retried=execution.retries,
        )
    journal = execution.journal
    before = await journal.effect(path)
    if before is not None and before.state == "done":
        return ToolAnswer.from_json(before.answer)
    effect = Effectful(journal, path, server=call.server, tool=call.name, arguments=arguments)
    if before is not None and before.state == "intended":
        return await effect.found_out(seconds)

    async def carry_out(permit: Permit) -> ToolAnswer:
        return await _once(execution, server, call, path, arguments, seconds, permit)

    async def once_at_most() -> ToolAnswer:
        # Leave to carry it out runs out: it is asked for when the call can go out.
        async with turn(call):
            return await effect.once(carry_out)

    return await with_retries(
        once_at_most,
        transient=execution.node.retry.transient,
        rng=random.Random(path),
        on_attempt_failed=lambda error: note_failure(execution, error, tool=call.name),
        retried=execution.retries,
    )


async def _once(
    execution: Execution,
    server: ToolCaller,
    call: ToolCall,
    path: str,
    arguments: dict[str, Json],
    seconds: float,
    permit: Permit | None = None,
) -> ToolAnswer:
    key = execution.journal.key(path)
    if execution.node.tool is not None:
        # An agent counts its calls in its turns.
        execution.charge({"toolCalls": 1})
    return await server.call(call.name, arguments, seconds=seconds, key=key, permit=permit)

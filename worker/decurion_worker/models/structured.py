"""From a model's text to a value of the node's schema, and back to the model with what is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from decurion_crds.canonical import Json, canonical
from decurion_crds.compiled import Schema
from decurion_crds.errors import OutputMismatch, ValueRefused
from decurion_crds.values import Validator, normalise
from decurion_worker.errors import ModelRefused, OutputInvalid, OutputTruncated
from decurion_worker.models.port import ChatRequest, ChatResponse, Message

SCHEMA_PROMPT = "Answer with one JSON value that matches this JSON Schema, and with nothing else:\n{schema}"
REPAIR_PROMPT = "Your answer was not accepted:\n{errors}\n\n{instruction}"
TEXT_REPAIR_INSTRUCTION = "Answer again."

MAX_SENT_BACK = 8_000
"""How many characters of a refused answer the model is shown again."""

_FENCE = re.compile(r"```(?:json)?[ \t]*\r?\n(.*?)\r?\n?[ \t]*```", re.DOTALL)


def is_text(schema: Schema | None) -> bool:
    """Whether a free text is due: no schema, or the one of `{text: string}` without constraints on the text."""
    if schema is None:
        return True
    properties = schema.get("properties")
    return (
        schema.get("type") == "object"
        and isinstance(properties, dict)
        and list(properties) == ["text"]
        and properties["text"] == {"type": "string"}
        and schema.get("required") == ["text"]
    )


def parse_output(response: ChatResponse, schema: Schema | None, validator: Validator | None = None) -> Json:
    """The answer as a value of `schema`, spelled as the schema declares it.

    For a schema of `{text: string}` the text becomes its `text`. Any other answer is one JSON value, alone or in one
    fenced block; nothing else around it, and nothing broken in it, is tolerated. `validator` is the compiled `schema`.

    Raises `OutputTruncated` when the answer was cut off, `OutputInvalid` when it is no JSON or breaks the schema, and
    `ModelRefused` when the model declined or its server withheld the answer.
    """
    text = response.text
    match response.finish_reason:
        case "length":
            raise OutputTruncated(text)
        case "refusal":
            raise ModelRefused(f"the model declined to answer ({_first(text)}); change the prompt, or the model")
        case "content_filter":
            raise ModelRefused("the model's server withheld the answer by its content filter; change the prompt")
    if schema is None or is_text(schema):
        return _as_text(text)
    value = _as_json(text)
    try:
        normal = normalise(value, schema)
        (validator or Validator(schema)).check(normal)
    except OutputMismatch as error:
        raise OutputInvalid(error.problems, text) from None
    except ValueRefused as error:
        raise OutputInvalid([str(error)], text) from None
    return normal


def with_schema(messages: tuple[Message, ...], schema: Schema) -> tuple[Message, ...]:
    """`messages` with the schema at the end of the last one of the user's, unless that one shows it already.

    The user's message, not the system's: some chat templates have no system role.
    """
    instruction = _instruction(schema)
    for i in range(len(messages) - 1, -1, -1):
        if messages[i].role == "user":
            content = messages[i].content
            if not content.endswith(instruction):
                content = f"{content}\n\n{instruction}" if content else instruction
            return (*messages[:i], Message("user", content), *messages[i + 1 :])
    return (*messages, Message("user", instruction))


def repair_messages(request: ChatRequest, raw: str, errors: Sequence[str]) -> tuple[Message, ...]:
    """All messages of the next request after the answer `raw` was refused for `errors`: the model sees it, what is
    wrong with it, and the schema. The idempotency key of that request must be another one.
    """
    instruction = TEXT_REPAIR_INSTRUCTION
    if request.schema is not None and not is_text(request.schema):
        instruction = _instruction(request.schema)
    told = REPAIR_PROMPT.format(errors="\n".join(f"- {error}" for error in errors), instruction=instruction)
    if not raw.strip():
        # Servers refuse a message without content.
        return (*request.messages, Message("user", told))
    shown = raw if len(raw) <= MAX_SENT_BACK else raw[:MAX_SENT_BACK] + "…"
    return (*request.messages, Message("assistant", shown), Message("user", told))


def _instruction(schema: Schema) -> str:
    return SCHEMA_PROMPT.format(schema=canonical(schema).decode())


def _as_text(text: str) -> Json:
    if not text.strip():
        raise OutputInvalid(["$: the answer is empty"], text)
    try:
        return normalise({"text": text})
    except ValueRefused as error:
        raise OutputInvalid([str(error)], text) from None


def _as_json(text: str) -> Json:
    bare = text.strip()
    fenced = _FENCE.fullmatch(bare)
    try:
        return orjson.loads(fenced.group(1) if fenced else bare)
    except orjson.JSONDecodeError as error:
        if not bare:
            raise OutputInvalid(["$: the answer is empty"], text) from None
        raise OutputInvalid([f"$: the answer is not one JSON value ({error.msg})"], text) from None


def _first(text: str, limit: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "…"

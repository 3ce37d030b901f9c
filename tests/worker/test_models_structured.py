"""From a model's text to a value of the schema."""

from dataclasses import replace
from typing import Any

import pytest

from decurion_worker.errors import ModelRefused, OutputInvalid, OutputTruncated
from decurion_worker.models import ChatRequest, ChatResponse, Message, is_text, parse_output, repair_messages
from decurion_worker.models.structured import with_schema

TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
FACT = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "unit": {"enum": ["crore", "lakh"]}, "note": {"type": "string"}},
    "required": ["value", "unit"],
    "additionalProperties": False,
}
REQUEST = ChatRequest(
    messages=(Message("system", "Be brief."), Message("user", "Which fact?")),
    schema=FACT,
    parameters={},
    deadline_seconds=5.0,
    idempotency_key="k",
)


def answer(text: str, **fields: Any) -> ChatResponse:
    return replace(ChatResponse(text=text), **fields)


def test_a_free_text_is_kept_as_it_came() -> None:
    assert parse_output(answer(' {"a": 1}\n'), TEXT) == {"text": ' {"a": 1}\n'}
    assert parse_output(answer("hello"), None) == {"text": "hello"}


def test_only_the_schema_of_one_plain_text_stands_for_free_text() -> None:
    assert is_text(None)
    assert is_text(TEXT)
    assert not is_text(FACT)
    assert not is_text(TEXT | {"properties": {"text": {"type": "string", "maxLength": 9}}})
    assert not is_text(TEXT | {"required": []})


@pytest.mark.parametrize(
    "text",
    [
        '{"value": 12, "unit": "crore"}',
        '\n  {"value": 12, "unit": "crore"} \n',
        '```json\n{"value": 12, "unit": "crore"}\n```',
        '  ```\r\n{"value": 12,\r\n "unit": "crore"}\r\n```\n',
    ],
)
def test_json_may_stand_in_white_space_or_one_fence(text: str) -> None:
    assert parse_output(answer(text), FACT) == {"value": 12.0, "unit": "crore"}


def test_the_value_is_spelled_as_the_schema_declares_it() -> None:
    value = parse_output(answer('{"value": 12, "unit": "crore", "note": null}'), FACT)
    assert value == {"value": 12.0, "unit": "crore"}
    assert type(value["value"]) is float


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ('Here it is: {"value": 12, "unit": "crore"}', "not one JSON value"),
        ('{"value": 12, "unit": "crore"} Done.', "not one JSON value"),
        ('{"value": 12, "unit": "crore"', "not one JSON value"),
        ("{'value': 12}", "not one JSON value"),
        ('{"value": NaN, "unit": "crore"}', "not one JSON value"),
        ('```json\n{"value": 1, "unit": "crore"}\n```\n```json\n{}\n```', "not one JSON value"),
        ('{"value": 9007199254740993000000000000, "unit": "lakh", "note": 18446744073709551615}', "$.note"),
        ('{"value": "12", "unit": "crore"}', "$.value"),
        ('{"value": 12, "unit": "million"}', "$.unit"),
        ('{"value": 12}', "unit"),
        ('{"value": 12, "unit": "crore", "more": 1}', "more"),
        ("[]", "$"),
    ],
)
def test_nothing_else_is_tolerated_or_repaired(text: str, said: str) -> None:
    with pytest.raises(OutputInvalid) as caught:
        parse_output(answer(text), FACT)
    assert caught.value.raw == text
    assert caught.value.errors
    assert any(said in error for error in caught.value.errors)
    assert (caught.value.klass, caught.value.code) == ("Repairable", "OutputInvalid")


def test_all_faults_of_a_value_are_told_at_once() -> None:
    with pytest.raises(OutputInvalid) as caught:
        parse_output(answer('{"value": "12", "unit": "million"}'), FACT)
    assert len(caught.value.errors) == 2


def test_an_empty_free_text_is_refused() -> None:
    with pytest.raises(OutputInvalid, match="empty"):
        parse_output(answer(" \n"), TEXT)


@pytest.mark.parametrize("schema", [TEXT, FACT, None])
def test_an_answer_cut_off_is_never_used_even_when_it_would_parse(schema: Any) -> None:
    with pytest.raises(OutputTruncated, match="max_tokens") as caught:
        parse_output(answer('{"value": 12, "unit": "crore"}', finish_reason="length"), schema)
    assert caught.value.code == "OutputTruncated"
    assert isinstance(caught.value, OutputInvalid)
    assert "briefly" in caught.value.errors[0]


def test_a_declined_or_withheld_answer_is_terminal() -> None:
    with pytest.raises(ModelRefused, match="I will not"):
        parse_output(answer("I will not do that.", finish_reason="refusal"), TEXT)
    with pytest.raises(ModelRefused, match="content filter"):
        parse_output(answer("", finish_reason="content_filter"), TEXT)


def test_a_repair_shows_the_model_its_answer_what_is_wrong_and_the_schema() -> None:
    messages = repair_messages(REQUEST, '{"value": 1}', ["$: unit is missing", "$.value: bad"])
    assert messages[:2] == REQUEST.messages
    assert messages[2] == Message("assistant", '{"value": 1}')
    assert messages[3].role == "user"
    assert "- $: unit is missing\n- $.value: bad" in messages[3].content
    assert '"crore"' in messages[3].content


def test_a_repair_of_a_free_text_names_no_schema() -> None:
    messages = repair_messages(replace(REQUEST, schema=TEXT), "x", ["too long"])
    assert "schema" not in messages[-1].content.lower()


def test_a_repair_sends_no_empty_message_and_no_endless_one() -> None:
    assert [m.role for m in repair_messages(REQUEST, " ", ["empty"])] == ["system", "user", "user"]
    assert len(repair_messages(REQUEST, "x" * 100_000, ["long"])[2].content) < 9_000


def test_the_schema_goes_to_the_last_user_message_once() -> None:
    with_it = with_schema(REQUEST.messages, FACT)
    assert with_it[0] == REQUEST.messages[0]
    assert with_it[1].content.startswith("Which fact?\n\n")
    assert '"crore"' in with_it[1].content
    assert with_schema(with_it, FACT) == with_it
    repaired = repair_messages(REQUEST, "x", ["bad"])
    assert with_schema(repaired, FACT) == repaired

"""The scripted model: the same call has the same answer."""

import asyncio
from typing import Any

import pytest

from decurion_worker.errors import (
    ModelMisconfigured,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    OutputTruncated,
    RateLimited,
)
from decurion_worker.models import ChatRequest, ChatResponse, Message, ScriptedModel, open_model, parse_output


def scripted(*replies: dict[str, Any], default: Any = None) -> ScriptedModel:
    script: dict[str, Any] = {"replies": list(replies)}
    if default is not None:
        script["default"] = default
    model = open_model("fast", {"protocol": "scripted", "scripted": script}, secrets={})
    assert isinstance(model, ScriptedModel)
    return model


def request(prompt: str, key: str = "k", seconds: float = 5.0) -> ChatRequest:
    earlier = (Message("user", "earlier revenue"), Message("assistant", "ok"))
    return ChatRequest((*earlier, Message("user", prompt)), None, {}, seconds, key)


async def ask(model: ScriptedModel, prompt: str, key: str = "k") -> str:
    return (await model.chat(request(prompt, key))).text


async def test_the_first_entry_that_matches_the_last_user_message_answers() -> None:
    model = scripted(
        {"match": "revenue", "reply": "R"},
        {"match": "/^profit.*[0-9]$/", "reply": "P"},
        {"match": "profit", "reply": "other"},
        default="D",
    )
    assert await ask(model, "the revenue") == "R"
    assert await ask(model, "profit\nof 2024") == "P"
    assert await ask(model, "net profit 2024") == "other"
    assert await ask(model, "assets") == "D"


async def test_a_text_is_searched_as_it_stands() -> None:
    model = scripted({"match": "a.c (", "reply": "yes"}, default="no")
    assert await ask(model, "xa.c (") == "yes"
    assert await ask(model, "abc (") == "no"


async def test_an_entry_without_match_always_answers() -> None:
    assert await ask(scripted({"reply": "R"}), "anything") == "R"


async def test_a_reply_that_is_no_text_is_sent_as_json() -> None:
    model = scripted({"match": "list", "reply": [1, 2]}, {"match": "zero", "reply": 0}, default={"b": 1.5, "a": None})
    assert await ask(model, "x") == '{"a":null,"b":1.5}'
    assert await ask(model, "list") == "[1,2]"
    assert await ask(model, "zero") == "0"


async def test_without_any_match_the_call_fails_and_says_what_to_add() -> None:
    with pytest.raises(ModelRefused, match=r"LLM fast: no scripted reply matches the prompt 'what'.*scripted\.default"):
        await ask(scripted({"match": "x", "reply": "y"}), "what")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("RateLimited", RateLimited),
        ("ModelUnavailable", ModelUnavailable),
        ("ModelTimeout", ModelTimeout),
        ("ModelRefused", ModelRefused),
    ],
)
async def test_an_error_is_raised_by_its_name(name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="LLM fast: overloaded"):
        await ask(scripted({"error": name, "reply": "overloaded"}), "x")


async def test_times_are_counted_for_each_key_so_that_order_does_not_matter() -> None:
    def model() -> ScriptedModel:
        return scripted({"error": "RateLimited", "times": 2}, {"reply": "fine"})

    async def outcomes(model: ScriptedModel, keys: list[str]) -> dict[str, list[str]]:
        seen: dict[str, list[str]] = {}
        for key in keys:
            answer = await asyncio.gather(ask(model, "x", key), return_exceptions=True)
            seen.setdefault(key, []).append(str(getattr(answer[0], "code", answer[0])))
        return seen

    expected = ["RateLimited", "RateLimited", "fine", "fine"]
    assert await outcomes(model(), ["a", "b"] * 4) == {"a": expected, "b": expected}
    assert await outcomes(model(), ["b"] * 4 + ["a"] * 4) == {"a": expected, "b": expected}


async def test_a_reply_used_up_makes_way_for_the_next() -> None:
    model = scripted({"match": "x", "reply": "first", "times": 1}, default="then")
    assert [await ask(model, "x"), await ask(model, "x"), await ask(model, "x", "other")] == ["first", "then", "first"]


async def test_thousands_of_callers_at_once_get_what_each_would_get_alone() -> None:
    replies = ({"match": "/7$/", "error": "RateLimited", "times": 1}, {"match": "/[0-4]$/", "reply": "low"})
    model = scripted(*replies, default="high")
    outcome = await asyncio.gather(*(ask(model, f"n {i}", f"k{i}") for i in range(5000)), return_exceptions=True)
    for i, got in enumerate(outcome):
        if i % 10 == 7:
            assert isinstance(got, RateLimited)
        else:
            assert got == ("low" if i % 10 < 5 else "high")


async def test_an_answer_waits_for_its_delay_and_none_beyond_the_deadline() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    script = {"replies": [{"match": "slow", "reply": "S", "delaySeconds": 3}]}
    model = ScriptedModel("fast", script, sleep=sleep)
    assert (await model.chat(request("slow", seconds=5))).text == "S"
    with pytest.raises(ModelTimeout, match="timeoutSeconds"):
        await model.chat(request("slow", seconds=2))
    assert slept == [3, 2]


async def test_an_answer_can_be_cut_off_by_script() -> None:
    answer = await scripted({"error": "OutputTruncated", "reply": "half a"}).chat(request("x"))
    assert (answer.text, answer.finish_reason) == ("half a", "length")
    with pytest.raises(OutputTruncated):
        parse_output(answer, None)


async def test_usage_is_counted_and_the_same_for_the_same_call() -> None:
    model = scripted({"reply": "12345"})
    answers = [await model.chat(request("x" * 8)) for _ in range(2)]
    assert answers[0] == answers[1]
    assert isinstance(answers[0], ChatResponse)
    assert (answers[0].usage.input_tokens, answers[0].usage.output_tokens) == (7, 2)


@pytest.mark.parametrize(
    ("reply", "place"),
    [
        ({"error": "Overloaded"}, r"replies\[1\]\.error: 'Overloaded' is not known; use one of ModelRefused, "),
        ({"match": "/(/", "reply": "x"}, r"replies\[1\]\.match: /\(/ is no regular expression"),
    ],
)
def test_a_script_of_no_use_is_refused_with_its_place(reply: dict[str, Any], place: str) -> None:
    with pytest.raises(ModelMisconfigured, match=place):
        scripted({"reply": "fine"}, reply)

"""The openai adapter against the test model server: what goes over the wire and what comes back."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest

from decurion_worker.errors import (
    ModelMisconfigured,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
    SecretInvalid,
    SecretMissing,
)
from decurion_worker.models import ChatModel, ChatRequest, Message, OpenAIModel, open_model, parse_output
from model_server import ModelServer, start_model_server

LABELS = {
    "type": "object",
    "properties": {"label": {"enum": ["a", "b", "c"]}},
    "required": ["label"],
    "additionalProperties": False,
}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
AUTH = {"secretKeyRef": {"name": "keys", "key": "token"}}
TOKEN = "sk-very-secret-0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with start_model_server() as running:
        yield running


def request(
    prompt: str = "hello", *, schema: Any = None, key: str = "k", seconds: float = 20.0, **parameters: Any
) -> Any:
    messages = (Message("system", "Be brief."), Message("user", prompt))
    return ChatRequest(messages, schema, parameters, seconds, key)


@asynccontextmanager
async def opened(endpoint: str, *, token: str | None = None, **spec: Any) -> AsyncIterator[ChatModel]:
    secrets = {} if token is None else {("keys", "token"): token}
    model = open_model("fast", {"protocol": "openai", "model": "m", "endpoint": endpoint, **spec}, secrets=secrets)
    try:
        yield model
    finally:
        await model.aclose()


class Recorder(httpx.AsyncBaseTransport):
    """Keeps what is sent and answers with `body`."""

    def __init__(self, body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.body = body if isinstance(body, bytes) else orjson.dumps(body)
        self.status = status
        self.headers = headers or {}
        self.sent: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        return httpx.Response(self.status, headers=self.headers, content=self.body)


def completion(text: Any = "fine", *, finish: Any = "stop", **message: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **message}
    return {"id": "c1", "choices": [{"message": message, "finish_reason": finish}], "usage": None}


async def sent_body(spec: dict[str, Any], call: ChatRequest) -> dict[str, Any]:
    transport = Recorder(completion())
    await OpenAIModel("fast", {"endpoint": "http://x/v1", "model": "m"} | spec, transport=transport).chat(call)
    return dict(orjson.loads(transport.sent[0].content))


# ------------------------------------------------------------------ over real sockets


async def test_a_call_comes_back_with_text_usage_and_the_server_s_name_for_it(server: ModelServer) -> None:
    async with opened(server.endpoint) as model:
        answer = await model.chat(request("hello model"))
    assert answer.text == "hello model"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 2)
    assert answer.finish_reason == "stop"
    assert answer.provider_id is not None
    assert answer.provider_id.startswith("chatcmpl-")


async def test_a_schema_is_enforced_by_the_server_and_the_answer_parses(server: ModelServer) -> None:
    async with opened(server.endpoint) as model:
        labels = {parse_output(await model.chat(request(f"p{i}", schema=LABELS)), LABELS)["label"] for i in range(20)}
    assert labels == {"a", "b", "c"}


async def test_every_call_carries_its_key(server: ModelServer) -> None:
    async with opened(server.endpoint) as model:
        for key in ("key-1", "key-2", "key-2"):
            await model.chat(request(key=key))
    assert {k: n for k, n in server.keys().items() if k.startswith("key-")} == {"key-1": 1, "key-2": 2}


async def test_failures_of_the_server_are_transient_and_the_same_key_succeeds_later() -> None:
    with start_model_server(error_rates={429: 0.5, 503: 0.5}, retry_after=2.5) as server:
        async with opened(server.endpoint) as model:
            calls = [model.chat(request(key=f"k{i}")) for i in range(20)]
            failures = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(failure) for failure in failures} == {RateLimited, ModelUnavailable}
            assert {getattr(failure, "retry_after", 0) for failure in failures} == {2.5}
            assert (await model.chat(request(key="k0"))).text == "hello"


async def test_a_call_beyond_its_deadline_is_given_up() -> None:
    with start_model_server(delay=30) as server:
        async with opened(server.endpoint) as model:
            with pytest.raises(
                ModelTimeout, match=r"LLM fast at http://127.* within 0\.2 s; raise the node's timeoutSeconds"
            ):
                await model.chat(request(seconds=0.2))


async def test_a_server_that_is_not_there_is_transient() -> None:
    with start_model_server() as server:
        endpoint = server.endpoint
    async with opened(endpoint) as model:
        with pytest.raises(ModelUnavailable, match="no answer"):
            await model.chat(request())


async def test_the_token_is_sent_and_a_wrong_one_is_terminal() -> None:
    with start_model_server(token=TOKEN) as server:
        async with opened(server.endpoint, auth=AUTH, token=TOKEN + "\n") as model:
            assert (await model.chat(request())).text == "hello"
        async with opened(server.endpoint, auth=AUTH, token="wrong") as model:
            with pytest.raises(ModelRefused, match=r"answered 401.*Secret") as caught:
                await model.chat(request())
        async with opened(server.endpoint) as model:
            with pytest.raises(ModelRefused):
                await model.chat(request())
    assert caught.value.status == 401


async def test_nothing_of_a_call_is_logged(server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(server.endpoint, auth=AUTH, token=TOKEN) as model:
        await model.chat(request("a private prompt"))
    with start_model_server(error_rates={503: 1.0}) as failing:
        async with opened(failing.endpoint, auth=AUTH, token=TOKEN) as model:
            with pytest.raises(ModelUnavailable):
                await model.chat(request("a private prompt"))
    assert TOKEN not in caplog.text
    assert "private prompt" not in caplog.text
    assert "authorization" not in caplog.text.lower()


# ------------------------------------------------------------------ what is sent


async def test_parameters_of_the_call_are_laid_over_those_of_the_model() -> None:
    spec = {"parameters": {"temperature": 0.5, "max_tokens": 10, "extra": {"a": 1}}}
    body = await sent_body(spec, request(temperature=0, top_p=1))
    assert body == {
        "model": "m",
        "temperature": 0,
        "max_tokens": 10,
        "extra": {"a": 1},
        "top_p": 1,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
    }


async def test_a_native_schema_goes_into_the_response_format() -> None:
    for spec in ({}, {"structuredOutput": "native"}):
        body = await sent_body(spec, request(schema=LABELS))
        assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "output", "schema": LABELS}}
        assert "crore" not in body["messages"][1]["content"]
        assert body["messages"][1]["content"] == "hello"


async def test_a_prompted_schema_goes_into_the_prompt() -> None:
    body = await sent_body({"structuredOutput": "prompt"}, request(schema=LABELS))
    assert "response_format" not in body
    assert body["messages"][1]["content"].startswith("hello\n\n")
    assert orjson.dumps(LABELS["properties"]).decode() in body["messages"][1]["content"]


async def test_a_free_text_is_asked_for_without_a_schema() -> None:
    for mode in ("native", "prompt"):
        body = await sent_body({"structuredOutput": mode}, request(schema=TEXT))
        assert "response_format" not in body
        assert body["messages"][1]["content"] == "hello"


@pytest.mark.parametrize("name", ["stream", "n", "messages", "model", "response_format", "tools"])
async def test_parameters_that_decide_the_answer_s_form_are_refused(name: str) -> None:
    with pytest.raises(ModelMisconfigured, match=f"LLM fast: the parameter {name}"):
        await sent_body({}, request(**{name: 1}))
    with pytest.raises(ModelMisconfigured, match=f"LLM fast: the parameter {name}"):
        await sent_body({"parameters": {name: 1}}, request())


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("https://api.example.com/v1", "https://api.example.com/v1/chat/completions"),
        ("https://api.example.com/v1/", "https://api.example.com/v1/chat/completions"),
        ("http://models:8000", "http://models:8000/chat/completions"),
        ("https://x.example/a%20b?api-version=1&k=v", "https://x.example/a%20b/chat/completions?api-version=1&k=v"),
    ],
)
async def test_the_call_goes_below_the_endpoint(endpoint: str, url: str) -> None:
    transport = Recorder(completion())
    await OpenAIModel("fast", {"endpoint": endpoint, "model": "m"}, token="t", transport=transport).chat(request())
    (sent,) = transport.sent
    assert str(sent.url) == url
    assert (sent.method, sent.headers["authorization"]) == ("POST", "Bearer t")
    assert sent.headers["host"] == url.split("/")[2]
    assert sent.headers.get_list("content-length") == [str(len(sent.content))]


# ------------------------------------------------------------------ what comes back


async def answered(transport: Recorder, *, token: str | None = None) -> Any:
    spec = {"endpoint": "https://api.example.com/v1?key=hidden", "model": "m"}
    return await OpenAIModel("fast", spec, token=token, transport=transport).chat(request())


@pytest.mark.parametrize(
    ("body", "text", "finish"),
    [
        (completion("a"), "a", "stop"),
        (completion("a", finish=None), "a", "stop"),
        (completion("a", finish={"type": "stop"}), "a", "stop"),
        (completion("a") | {"usage": {"prompt_tokens": 2**64 - 1}}, "a", "stop"),
        (completion("a") | {"usage": {"prompt_tokens": True}}, "a", "stop"),
        (completion("half", finish="length"), "half", "length"),
        (completion("", finish="content_filter"), "", "content_filter"),
        (completion(None, refusal="I will not."), "I will not.", "refusal"),
        (completion(None), "", "stop"),
        (completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "ab", "stop"),
    ],
)
async def test_answers_are_read_as_they_come(body: Any, text: str, finish: str) -> None:
    answer = await answered(Recorder(body))
    assert (answer.text, answer.finish_reason, answer.usage.input_tokens) == (text, finish, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>gateway</html>",
        b'{"id": 1',
        [],
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": 3}]},
    ],
)
async def test_what_is_no_completion_is_transient(body: Any) -> None:
    with pytest.raises(ModelUnavailable, match="no chat completion") as caught:
        await answered(Recorder(body))
    assert caught.value.klass == "Transient"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (408, ModelTimeout),
        (409, ModelUnavailable),
        (425, ModelUnavailable),
        (429, RateLimited),
        (500, ModelUnavailable),
        (503, ModelUnavailable),
        (504, ModelTimeout),
        (529, ModelUnavailable),
        (400, ModelRefused),
        (401, ModelRefused),
        (403, ModelRefused),
        (404, ModelRefused),
        (422, ModelRefused),
        (418, ModelRefused),
        (302, ModelRefused),
    ],
)
async def test_the_status_decides_whether_to_try_again(status: int, kind: type[Exception]) -> None:
    with pytest.raises(
        kind, match=f"LLM fast at https://api.example.com/v1/chat/completions: the server answered {status}"
    ):
        await answered(Recorder({"error": {"message": "because"}}, status=status))


async def test_a_redirect_is_not_followed_but_told() -> None:
    moved = Recorder(b"", status=308, headers={"location": "https://new.example/v1/chat/completions"})
    with pytest.raises(ModelRefused, match=r"answered 308 \(to https://new\.example/.*set spec\.endpoint"):
        await answered(moved)


async def test_the_server_s_words_are_told_without_the_token_or_the_query() -> None:
    said = f"Incorrect API key\nprovided: {TOKEN}. " + "x" * 1000
    with pytest.raises(ModelRefused) as caught:
        await answered(Recorder({"error": {"message": said}}, status=401), token=TOKEN)
    message = str(caught.value)
    assert "Incorrect API key provided: ***." in message
    assert TOKEN not in message
    assert "hidden" not in message
    assert len(message) < 600


async def test_a_failure_inside_a_200_counts_as_what_it_says() -> None:
    with pytest.raises(RateLimited, match="slow down"):
        await answered(Recorder({"error": {"message": "slow down", "code": 429}}))
    with pytest.raises(ModelRefused, match="no credits"):
        await answered(Recorder({"error": {"message": "no credits", "code": 402}}))
    with pytest.raises(ModelUnavailable):
        await answered(Recorder({"error": "upstream failed"}))


# ------------------------------------------------------------------ opening


@pytest.mark.parametrize("endpoint", ["", "api.example.com/v1", "ftp://x/v1", "https://", "http://[::1"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ModelMisconfigured, match=r"LLM fast spec\.endpoint"):
        open_model("fast", {"protocol": "openai", "model": "m", "endpoint": endpoint}, secrets={})


def test_a_password_in_the_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(ModelMisconfigured, match="Secret") as caught:
        open_model("fast", {"protocol": "openai", "endpoint": "https://user:hunter2@x/v1"}, secrets={})
    assert "hunter2" not in str(caught.value)


def test_a_secret_that_did_not_come_is_named() -> None:
    with pytest.raises(SecretMissing, match="Secret keys: the value of its key token") as caught:
        open_model("fast", {"protocol": "openai", "endpoint": "http://x/v1", "auth": AUTH}, secrets={})
    assert caught.value.klass == "Terminal"


@pytest.mark.parametrize("value", ["", " \n", "two words", "line\nbreak", "tøken", "a\x00b"])
def test_a_secret_that_is_no_token_is_refused_without_being_told(value: str) -> None:
    with pytest.raises(SecretInvalid, match="Secret keys") as caught:
        open_model(
            "fast", {"protocol": "openai", "endpoint": "http://x/v1", "auth": AUTH}, secrets={("keys", "token"): value}
        )
    assert not value.strip() or value not in str(caught.value)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ModelMisconfigured, match="'smoke' is not known; use openai or scripted"):
        open_model("fast", {"protocol": "smoke"}, secrets={})

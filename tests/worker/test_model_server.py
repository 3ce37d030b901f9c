"""The model server that other tests rely on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from model_answers import instance
from model_server import ModelServer, start_model_server

LABELS = {"type": "object", "properties": {"label": {"enum": ["a", "b", "c"]}}, "required": ["label"]}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with start_model_server() as running:
        yield running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client() as client:
        yield client


def ask(
    http: httpx.Client, server: ModelServer, prompt: str, *, key: str = "", schema: Any = None, **headers: str
) -> httpx.Response:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    if key:
        headers["idempotency-key"] = key
    return http.post(f"{server.endpoint}/chat/completions", json=body, headers=headers)


def text(response: httpx.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def poll(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def test_without_a_schema_the_prompt_comes_back(http: httpx.Client, server: ModelServer) -> None:
    answer = ask(http, server, "hello")
    assert text(answer) == "hello"
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert answer.json()["usage"]["prompt_tokens"] == 1


def test_the_same_request_has_the_same_answer_from_every_server(http: httpx.Client, server: ModelServer) -> None:
    with start_model_server(seed=7) as other:
        for i in range(10):
            assert ask(http, server, f"p{i}", schema=LABELS).content == ask(http, other, f"p{i}", schema=LABELS).content


def test_prompts_choose_different_members_of_an_enum(http: httpx.Client, server: ModelServer) -> None:
    chosen = {text(ask(http, server, f"p{i}", schema=LABELS)) for i in range(20)}
    assert chosen == {'{"label":"a"}', '{"label":"b"}', '{"label":"c"}'}


@pytest.mark.parametrize(
    "schema",
    [
        LABELS,
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 5}}, "required": ["n"]},
        {"type": "object", "properties": {"x": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}}},
        {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 24}, "minItems": 2},
        {"type": "array", "items": {"type": "string"}, "maxItems": 0},
        {"anyOf": [{"type": "string"}, {"type": "boolean"}, {"type": "null"}]},
        {"type": ["null", "boolean"]},
        {
            "type": "object",
            "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
            "$defs": {"row": {"type": "object", "properties": {"v": {"const": 4}}, "required": ["v"]}},
        },
    ],
)
def test_answers_match_the_schema(schema: dict[str, Any]) -> None:
    for i in range(30):
        jsonschema_rs.validate(schema, instance(schema, f"seed {i}"))


def test_a_script_decides_answers_by_the_last_user_message(http: httpx.Client) -> None:
    script = {"revenue of (ITC|NTPC)": "Revenue from operations", "^facts": {"value": 1.5, "unit": "crore"}}
    with start_model_server(script=script) as server:
        assert text(ask(http, server, "the revenue of NTPC, please")) == "Revenue from operations"
        assert text(ask(http, server, "facts of it")) == '{"value":1.5,"unit":"crore"}'
        assert text(ask(http, server, "else")) == "else"


def test_first_calls_of_chosen_keys_fail_and_the_choice_depends_on_key_and_seed_alone(http: httpx.Client) -> None:
    def failing(seed: int, order: list[str]) -> dict[str, list[int]]:
        rates = {429: 0.2, 503: 0.2}
        with start_model_server(error_rates=rates, error_calls=2, retry_after=0.5, seed=seed) as server:
            seen: dict[str, list[int]] = {key: [] for key in order}
            for key in order * 3:
                answer = ask(http, server, "p", key=key)
                seen[key].append(answer.status_code)
                assert answer.headers.get("retry-after") == (None if answer.is_success else "0.5")
            return seen

    keys = [f"k{i}" for i in range(40)]
    seen = failing(1, keys)
    assert {tuple(statuses) for statuses in seen.values()} == {(200, 200, 200), (429, 429, 200), (503, 503, 200)}
    assert failing(1, keys[::-1]) == seen
    assert failing(2, keys) != seen


def test_every_call_is_logged_with_its_key_when_it_arrives(http: httpx.Client, tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    with start_model_server(delay=60, log=log) as server, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(ask, http, server, "p", key="k1")
        poll(lambda: bool(server.calls()))
        assert not pending.done()
        counts = http.get(f"{server.url}/log").json()
        os.kill(server.pid, signal.SIGTERM)
        with pytest.raises(httpx.HTTPError):
            pending.result()
    (call,) = server.calls()
    assert call.pop("time") <= time.time()
    digest = call.pop("prompt_sha256")
    assert len(digest) == 64
    assert call == {"idempotency_key": "k1", "model": "m", "status": 200}
    assert (counts["calls"], counts["keys"], counts["statuses"], counts["inFlight"]) == (1, {"k1": 1}, {"200": 1}, 1)


def test_a_token_is_asked_for(http: httpx.Client) -> None:
    with start_model_server(token="right") as server:
        assert ask(http, server, "p").status_code == 401
        assert ask(http, server, "p", authorization="Bearer wrong").status_code == 401
        assert ask(http, server, "p", authorization="Bearer right").status_code == 200


def test_what_is_no_completion_request_is_refused(http: httpx.Client, server: ModelServer) -> None:
    assert http.post(f"{server.endpoint}/chat/completions", content=b"{").status_code == 400
    assert http.post(f"{server.endpoint}/chat/completions", json={}).status_code == 400
    assert http.get(f"{server.url}/nothing").status_code == 404
    assert http.get(f"{server.endpoint}/models").json()["data"][0]["id"] == "test"


def test_it_ends_with_the_process_that_holds_its_input() -> None:
    script = Path(start_model_server.__wrapped__.__code__.co_filename)
    process = subprocess.Popen(
        [sys.executable, script, "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert b'"endpoint"' in process.stdout.readline()
    process.stdin.close()
    assert process.wait(10) == 0
    process.stdout.close()

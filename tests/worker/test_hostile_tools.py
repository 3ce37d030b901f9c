"""Tool servers that answer what no tool server should: none of it ends a runner, and none counts as a call not made."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from crashes import Process, new_store, sound
from decurion_worker.errors import OutputTooLarge, ToolResultInvalid, ToolUnavailable, WorkError
from decurion_worker.tools import ToolServers
from decurion_worker.tools.guard import MAX_BODY
from decurion_worker.tools.mcp import McpServer
from decurion_worker.tools.port import ToolAnswer
from manifests import compiled

SECRET = "a-token-of-ours"
INFO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "hostile", "version": "1"},
}


def http(body: bytes, *, kind: str = "application/json", status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def rpc(id: Any, **answer: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, **answer}).encode()


def result(text: str = "", value: Any = None) -> Callable[[Any], bytes]:
    found = {"content": [{"type": "text", "text": text}]} | ({} if value is None else {"structuredContent": value})
    return lambda id: http(rpc(id, result=found))


def error(message: str, *, code: int = -32000, status: str = "200 OK") -> Callable[[Any], bytes]:
    return lambda id: http(rpc(id, error={"code": code, "message": message}), status=status)


@asynccontextmanager
async def hostile(answer: Callable[[Any], bytes], *, endless: bool = False) -> AsyncIterator[str]:
    """The URL of a server that knows how to begin, and answers each call of a tool with the bytes of `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _serve(reader, writer, answer, endless=endless):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Callable[[Any], bytes], *, endless: bool
) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    lengths = [int(line.partition(":")[2]) for line in head.split("\r\n") if line.startswith("content-length:")]
    body = await reader.readexactly(lengths[0]) if lengths else b""
    call = json.loads(body) if body else {}
    match call.get("method"):
        case "tools/call":
            writer.write(answer(call["id"]))
            while endless:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                await writer.drain()
            # What is cut short ends with its connection.
            return False
        case None if "messages" in call:
            writer.write(model(call))
        case "initialize":
            writer.write(http(rpc(call["id"], result=INFO)))
        case _ if "id" in call:
            writer.write(http(rpc(call["id"], error={"code": -32601, "message": "no such method"})))
        case _:
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
    return True


async def called(answer: Callable[[Any], bytes], *, endless: bool = False) -> ToolAnswer:
    async with hostile(answer, endless=endless) as url:
        server = McpServer("desk", url, (("authorization", f"Bearer {SECRET}"),), secrets=(SECRET,))
        try:
            return await server.call("act", {}, seconds=60, key="k")
        finally:
            await server.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        lambda id: http(b"<html>Please log in</html>", kind="text/html"),
        lambda id: http(b"", status="202 Accepted"),
        lambda id: b"HTTP/1.1 204 No Content\r\n\r\n",
        lambda id: http(b"this is no JSON"),
        lambda id: http(b"[]"),
        lambda id: http(b'{"jsonrpc": "2.0", "result": {"content": [{"type": "text", "text": "\\ud800"}]}}'),
        lambda id: result("half")(id)[:-5],
        lambda id: result("another")(id + 100),
        lambda id: http(b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}'),
        lambda id: http(b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "what?"}}'),
    ],
    ids=["html", "202", "204", "text", "list", "surrogate", "half", "another", "news", "nobody's"],
)
async def test_an_answer_that_is_none_leaves_open_whether_the_call_was_carried_out(answer: Any) -> None:
    with pytest.raises(ToolUnavailable) as failed:
        await called(answer)
    assert failed.value.sent


@pytest.mark.parametrize("endless", [False, True])
async def test_an_answer_without_measure_is_cut_off(endless: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    zipped = gzip.compress(b"x" * (MAX_BODY + 1), 1)
    with pytest.raises(OutputTooLarge):
        await called(
            (lambda id: head) if endless else (lambda id: http(zipped, more="content-encoding: gzip\r\n")),
            endless=endless,
        )


async def test_numbers_that_no_ledger_can_hold_are_refused() -> None:
    with pytest.raises(ToolResultInvalid, match="no JSON that can be kept"):
        await called(result(value={"big": 2**70}))


@pytest.mark.parametrize(
    "answer",
    [
        error(f"bad token {SECRET}"),
        error(f"bad token {SECRET}", code=-32602, status="400 Bad Request"),
        lambda id: http(f"bad token {SECRET}".encode(), kind="text/plain", status="500 Oops"),
    ],
    ids=["error", "400", "500"],
)
async def test_a_server_that_repeats_our_token_does_not_bring_it_into_a_message(answer: Any) -> None:
    with pytest.raises(WorkError) as failed:
        await called(answer)
    assert SECRET not in str(failed.value)
    assert "bad token ***" in str(failed.value)


async def test_a_tool_that_repeats_our_token_does_not_bring_it_into_the_ledger() -> None:
    answer = await called(result(f"you sent {SECRET}", {"headers": [f"Bearer {SECRET}"]}))
    assert answer == ToolAnswer("you sent ***", {"headers": ["Bearer ***"]})


async def test_only_what_comes_from_secrets_is_hidden() -> None:
    spec = {
        "url": "",
        "headers": [
            {"name": "X-Tenant", "value": "1"},
            {"name": "X-Empty", "value": ""},
            {"name": "X-Key", "valueFrom": {"secretKeyRef": {"name": "desk", "key": "key"}}},
        ],
    }
    async with hostile(error(f"tenant 1 of {SECRET}")) as url:
        servers = ToolServers()
        server = servers.of("desk", spec | {"url": url}, secrets={("desk", "key"): SECRET})
        with pytest.raises(ToolUnavailable, match=r"\(tenant 1 of \*\*\*\)"):
            await server.call("act", {}, seconds=60, key="k")
        await servers.aclose()


AGENT = """
  nodes:
    - name: ask
      agent: {model: fast, prompt: Go on., tools: [{server: desk}]}
      output: {answer: {type: string}}
  output: {answer: nodes.ask.output.answer}
---
apiVersion: decurion.dev/v1alpha1
kind: MCPServer
metadata: {name: desk}
spec: {url: URL, tools: [{name: act, input: {'deep?': {}}, policy: {readOnly: true}}]}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: openai, model: any, endpoint: MODEL}
"""


def model(call: dict[str, Any]) -> bytes:
    """What a model answers that nests too deep, and far too many times, and ends when it is told."""
    told = [message["content"] for message in call["messages"] if message["role"] == "tool"]
    deep = "[" * 300 + "]" * 300
    asked = [("act", f'{{"deep": {deep}, "nth": {i}}}') for i in range(103)]
    if told:
        answer = f"told {sum('were not accepted' in text for text in told)} of {len(told)}"
        asked = [("finish", json.dumps({"answer": answer}))]
    functions = [{"name": name, "arguments": arguments} for name, arguments in asked]
    calls = [{"id": str(i), "type": "function", "function": function} for i, function in enumerate(functions)]
    message = {"role": "assistant", "tool_calls": calls}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return http(json.dumps({"id": "x", "object": "chat.completion", "model": "any", "choices": [choice]}).encode())


async def test_a_model_that_nests_arguments_deeper_than_json_can_be_written_or_calls_without_end_is_told() -> None:
    store = new_store()
    async with hostile(result("never")) as url, Process(store) as process:
        text = AGENT.replace("URL", url).replace("MODEL", url.replace("/mcp", "/v1"))
        session = await process.run(compiled(text), {})
    assert session.engine.output == {"answer": "told 100 of 103"}, session.projection()["message"]
    assert "lease_lost" not in {record.type for record in await sound(store)}

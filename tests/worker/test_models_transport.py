"""Connections to a model's server: reuse, limits, and servers that misbehave."""

import asyncio
import ssl
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import httpx
import orjson
import pytest

from decurion_worker.errors import ModelRefused, ModelTimeout, ModelUnavailable, OutputTooLarge
from decurion_worker.models import ChatRequest, Message, OpenAIModel
from decurion_worker.models.transport import EndpointTransport, open_transport

BODY = orjson.dumps({"id": "c", "choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]})
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """A server that answers each request by `handler`, counting connections and requests."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections = 0
        self.writers: set[asyncio.StreamWriter] = set()
        self.requests = 0
        self.endpoint = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                self.requests += 1
                await self.handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    @property
    def open(self) -> int:
        return len(self.writers)


@asynccontextmanager
async def raw_server(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    server = RawServer(handler)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.endpoint = f"http{'s' if tls else ''}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listening.close()
        for writer in server.writers:
            writer.transport.abort()
        await until(lambda: server.open == 0)


def sends(*chunks: bytes, close: bool = False) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        if close:
            writer.close()

    return handler


async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    raise ConnectionError


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def model_at(endpoint: str, **options: Any) -> AsyncIterator[OpenAIModel]:
    transport = EndpointTransport(httpx.URL(endpoint), **options)
    model = OpenAIModel("fast", {"endpoint": endpoint, "model": "m"}, transport=transport)
    try:
        yield model
    finally:
        await model.aclose()


def request(seconds: float = 20.0) -> ChatRequest:
    return ChatRequest((Message("user", "hello"),), None, {}, seconds, "k")


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


# ------------------------------------------------------------------ connections


async def test_calls_one_after_the_other_use_one_connection() -> None:
    async with raw_server(sends(WHOLE)) as server, model_at(server.endpoint) as model:
        for _ in range(5):
            assert (await model.chat(request())).text == "fine"
        assert (server.connections, server.requests) == (1, 5)


async def test_calls_beyond_the_connections_wait_in_line() -> None:
    most = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most
        most = max(most, server.open)
        await asyncio.sleep(0.01)
        writer.write(WHOLE)

    async with raw_server(handler) as server, model_at(server.endpoint, max_connections=3) as model:
        answers = await asyncio.gather(*(model.chat(request()) for _ in range(30)))
        assert [answer.text for answer in answers] == ["fine"] * 30
        assert (most, server.connections) == (3, 3)


async def test_hundreds_of_calls_are_in_flight_at_once() -> None:
    all_there = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server.requests == 400:
            all_there.set()
        await all_there.wait()
        writer.write(WHOLE)

    async with raw_server(handler) as server, model_at(server.endpoint) as model:
        answers = await asyncio.gather(*(model.chat(request()) for _ in range(400)))
        assert len(answers) == server.connections == 400


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async with raw_server(sends(WHOLE, close=True)) as server, model_at(server.endpoint) as model:
        for _ in range(3):
            assert (await model.chat(request())).text == "fine"
            await until(lambda: server.open == 0)
        assert server.connections == 3


async def test_a_connection_that_the_server_will_close_is_not_kept() -> None:
    last = WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    async with raw_server(sends(last)) as server, model_at(server.endpoint) as model:
        await model.chat(request())
        await model.chat(request())
        assert server.connections == 2


async def test_idle_connections_are_closed_after_a_while() -> None:
    async with raw_server(sends(WHOLE)) as server, model_at(server.endpoint, keep_alive=0.05) as model:
        await asyncio.gather(*(model.chat(request()) for _ in range(4)))
        await until(lambda: server.open == 0)


async def test_words_that_nobody_asked_for_are_never_taken_for_the_next_answer() -> None:
    async with raw_server(sends(WHOLE + WHOLE.replace(b"fine", b"evil"))) as server, model_at(server.endpoint) as model:
        for _ in range(3):
            assert (await model.chat(request())).text == "fine"
        assert server.connections == 3


async def test_a_connection_on_which_something_comes_unasked_is_dropped() -> None:
    async with raw_server(sends(WHOLE)) as server, model_at(server.endpoint, keep_alive=60) as model:
        await model.chat(request())
        (writer,) = server.writers
        writer.write(WHOLE.replace(b"fine", b"evil"))
        await until(lambda: server.open == 0)
        assert (await model.chat(request())).text == "fine"


async def test_a_caller_that_stops_waiting_drops_its_connection_and_frees_its_place() -> None:
    first = True

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        if first:
            first = False
            await hangs(reader, writer)
        writer.write(WHOLE)

    async with raw_server(handler) as server, model_at(server.endpoint, max_connections=1) as model:
        call = asyncio.create_task(model.chat(request()))
        await until(lambda: server.requests == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: server.open == 0)
        assert (await model.chat(request())).text == "fine"


async def test_closing_the_model_fails_the_calls_in_flight() -> None:
    async with raw_server(hangs) as server, model_at(server.endpoint) as model:
        call = asyncio.create_task(model.chat(request()))
        await until(lambda: server.requests == 1)
        await model.aclose()
        with pytest.raises(ModelUnavailable):
            await call
        with pytest.raises(ModelUnavailable, match="closed"):
            await model.chat(request())
        await until(lambda: server.open == 0)


# ------------------------------------------------------------------ bodies


@pytest.mark.parametrize(
    "chunks",
    [
        [WHOLE[i : i + 7] for i in range(0, len(WHOLE), 7)],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n" % len(BODY) + BODY + b"\r\n", b"0\r\n\r\n"],
        [b"HTTP/1.1 102 Processing\r\n\r\n", WHOLE],
    ],
    ids=["in pieces", "chunked", "after an interim answer"],
)
async def test_an_answer_may_come_in_any_form_of_http(chunks: list[bytes]) -> None:
    async with raw_server(sends(*chunks)) as server, model_at(server.endpoint) as model:
        for _ in range(2):
            assert (await model.chat(request())).text == "fine"
        assert server.connections == 1


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with raw_server(sends(HEAD + b"\r\n" + BODY, close=True)) as server, model_at(server.endpoint) as model:
        assert (await model.chat(request())).text == "fine"


async def test_a_long_prompt_and_a_long_answer_pass() -> None:
    text = "x" * 3_000_000
    body = orjson.dumps({"choices": [{"message": {"content": text}}]})
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with raw_server(sends(whole)) as server, model_at(server.endpoint) as model:
        long = ChatRequest((Message("user", text),), None, {}, 20.0, "k")
        assert (await model.chat(long)).text == text


@pytest.mark.parametrize("framing", [b"Content-Length: 9999\r\n", b""])
async def test_an_answer_larger_than_allowed_is_terminal(framing: bytes) -> None:
    handler = sends(HEAD + framing + b"\r\n" + b"x" * 9999, close=True)
    async with raw_server(handler) as server, model_at(server.endpoint, max_body=5000) as model:
        with pytest.raises(OutputTooLarge, match="5000 bytes") as caught:
            await model.chat(request())
        assert caught.value.klass == "Terminal"


# ------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    "handler",
    [
        resets,
        sends(close=True),
        sends(WHOLE[:40], close=True),
        sends(WHOLE[:-5], close=True),
        sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\n50\r\nabc", close=True),
        sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        sends(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"),
        sends(b"\x16\x03\x01\x02\x00\x01\r\n\r\n"),
        sends(HEAD + b"X: " + b"y" * 200_000),
        sends(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd"),
        sends(HEAD + b"Content-Length: 9\r\n\r\n<garbage>"),
    ],
    ids=[
        "reset",
        "closed without an answer",
        "head cut off",
        "body cut off",
        "chunk cut off",
        "bad chunk",
        "another protocol",
        "bytes",
        "endless head",
        "broken gzip",
        "garbage for json",
    ],
)
async def test_a_server_that_misbehaves_is_transient_and_no_fault_of_ours(
    handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw_server(handler) as server, model_at(server.endpoint) as model:
        for _ in range(2):
            with pytest.raises(ModelUnavailable, match=r"^LLM fast at http://127\.0\.0\.1:"):
                await model.chat(request())
    assert not caplog.records


@pytest.mark.parametrize("sent", [b"", WHOLE[:20], WHOLE[:-1]], ids=["nothing", "part of the head", "part of the body"])
async def test_a_server_that_falls_silent_is_given_up_at_the_deadline(sent: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await hangs(reader, writer)

    async with raw_server(handler) as server, model_at(server.endpoint) as model:
        with pytest.raises(ModelTimeout):
            await model.chat(request(seconds=0.1))
        await until(lambda: server.open == 0)


async def test_an_early_refusal_of_a_long_request_is_read() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 8\r\nConnection: close\r\n\r\ntoo long")
        await writer.drain()
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(refuse, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    async with model_at(endpoint) as model:
        long = ChatRequest((Message("user", "x" * 8_000_000),), None, {}, 20.0, "k")
        with pytest.raises(ModelRefused, match=r"answered 413.*too long.*shorten the prompt"):
            await model.chat(long)
    listening.close()


# ------------------------------------------------------------------ TLS and proxies


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


async def test_a_trusted_certificate_is_accepted_and_another_one_is_terminal(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with raw_server(sends(WHOLE), tls=context) as server:
        async with model_at(server.endpoint) as model:
            with pytest.raises(ModelRefused, match=r"certificate is not trusted.*SSL_CERT_FILE"):
                await model.chat(request())
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        async with model_at(server.endpoint) as model:
            for _ in range(2):
                assert (await model.chat(request())).text == "fine"
        assert server.requests == 2


def test_the_environment_s_proxy_is_used_except_where_it_says_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example")
    assert isinstance(open_transport(httpx.URL("https://api.example.com/v1")), httpx.AsyncHTTPTransport)
    for url in ("https://inside.example/v1", "http://api.example.com/v1", "https://127.0.0.1:8000/v1"):
        assert isinstance(open_transport(httpx.URL(url)), EndpointTransport)


async def test_a_call_through_a_proxy_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    async with raw_server(sends(WHOLE)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.endpoint.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        model = OpenAIModel("fast", {"endpoint": "http://far.example/v1", "model": "m"})
        assert (await model.chat(request())).text == "fine"
        await model.aclose()
        assert proxy.requests == 1

"""A model server for tests and benches: OpenAI's protocol, deterministic answers, delays and failures on demand.

    python hack/model_server.py --delay 0.2 --error-rate 429=0.05 --log calls.jsonl

prints `{"url": …, "endpoint": …, "pid": …}` when it listens; `endpoint` is what an `LLM` names. In a test:

    with start_model_server(delay=0.2) as server: ...

It answers POST /v1/chat/completions, GET /v1/models, GET /log (calls by key and by status) and GET /healthz. The same
request gets the same answer; which calls fail depends on their idempotency key, the seed and how often the key came.
One process serves 2,000 calls at a time, so it speaks HTTP/1.1 itself: with a general server the requests of a burst
cost 0.6 ms each, and a benchmark would measure that.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from model_answers import Answers, pick

STATUS_TEXT = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}


@dataclass(frozen=True, slots=True)
class Options:
    """`error_rates` maps an HTTP status to the part of all keys (0 to 1) whose first `error_calls` calls get it.

    `script` has pairs of a regular expression, searched in the last message of the user, and the reply: a text, or a
    value that is sent as JSON. `token` is the bearer that is asked for, if any. Times are seconds.
    """

    delay: float = 0.0
    error_rates: Mapping[int, float] = field(default_factory=dict)
    error_calls: int = 1
    retry_after: float | None = None
    seed: int = 0
    script: tuple[tuple[str, Any], ...] = ()
    token: str | None = None
    log: Path | None = None


class Faults:
    """Which calls fail, and with what: decided by the key and by how often it came, never by time or order."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.calls: Counter[str] = Counter()

    def status(self, key: str) -> int:
        self.calls[key] += 1
        if self.calls[key] > self._options.error_calls or not self._options.error_rates:
            return 200
        place = pick(f"{self._options.seed}/{key}", 1 << 53) / (1 << 53)
        for status, rate in sorted(self._options.error_rates.items()):
            if place < rate:
                return status
            place -= rate
        return 200


# ---------------------------------------------------------------------------- the server


class Server:
    """The state that all connections share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.answers = Answers(options.script)
        self.faults = Faults(options)
        self.statuses: Counter[int] = Counter()
        self.in_flight = 0
        self.peak = 0
        self._log = None
        if options.log is not None:
            self._log = os.open(options.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def answer(self, method: str, path: str, headers: Mapping[bytes, bytes], body: bytes) -> tuple[bytes, float]:
        """The whole response and the seconds after which it is due."""
        if path == "/v1/chat/completions" and method == "POST":
            return self._completion(headers, body)
        if path == "/v1/models":
            return _response(200, {"object": "list", "data": [{"id": "test", "object": "model"}]}), 0.0
        if path == "/log":
            return _response(200, self._counts()), 0.0
        if path == "/healthz":
            return _response(200, {"ok": True}), 0.0
        return _response(404, _error(404, f"{method} {path} is not served here")), 0.0

    def _completion(self, headers: Mapping[bytes, bytes], raw: bytes) -> tuple[bytes, float]:
        try:
            body = orjson.loads(raw)
            digest = hashlib.sha256(orjson.dumps(body["messages"], option=orjson.OPT_SORT_KEYS)).hexdigest()
            text, calls = self.answers.message(body)
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            return _response(400, _error(400, f"no chat completion request: {error!r}")), 0.0
        key = headers.get(b"idempotency-key", b"").decode("latin-1")
        token = self.options.token
        if token is not None and headers.get(b"authorization") != f"Bearer {token}".encode():
            status = 401
        else:
            status = self.faults.status(key or digest)
        self._note(key, body.get("model"), status, digest)
        if status != 200:
            return self._failure(status), self.options.delay if status != 401 else 0.0
        return _response(200, _completion(body, text, calls, digest)), self.options.delay

    def _failure(self, status: int) -> bytes:
        wait = self.options.retry_after
        extra = f"retry-after: {wait:g}\r\n" if wait is not None and status in (429, 503) else ""
        return _response(status, _error(status, "this failure was asked for"), extra)

    def _note(self, key: str, model: Any, status: int, digest: str) -> None:
        """Written when the call arrives: a call that nobody waits for any more was made all the same."""
        self.statuses[status] += 1
        if self._log is not None:
            line = {
                "time": time.time(),
                "idempotency_key": key or None,
                "model": model,
                "status": status,
                "prompt_sha256": digest,
            }
            os.write(self._log, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def _counts(self) -> dict[str, Any]:
        return {
            "calls": sum(self.statuses.values()),
            "keys": dict(self.faults.calls),
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "inFlight": self.in_flight,
            "peak": self.peak,
        }


def _completion(body: Mapping[str, Any], text: str, calls: list[dict[str, Any]], digest: str) -> dict[str, Any]:
    asked = sum(len(m.get("content") or "") for m in body["messages"]) // 4
    answered = len(text) // 4
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        # Every call has the same id, as with some servers: callers must not rely on it.
        message["tool_calls"] = [
            {"id": "call_0", "type": "function", "function": call | {"arguments": json.dumps(call["arguments"])}}
            for call in calls
        ]
    return {
        "id": f"chatcmpl-{digest[:24]}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model"),
        "choices": [
            {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message},
        ],
        "usage": {
            "prompt_tokens": asked,
            "completion_tokens": answered,
            "total_tokens": asked + answered,
        },
    }


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "test_error", "code": status}}


def _response(status: int, body: Any, extra: str = "") -> bytes:
    raw = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
    head = (
        f"HTTP/1.1 {status} {STATUS_TEXT.get(status, 'Error')}\r\n"
        f"content-type: application/json\r\n{extra}content-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


class Connection(asyncio.Protocol):
    """One connection: requests with a `Content-Length`, one after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = b""
        self._due: asyncio.TimerHandle | None = None
        self._transport: Any = None
        self._close = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._due is not None:
            self._due.cancel()
            self._server.in_flight -= 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._due is None:
            self._next()

    def _next(self) -> None:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.split(b"\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        length = int(headers.get(b"content-length", 0))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, target, _ = first.decode("latin-1").split(" ", 2)
        self._close = headers.get(b"connection", b"").lower() == b"close"
        server = self._server
        response, delay = server.answer(method, target.partition("?")[0], headers, rest[:length])
        server.in_flight += 1
        server.peak = max(server.peak, server.in_flight)
        self._due = asyncio.get_running_loop().call_later(delay, self._send, response)

    def _send(self, response: bytes) -> None:
        self._due = None
        self._server.in_flight -= 1
        self._transport.write(response)
        if self._close:
            self._transport.close()
        elif self._buffer:
            self._next()


async def serve(options: Options, *, port: int, until_stdin_closes: bool) -> None:
    """Serve on 127.0.0.1 until SIGTERM or SIGINT, or until standard input ends."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        loop.add_reader(0, lambda: None if os.read(0, 1) else stop.set())
    state = Server(options)
    listening = await loop.create_server(lambda: Connection(state), "127.0.0.1", port, backlog=4096)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    print(json.dumps({"url": url, "endpoint": f"{url}/v1", "pid": os.getpid()}), flush=True)
    await stop.wait()
    listening.close()


# ---------------------------------------------------------------------------- use from a test


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A running server. `endpoint` is what an `LLM` names; `log` is its log of calls."""

    url: str
    endpoint: str
    pid: int
    log: Path

    def calls(self) -> list[dict[str, Any]]:
        """The calls so far, in order: time, idempotency_key, model, status, prompt_sha256."""
        return [orjson.loads(line) for line in self.log.read_bytes().splitlines()]

    def keys(self) -> Counter[str]:
        """How many calls came with each idempotency key."""
        return Counter(call["idempotency_key"] for call in self.calls())


@contextmanager
def start_model_server(
    *,
    port: int = 0,
    delay: float = 0.0,
    error_rates: Mapping[int, float] | None = None,
    error_calls: int = 1,
    retry_after: float | None = None,
    seed: int = 0,
    script: Mapping[str, Any] | None = None,
    token: str | None = None,
    log: Path | None = None,
) -> Iterator[ModelServer]:
    """A server in a process of its own for as long as the block runs; it also ends when this process dies."""
    with TemporaryDirectory(prefix="model-server-") as folder:
        log = log or Path(folder) / "calls.jsonl"
        log.touch()
        command = [sys.executable, __file__, "--until-stdin-closes", f"--port={port}", f"--log={log}"]
        command += [f"--delay={delay}", f"--seed={seed}", f"--error-calls={error_calls}"]
        command += [f"--error-rate={status}={rate}" for status, rate in (error_rates or {}).items()]
        if retry_after is not None:
            command.append(f"--retry-after={retry_after}")
        if token is not None:
            command.append(f"--token={token}")
        if script is not None:
            path = Path(folder) / "script.json"
            path.write_bytes(orjson.dumps(script))
            command.append(f"--script={path}")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the model server did not start; see its output above")
            ready = json.loads(line)
            yield ModelServer(url=ready["url"], endpoint=ready["endpoint"], pid=ready["pid"], log=log)
        finally:
            process.terminate()
            process.wait(10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A model server for tests: OpenAI's protocol, deterministic answers.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument(
        "--error-rate",
        action="append",
        default=[],
        metavar="[STATUS=]RATE",
        help="part of all keys (0 to 1) that get STATUS (503) at first; may be repeated",
    )
    parser.add_argument("--error-calls", type=int, default=1, help="how many calls of such a key fail")
    parser.add_argument("--retry-after", type=float, help="seconds, sent with 429 and 503")
    parser.add_argument("--seed", type=int, default=0, help="chooses the keys that fail")
    parser.add_argument("--script", type=Path, help="JSON file: regular expression on the last user message -> reply")
    parser.add_argument("--token", help="bearer token that is asked for")
    parser.add_argument("--log", type=Path, help="JSON lines, one for each call, appended")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end when standard input ends")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    given = _options(arguments)
    rates = {}
    for item in given.error_rate:
        status, _, rate = item.rpartition("=")
        rates[int(status or 503)] = float(rate)
    script = orjson.loads(given.script.read_bytes()) if given.script else {}
    options = Options(
        delay=given.delay,
        error_rates={status: rate for status, rate in rates.items() if rate > 0},
        error_calls=given.error_calls,
        retry_after=given.retry_after,
        seed=given.seed,
        script=tuple(script.items()),
        token=given.token,
        log=given.log,
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(serve(options, port=given.port, until_stdin_closes=given.until_stdin_closes))


if __name__ == "__main__":
    main(sys.argv[1:])

"""A proxy before an HTTP server that does what networks do: drops answers, resets, delays, and bursts of 503.

Requests pass unchanged, so that signatures hold; only `Expect: 100-continue` is answered here, and left out.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field

_SAID = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>reduce your rate</Message></Error>"
_BUSY = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    % (len(_SAID), _SAID)
)
FAULTS = ("drop answer", "reset", "cut body", "late", "slow")


@dataclass
class FaultProxy:
    """Forwards to `port` on loopback. Of the requests the part `rate` meets a fault, and bursts of 503 come now and
    then. `met` counts them.
    """

    port: int
    rng: random.Random
    rate: float = 0.08
    burst_every: float = 4.0
    met: Counter[str] = field(default_factory=Counter)
    _server: asyncio.Server | None = None
    _busy_until: float = 0.0
    _next_burst: float = 0.0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begin(self._serve(reader, writer))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _request(reader, writer)) is not None:
                if not await self._pass(request, writer):
                    return
        except (OSError, asyncio.IncompleteReadError, ValueError):
            return
        finally:
            writer.close()

    async def _pass(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        fault = self._draw()
        if fault is not None:
            self.met[fault] += 1
        if fault == "busy":
            writer.write(_BUSY)
            await writer.drain()
            return False
        if fault == "reset":
            return False
        if fault == "cut body":
            await self._forward(request[: len(request) // 2], whole=False)
            return False
        if fault == "late":
            self._begin(self._later(request))
            return False
        if fault == "slow":
            await asyncio.sleep(self.rng.uniform(0.2, 3.0))
        answer = await self._forward(request)
        if fault == "drop answer":
            return False
        writer.write(answer)
        await writer.drain()
        return True

    def _draw(self) -> str | None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_burst:
            self._busy_until = now + self.rng.uniform(0.0, 0.8)
            self._next_burst = now + self.rng.uniform(0.5, 2.0) * self.burst_every
        if now < self._busy_until and self.rng.random() < 0.8:
            return "busy"
        return self.rng.choice(FAULTS) if self.rng.random() < self.rate else None

    async def _later(self, request: bytes) -> None:
        await asyncio.sleep(self.rng.uniform(0.5, 6.0))
        try:
            await self._forward(request)
        except (OSError, asyncio.IncompleteReadError):
            return

    async def _forward(self, request: bytes, *, whole: bool = True) -> bytes:
        """The server's answer, over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            await writer.drain()
            return await _answer(reader, request) if whole else b""
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head.split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"expect:")]
    if len(kept) < len(lines):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    return b"\r\n".join(kept) + await reader.readexactly(_length(lines))


async def _answer(reader: asyncio.StreamReader, request: bytes) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    status = int(head.split(b" ", 2)[1])
    if request.startswith(b"HEAD ") or status in (204, 304):
        return head
    if b"transfer-encoding: chunked" in lines:
        body = b""
        while True:
            line = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(line.split(b";")[0], 16) + 2)
            body += line + chunk
            if line.strip() == b"0":
                return head + body
    return head + await reader.readexactly(_length(lines))


def _length(lines: list[bytes]) -> int:
    found = [line for line in lines if line.lower().startswith(b"content-length:")]
    return int(found[0].split(b":", 1)[1]) if found else 0

"""A TCP proxy that can be cut: what is behind it is then away, without any process being stopped."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """Forwards connections to `port` of the loopback while it is not `cut`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def cut(self) -> None:
        """Drop every connection and refuse new ones."""
        self._cut = True
        for writer in tuple(self._writers):
            writer.transport.abort()

    def mend(self) -> None:
        self._cut = False

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, there_writer}
        try:
            await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
        finally:
            for end in (writer, there_writer):
                self._writers.discard(end)
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextlib.asynccontextmanager
async def proxying(port: int) -> AsyncIterator[Proxy]:
    """A proxy to `port` on a free port."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.cut()
        server.close()

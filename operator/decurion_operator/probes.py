"""`/livez`, `/readyz` and `/metrics`, served by the operator's own loop: an answer shows that the loop turns."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from decurion_operator.errors import StartError
from decurion_operator.metrics import Meter

LAG_SECONDS = 1.0


class _Server(uvicorn.Server):
    """Signals are the operator's, not the server's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Probes:
    """The server. `ready` says why the operator is not ready, or is empty; `refresh` brings the metrics up to date."""

    def __init__(
        self, meter: Meter, *, host: str, port: int, ready: Callable[[], str], refresh: Callable[[], None]
    ) -> None:
        self._meter = meter
        self._ready = ready
        self._refresh = refresh
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise StartError(
                f"Port {port} of {host} cannot be served ({error.strerror}): choose another one."
            ) from error
        routes = [Route("/livez", self._livez), Route("/readyz", self._readyz), Route("/metrics", self._metrics)]
        config = uvicorn.Config(
            Starlette(routes=routes), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        self._server = _Server(config)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    async def run(self) -> None:
        """Serve until `stop`."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True

    def close(self) -> None:
        """Give the port back without having served."""
        self._socket.close()

    async def _livez(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _readyz(self, request: Request) -> Response:
        problem = self._ready()
        return PlainTextResponse(problem or "ok", status_code=503 if problem else 200)

    async def _metrics(self, request: Request) -> Response:
        self._refresh()
        return Response(self._meter.text(), media_type=CONTENT_TYPE_LATEST)


async def measure_lag(meter: Meter) -> None:
    """Keep the gauge of the loop's lag, for ever."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_SECONDS
        await asyncio.sleep(LAG_SECONDS)
        meter.lag.set(loop.time() - due)

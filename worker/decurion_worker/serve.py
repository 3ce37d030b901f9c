"""The ingress: the driver's HTTP face for the operator. Short calls only; a run never depends on a connection.

Every call but `/healthz` needs the bearer token. Errors are `{"error": <code>, "message": <sentence>, …}`; the codes
are in `_STATUS`. Plain Starlette routes over a `Drivers` port, so that the same routes serve drivers in this process
and drivers in Ray actors.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from decurion_crds.canonical import Json
from decurion_crds.errors import DecurionError, InputError
from decurion_ledger.errors import (
    KeyErased,
    KeyMissing,
    RunDeleted,
    RunNotFound,
    StaleLeader,
    StoreError,
    StoreRefused,
    StoreUnknown,
    WrongSealKey,
)
from decurion_worker.errors import (
    BadInput,
    BundleInvalid,
    BundleMissing,
    CannotListen,
    DriverUnavailable,
    DriverUnknown,
    NotCertified,
    RunLetGo,
    RunOnTrial,
    RunUnknown,
    SourceMissing,
    SourceRefused,
)

log = logging.getLogger(__name__)

MAX_BODY = 4 * 1024 * 1024
"""The largest body that is read, in bytes: a compiled graph, or an inline input."""
MAX_WAIT = 25.0
"""The longest a long poll is held, in seconds."""

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (BadInput, 400),
    (BundleInvalid, 400),
    (BundleMissing, 404),
    (RunUnknown, 404),
    (RunNotFound, 404),
    (RunDeleted, 404),
    (DriverUnknown, 404),
    (StaleLeader, 409),
    (NotCertified, 409),
    (KeyErased, 422),
    (KeyMissing, 422),
    (WrongSealKey, 422),
    (SourceMissing, 422),
    (SourceRefused, 422),
    (StoreError, 503),
    (StoreUnknown, 503),
    (DriverUnavailable, 503),
    (RunOnTrial, 503),
    (RunLetGo, 503),
    (InputError, 400),
)


class Drivers(Protocol):
    """The drivers behind an ingress. Bodies are those of the ingress's calls."""

    async def put_bundle(self, digest: str, body: Json) -> None: ...

    async def open(self, body: Mapping[str, Json]) -> dict[str, Json]:
        """`{uid, epoch, driver, phase}`, and `projection` for a run that has ended."""

    async def secrets(self, run: str, values: Mapping[str, str]) -> None: ...

    async def control(self, run: str, body: Mapping[str, Json]) -> None: ...

    async def answer(self, run: str, body: Mapping[str, Json]) -> dict[str, Json]:
        """`{accepted, message}` once the answer of a person is durable, or refused."""

    async def live(self, driver: str, body: Mapping[str, Json]) -> None: ...

    async def list(self) -> list[dict[str, Json]]: ...

    async def changes(self, driver: str, *, since: int, incarnation: str, wait: float) -> dict[str, Json]: ...


def ingress(drivers: Drivers, *, token: str) -> Starlette:
    """The application. `token` is what callers must present; it is compared in constant time."""
    calls = _Calls(drivers)

    def guarded(call: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            presented = request.headers.get("authorization", "")
            if not hmac.compare_digest(presented.encode(), f"Bearer {token}".encode()):
                return _error(401, "Unauthorized", "present the pool's bearer token in the Authorization header")
            try:
                return await call(request)
            except DecurionError as error:
                return _failed(error)

        return handle

    return Starlette(
        routes=[
            Route("/healthz", calls.healthz, methods=["GET"]),
            Route("/bundles/{digest}", guarded(calls.put_bundle), methods=["PUT"]),
            Route("/runs", guarded(calls.open), methods=["POST"]),
            Route("/runs/{run}/secrets", guarded(calls.secrets), methods=["PUT"]),
            Route("/runs/{run}/control", guarded(calls.control), methods=["POST"]),
            Route("/runs/{run}/approvals", guarded(calls.answer), methods=["POST"]),
            Route("/drivers", guarded(calls.list), methods=["GET"]),
            Route("/drivers/{driver}/live", guarded(calls.live), methods=["PUT"]),
            Route("/drivers/{driver}/changes", guarded(calls.changes), methods=["GET"]),
        ]
    )


class _Calls:
    def __init__(self, drivers: Drivers) -> None:
        self._drivers = drivers

    async def healthz(self, request: Request) -> Response:
        return _json({"ok": True})

    async def put_bundle(self, request: Request) -> Response:
        await self._drivers.put_bundle(request.path_params["digest"], await _body(request))
        return Response(status_code=204)

    async def open(self, request: Request) -> Response:
        return _json(await self._drivers.open(await _object(request)))

    async def secrets(self, request: Request) -> Response:
        body = await _object(request)
        if not all(isinstance(v, str) and "/" in k for k, v in body.items()):
            raise BadInput(["secrets are strings under <name>/<key>; send them so"])
        await self._drivers.secrets(request.path_params["run"], body)
        return Response(status_code=204)

    async def control(self, request: Request) -> Response:
        await self._drivers.control(request.path_params["run"], await _object(request))
        return Response(status_code=202)

    async def answer(self, request: Request) -> Response:
        return _json(await self._drivers.answer(request.path_params["run"], await _object(request)))

    async def list(self, request: Request) -> Response:
        return _json({"drivers": await self._drivers.list()})

    async def live(self, request: Request) -> Response:
        await self._drivers.live(request.path_params["driver"], await _object(request))
        return Response(status_code=204)

    async def changes(self, request: Request) -> Response:
        query = request.query_params
        try:
            since, wait = int(query.get("since", "0")), min(float(query.get("wait", "0")), MAX_WAIT)
        except ValueError:
            raise BadInput(["since is an integer and wait a number of seconds"]) from None
        answer = self._drivers.changes(
            request.path_params["driver"], since=since, incarnation=query.get("incarnation", ""), wait=wait
        )
        return _json(await answer)


async def _body(request: Request) -> Json:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            raise BadInput(
                [f"the body exceeds {MAX_BODY} bytes; put large input into the store and name it by inputFrom"]
            )
        chunks.append(chunk)
    try:
        return orjson.loads(b"".join(chunks))
    except orjson.JSONDecodeError as error:
        raise BadInput([f"the body is no JSON: {error}"]) from error


async def _object(request: Request) -> dict[str, Json]:
    body = await _body(request)
    if not isinstance(body, dict):
        raise BadInput(["the body must be a JSON object"])
    return body


def _json(value: Json, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


def _error(status: int, code: str, message: str, **more: Json) -> Response:
    return _json({"error": code, "message": message, **more}, status)


def _failed(error: DecurionError) -> Response:
    status = next((s for kind, s in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        log.error("an ingress call failed", exc_info=error)
    more: dict[str, Json] = {}
    if isinstance(error, StaleLeader):
        more["highest"] = error.highest
    if isinstance(error, NotCertified):
        more["key"] = error.key
    if isinstance(error, BadInput):
        more["findings"] = list(error.findings)
    away = isinstance(error, (StoreError, StoreUnknown)) and not isinstance(error, StoreRefused)
    code = "StoreUnavailable" if away else type(error).__name__
    return _error(status, code, str(error), **more)


class _Server(uvicorn.Server):
    """Uvicorn without handlers of its own: signals belong to whoever made the loop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: Starlette,
    *,
    host: str,
    port: int,
    ready: Callable[[str], None],
    stop: asyncio.Event,
    release: Callable[[], None] = lambda: None,
) -> None:
    """Serve until `stop` is set. `ready` is told the URL once the socket listens (port 0 takes a free one).

    `release` is called at the end: it ends the long polls of whoever waits.
    """
    try:
        listening = socket.create_server((host, port), backlog=1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotListen(f"{host} port {port}", reason, advice="choose another --host or --port") from error
    url = f"http://{host}:{listening.getsockname()[1]}"
    await serve_on(app, listening, ready=lambda: ready(url), stop=stop, release=release)


def listen_unix(path: str) -> socket.socket:
    """A socket at `path`, whose folder must be private to its user. What an earlier process left there is replaced.

    Raises `CannotListen`.
    """
    listening = socket.socket(socket.AF_UNIX)
    try:
        Path(path).unlink(missing_ok=True)
        listening.bind(path)
    except OSError as error:
        listening.close()
        raise CannotListen(path, str(error), advice="let TMPDIR name a folder with a short path") from error
    listening.listen(1024)
    return listening


async def serve_on(
    app: Starlette,
    listening: socket.socket,
    *,
    ready: Callable[[], None],
    stop: asyncio.Event,
    release: Callable[[], None] = lambda: None,
) -> None:
    """Serve on a socket that listens, until `stop` is set; what `release` does not end is cut after 2 s then."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2)
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stopping = asyncio.create_task(stop.wait())
    ready()
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    release()
    server.should_exit = True
    stopping.cancel()
    await serving

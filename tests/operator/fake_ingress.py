"""A pool without workers: the ingress protocol over memory, with runs that do what the test says.

It keeps what a real pool keeps apart: what is durable (bundles, which closure a run started with, how it ended, leader
epochs) survives `restart`; what a driver holds in memory (its runs, secrets, incarnation) does not. `test_real_pool.py`
holds it against the real ingress.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from decurion_crds.compiled import CompiledGraph
from decurion_crds.secrets import secret_entries

TERMINAL = ("Succeeded", "Failed", "Cancelled")


@dataclass
class FakeRun:
    """One run. `projection` is what the driver says of it; `driver` is None while no driver has it."""

    uid: str
    name: str
    digest: str
    input: Any
    input_from: Any
    cluster: str
    scheduled_at: str
    certificates: list[dict[str, Any]]
    driver: str | None
    projection: dict[str, Any]
    epochs: list[int] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    cancelled: bool = False
    suspended: bool = False
    version: int = 0

    @property
    def ended(self) -> bool:
        return self.projection["phase"] in TERMINAL


class FakePool:
    """The pool. Change how it behaves by its attributes, what its runs do by its methods; read `calls` afterwards."""

    def __init__(self, *, token: str | None = None, drivers: int = 1) -> None:
        self.token = token
        self.drivers = [f"driver-{k}" for k in range(drivers)]
        self.incarnations = dict.fromkeys(self.drivers, 1)
        self.bundles: dict[str, Any] = {}
        self.runs: dict[str, FakeRun] = {}
        self.calls: list[tuple[str, str]] = []
        self.live: dict[str, list[list[str]]] = {}
        self.highest_epoch = 0
        """What the logs of new runs have seen already."""
        self.store_down = False
        self.refuse_open: tuple[int, dict[str, Any]] | None = None
        self.tells_secrets = True
        self.keys: dict[str, str] = {}
        """Public keys of drivers; where there are any, an open needs a certificate of one."""
        self.shown_keys: dict[str, str] = {}
        """Those of them that a driver tells when it is asked who it is."""
        self.instant = False
        """Set, every run succeeds as soon as it is opened."""
        self.most_open = 0
        self.running = asyncio.Event()
        """Cleared, every call hangs."""
        self.running.set()
        self.telling = asyncio.Event()
        """Cleared, no answer to who asks for changes leaves."""
        self.telling.set()
        self._changed = asyncio.Condition()
        self._version = 0
        self._closing = False
        self._ending: set[asyncio.Task[None]] = set()
        self.url = ""

    # --- what the test does with it

    def by_name(self, name: str) -> FakeRun | None:
        return next((run for run in self.runs.values() if run.name == name), None)

    async def project(self, name: str, **fields: Any) -> None:
        """Change what the driver says of a run."""
        run = self.by_name(name)
        if run is None:
            raise LookupError(name)
        run.projection |= fields
        await self._touch(run)

    async def finish(self, name: str, phase: str = "Succeeded", **fields: Any) -> None:
        ended = {"phase": phase, "reason": "", "finishedAt": "2026-12-01T10:00:05Z", "stateHash": "ab" * 32}
        await self.project(name, **ended | fields)

    async def restart(self) -> None:
        """Every driver loses its memory, as after kill -9: the logs stay, nobody has the open runs."""
        for driver in self.drivers:
            self.incarnations[driver] += 1
        for run in self.runs.values():
            run.driver, run.secrets = None, {}
        async with self._changed:
            self._version = 0
            self._changed.notify_all()

    async def close(self) -> None:
        """Let every call that hangs or waits go."""
        self._closing = True
        self.running.set()
        self.telling.set()
        async with self._changed:
            self._changed.notify_all()

    def count(self, verb: str) -> int:
        return sum(call == verb for call, _ in self.calls)

    # --- the protocol

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/bundles/{digest}", self._put_bundle, methods=["PUT"]),
                Route("/runs", self._open, methods=["POST"]),
                Route("/runs/{uid}/secrets", self._put_secrets, methods=["PUT"]),
                Route("/runs/{uid}/control", self._control, methods=["POST"]),
                Route("/drivers/{driver}/live", self._put_live, methods=["PUT"]),
                Route("/drivers/{driver}/changes", self._changes, methods=["GET"]),
                Route("/drivers", self._drivers, methods=["GET"]),
            ]
        )

    async def _enter(self, request: Request, verb: str, about: str = "") -> Response | None:
        self.calls.append((verb, about))
        await self.running.wait()
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return _error(401, "Unauthorized", "The token is not that of the pool.")
        return None

    async def _put_bundle(self, request: Request) -> Response:
        digest = request.path_params["digest"]
        if refused := await self._enter(request, "bundle", digest):
            return refused
        if self.store_down:
            return _error(503, "StoreUnavailable", "The store does not answer.")
        body = await request.json()
        if CompiledGraph.model_validate(body).digest != digest:
            return _error(400, "DigestMismatch", "The bundle has another digest.")
        self.bundles[digest] = body
        return Response(status_code=204)

    async def _open(self, request: Request) -> Response:
        body = await request.json()
        if refused := await self._enter(request, "open", body["uid"]):
            return refused
        if self.store_down:
            return _error(503, "StoreUnavailable", "The store does not answer.")
        if self.refuse_open is not None:
            return JSONResponse(self.refuse_open[1], status_code=self.refuse_open[0])
        run = self.runs.get(body["uid"])
        # Only who would become the writer of a log is measured against it: an attachment and a look at the end are not.
        highest = max(run.epochs, default=0) if run is not None else self.highest_epoch
        if (run is None or (run.driver is None and not run.ended)) and body["leaderEpoch"] < highest:
            return _error(409, "StaleLeader", "The log has seen a newer leader.", highest=highest)
        if self.keys and not {c["key"] for c in body.get("certificates", ())} & set(self.keys.values()):
            return _error(409, "NotCertified", "No certificate is for the key.", key=next(iter(self.keys.values())))
        if run is None and body["digest"] not in self.bundles:
            return _error(404, "BundleMissing", f"No bundle {body['digest']}.")
        if run is None:
            run = self.runs[body["uid"]] = FakeRun(
                uid=body["uid"],
                name=body["name"],
                digest=body["digest"],
                input=body.get("input"),
                input_from=body.get("inputFrom"),
                cluster=body["cluster"],
                scheduled_at=body["scheduledAt"],
                certificates=body.get("certificates", []),
                driver=None,
                projection={
                    "phase": "Running",
                    "reason": "",
                    "message": "",
                    "attempt": 0,
                    "graphDigest": body["digest"],
                    "startedAt": "2026-12-01T10:00:00Z",
                    "progress": "0/1",
                    "usage": {"calls": 0},
                    "nodes": [],
                    "failures": [],
                    "ledger": {"uri": "memory://fake", "slot": 0, "head": "00"},
                },
            )
        run.epochs.append(body["leaderEpoch"])
        answer: dict[str, Any] = {"uid": run.uid, "epoch": len(run.epochs), "phase": run.projection["phase"]}
        if run.ended:
            return JSONResponse(answer | {"driver": "", "projection": run.projection})
        if run.driver is None:
            run.driver = self.drivers[len(self.runs) % len(self.drivers)]
            run.projection["attempt"] += 1
            self.most_open = max(self.most_open, sum(r.driver is not None and not r.ended for r in self.runs.values()))
            await self._touch(run)
            if self.instant:
                asyncio.get_running_loop().call_later(0.05, self._end_later, run.name)
        if self.tells_secrets:
            answer["secrets"] = _secrets_of(self.bundles[run.digest])
        return JSONResponse(answer | {"driver": run.driver})

    async def _put_secrets(self, request: Request) -> Response:
        uid = request.path_params["uid"]
        if refused := await self._enter(request, "secrets", uid):
            return refused
        run = self.runs.get(uid)
        if run is None or run.driver is None:
            return _error(404, "RunUnknown", "No driver has that run.")
        run.secrets = await request.json()
        return Response(status_code=204)

    async def _control(self, request: Request) -> Response:
        uid = request.path_params["uid"]
        if refused := await self._enter(request, "control", uid):
            return refused
        run = self.runs.get(uid)
        if run is None or run.driver is None or run.ended:
            return _error(404, "RunUnknown", "No driver has that run.")
        wanted = (await request.json()).get("suspend")
        if wanted is not None:
            run.suspended = wanted
            phase = "Suspended" if wanted else "Running"
            await self.project(run.name, phase=phase, reason="Suspended" if wanted else "")
            return Response(status_code=202)
        run.cancelled = True
        await self.finish(run.name, "Cancelled", reason="Cancelled")
        return Response(status_code=202)

    async def _put_live(self, request: Request) -> Response:
        driver = request.path_params["driver"]
        if refused := await self._enter(request, "live", driver):
            return refused
        body = await request.json()
        lists = self.live.setdefault(driver, [])
        lists.append(body["uids"])
        for run in list(self.runs.values()):
            missing = all(run.uid not in uids for uids in lists[-2:])
            if len(lists) > 1 and missing and run.driver == driver and run.cluster == body["cluster"] and not run.ended:
                await self.finish(run.name, "Cancelled", reason="Orphaned")
        return Response(status_code=204)

    async def _drivers(self, request: Request) -> Response:
        if refused := await self._enter(request, "drivers"):
            return refused
        rows = [
            {
                "id": driver,
                "incarnation": f"{driver}.{self.incarnations[driver]}",
                "runs": [r.uid for r in self.runs.values() if r.driver == driver and not r.ended],
                "key": self.shown_keys.get(driver, ""),
                "cursor": max((r.version for r in self.runs.values() if r.driver == driver), default=0),
            }
            for driver in self.drivers
        ]
        return JSONResponse({"drivers": rows})

    async def _changes(self, request: Request) -> Response:
        driver = request.path_params["driver"]
        if refused := await self._enter(request, "changes", driver):
            return refused
        if driver not in self.drivers:
            return _error(404, "DriverUnknown", "There is no such driver.")
        asked = request.query_params
        since, wait = int(asked["since"]), min(float(asked["wait"]), 2.0)
        incarnation = f"{driver}.{self.incarnations[driver]}"
        if asked.get("incarnation") != incarnation:
            since = 0

        def news() -> dict[str, Any]:
            mine = [r for r in self.runs.values() if r.driver == driver and r.version > since]
            return {r.uid: r.projection for r in mine}

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait), self._changed:
                await self._changed.wait_for(
                    lambda: bool(news()) or self._closing or f"{driver}.{self.incarnations[driver]}" != incarnation
                )
        await self.running.wait()
        await self.telling.wait()
        return JSONResponse({"incarnation": incarnation, "cursor": self._version, "runs": news()})

    def _end_later(self, name: str) -> None:
        task = asyncio.ensure_future(self.finish(name))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _touch(self, run: FakeRun) -> None:
        async with self._changed:
            self._version += 1
            run.version = self._version
            self._changed.notify_all()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve(pool: FakePool) -> AsyncIterator[FakePool]:
    """Serve `pool` on a free port of the loopback; its `url` is set."""
    listener = socket.create_server(("127.0.0.1", 0))
    pool.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        pool.app(), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield pool
    finally:
        await pool.close()
        server.should_exit = True
        await task
        listener.close()


def _secrets_of(bundle: dict[str, Any]) -> list[str]:
    specs = [*bundle.get("llms", {}).values(), *bundle.get("servers", {}).values()]
    return sorted({f"{name}/{key}" for spec in specs for name, key in secret_entries(spec)})


def _error(status: int, code: str, message: str, **more: Any) -> Response:
    return JSONResponse({"error": code, "message": message} | more, status_code=status)

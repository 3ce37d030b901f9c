"""Drivers as detached Ray actors behind an ingress: made by name, pinged, and replaced when they hang.

The name holds a digest of the code, so that an ingress never talks to a driver of another release: a new release makes
drivers of its own, and the runs of the old ones are opened again there.

A driver has one event loop for all its state. `ping` alone runs in a concurrency group of its own, which in Ray is a
thread of its own, and answers with the age of the main loop's last turn: a process that answers while its loop stands
still is as hung as one that does not answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from decurion_crds.canonical import Json
from decurion_crds.errors import DecurionError
from decurion_ledger import open_store
from decurion_worker.driver import Driver, DriverSettings
from decurion_worker.drivers import DriverCalls
from decurion_worker.errors import DriverUnavailable, DriverUnknown
from decurion_worker.executors.ray import NAMESPACE, RayExecutor, RayRunnerSettings
from decurion_worker.link import FromRunner
from decurion_worker.pool import Pool, PoolSettings
from decurion_worker.sources import Sources
from decurion_worker.supervised import supervised

log = logging.getLogger(__name__)

PACKAGES = ("decurion_crds", "decurion_ledger", "decurion_worker")


def code_digest() -> str:
    """Eight hex digits that change with the code: of `DECURION_IMAGE_DIGEST`, else of version and installed files."""
    given = os.environ.get("DECURION_IMAGE_DIGEST")
    if given:
        return hashlib.sha256(given.encode()).hexdigest()[:8]
    found = hashlib.sha256(importlib.metadata.version("decurion").encode())
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        folder = Path((spec.origin if spec else None) or ".").parent
        for file in sorted(folder.rglob("*.py")):
            found.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:8]


@contextmanager
def ray_session(address: str) -> Iterator[None]:
    """A connection to the Ray at `address`, or a Ray of its own on this machine where it is empty."""
    where: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **where)
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """All that a driver actor needs to start, and to start again after a crash."""

    name: str
    ledger: str
    driver: DriverSettings
    pool: PoolSettings
    runners: RayRunnerSettings


class _DriverActor:
    """One driver in a process of its own."""

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self._turn = time.monotonic()
        self._pool: Pool | None = None
        self._calls: DriverCalls | None = None
        self._starting = asyncio.Lock()
        self._turning: asyncio.Task[None] | None = None

    async def _ready(self) -> DriverCalls:
        async with self._starting:
            if self._calls is None:
                config = self._config
                driver = Driver(
                    config.name,
                    store=open_store(config.ledger),
                    ledger_uri=config.ledger,
                    sources=Sources(open_store, files=False, ledger=config.ledger),
                    settings=config.driver,
                )
                me = ray.get_runtime_context().current_actor
                self._pool = Pool(driver, RayExecutor(me, config.runners), config.pool)
                self._turning = asyncio.create_task(self._turns())
                await self._pool.start()
                self._calls = DriverCalls(driver)
            return self._calls

    async def _turns(self) -> None:
        while True:
            self._turn = time.monotonic()
            await asyncio.sleep(0.5)

    async def call(self, method: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """One ingress call. Errors of the project travel as they are."""
        calls = await self._ready()
        return await getattr(calls, method)(*args, **options)

    async def submit(self, runner: str, incarnation: str, seq: int, messages: Sequence[FromRunner]) -> bool:
        if self._pool is None:
            return False
        return await self._pool.driver.submit(runner, incarnation, seq, messages)

    @ray.method(concurrency_group="health")
    async def ping(self) -> tuple[int, float]:
        """Process id, and seconds since the main loop last turned."""
        return os.getpid(), time.monotonic() - self._turn


_OPTIONS: dict[str, Any] = {
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 1000,
    "num_cpus": 0.01,
    "concurrency_groups": {"health": 1},
}
DriverActor: Any = ray.remote(**_OPTIONS)(_DriverActor)


@dataclass(frozen=True, slots=True)
class PingSettings:
    """`every` seconds a ping; one that takes longer than `timeout`, or tells of a loop older than `stall`, is missed.
    After `misses` in a row the driver is killed and Ray starts it again."""

    every: float = 5.0
    timeout: float = 5.0
    stall: float = 20.0
    misses: int = 3


class RayDrivers:
    """The port `decurion_worker.serve.Drivers` over one named driver actor."""

    def __init__(self, config: DriverConfig, ping: PingSettings | None = None) -> None:
        self._config = config
        self._ping = ping or PingSettings()
        self._actor: Any = None
        self._watching: asyncio.Task[None] | None = None
        self.replaced = 0
        self.pid = 0

    async def start(self) -> None:
        """Attach to the driver of this code's digest, making it where there is none, and begin to ping it."""
        self._actor = DriverActor.options(
            name=f"{self._config.name}@{code_digest()}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
        ).remote(self._config)
        await self._call("list")
        self._watching = supervised(self._watch, "pings")

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        missed = 0
        while True:
            await asyncio.sleep(self._ping.every)
            missed = 0 if await self._answers() else missed + 1
            if missed >= self._ping.misses:
                log.warning("driver %s does not answer; it is replaced", self._config.name)
                ray.kill(self._actor, no_restart=False)
                self.replaced += 1
                missed = 0

    async def _answers(self) -> bool:
        try:
            self.pid, age = await asyncio.wait_for(self._actor.ping.remote(), self._ping.timeout)
        except (TimeoutError, GetTimeoutError, RayActorError):
            return False
        return bool(age <= self._ping.stall)

    async def _call(self, method: str, *args: Any, **options: Any) -> Any:
        try:
            return await self._actor.call.remote(method, args, options)
        except RayActorError as error:
            raise DriverUnavailable(self._config.name) from error
        except RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, DecurionError):
                raise cause from None
            raise

    async def put_bundle(self, digest: str, body: Json) -> None:
        await self._call("put_bundle", digest, body)

    async def open(self, body: Mapping[str, Json]) -> dict[str, Json]:
        # An argument of its own: with a large input it would be part of an object, which may be written to a disk.
        rest = {name: value for name, value in body.items() if name != "sealKey"}
        return dict(await self._call("open", rest, sealKey=body.get("sealKey", "")))

    async def secrets(self, run: str, values: Mapping[str, str]) -> None:
        await self._call("secrets", run, dict(values))

    async def control(self, run: str, body: Mapping[str, Json]) -> None:
        await self._call("control", run, dict(body))

    async def answer(self, run: str, body: Mapping[str, Json]) -> dict[str, Json]:
        return dict(await self._call("answer", run, dict(body)))

    async def live(self, driver: str, body: Mapping[str, Json]) -> None:
        self._check(driver)
        await self._call("live", driver, dict(body))

    async def list(self) -> list[dict[str, Json]]:
        return list(await self._call("list"))

    async def changes(self, driver: str, *, since: int, incarnation: str, wait: float) -> dict[str, Json]:
        self._check(driver)
        return dict(await self._call("changes", driver, since=since, incarnation=incarnation, wait=wait))

    def _check(self, driver: str) -> None:
        if driver != self._config.name:
            raise DriverUnknown(driver)

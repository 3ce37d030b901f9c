"""The real parts under chaos and the blows that they take: a pool on Ray or in one process, a store, a model server."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cluster.s3 import S3Server
from decurion_ledger import Credentials, Store, open_store
from model_server import ModelServer, start_model_server
from pool import Ingress, Pool

LOCAL = ("pool-kill", "pool-stop", "store-kill", "store-stop")
ON_RAY = ("runner-kill", "runner-stop", "driver-kill", "driver-stop", "ingress-kill", "store-kill", "store-stop")


@dataclass
class Parts:
    """What runs. `strike` is one blow; `tend` mends what a platform would mend, and wakes what was stopped."""

    pool: Pool
    s3: S3Server
    model: ModelServer
    stop_seconds: float
    kinds: tuple[str, ...]
    store_sleeps: bool = False
    _asleep: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _client: Ingress | None = None

    @property
    def client(self) -> Ingress:
        if self._client is None:
            self._client = self.pool.client()
        return self._client

    def store(self) -> Store:
        access = Credentials(self.s3.access_key, self.s3.secret_key)
        return open_store(
            self.pool.ledger, endpoint_url=self.s3.endpoint_url, region=self.s3.region, credentials=access
        )

    def strike(self, kind: str) -> bool:
        """Whether the blow fell: there may be no runner now, or the store sleeps already."""
        part, _, how = kind.partition("-")
        match part:
            case "store":
                return self._strike_store(how)
            case "ingress" | "pool":
                return self._strike_pool(how)
            case _:
                pid = self._pid(part)
                return pid is not None and self._strike_process(pid, how)

    def _strike_store(self, how: str) -> bool:
        if how == "kill":
            self.wake()
            self.s3.server.kill()
            self.s3.start()
            return True
        if self.store_sleeps:
            return False
        self.store_sleeps = True
        self.s3.server.pause()
        self._sleep(self._wake_store)
        return True

    def _wake_store(self) -> None:
        self.s3.server.resume()
        self.store_sleeps = False

    def _strike_pool(self, how: str) -> bool:
        if how == "kill":
            self.wake()
            self.pool.stop(hard=True)
            self._restart()
            return True
        return self._strike_process(self.pool.pid, how)

    def _restart(self) -> None:
        self.pool.start()
        self._client = None

    def _strike_process(self, pid: int, how: str) -> bool:
        try:
            os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        except ProcessLookupError:
            return False
        if how == "stop":
            self._sleep(lambda: os.kill(pid, signal.SIGCONT))
        return True

    def _pid(self, part: str) -> int | None:
        try:
            driver = self.client.drivers()[0]
        except (httpx.HTTPError, IndexError):
            return None
        if part == "driver":
            return int(driver["pid"])
        return int(driver["runners"][0].split("-")[-2]) if driver["runners"] else None

    def _sleep(self, wake: Callable[[], None]) -> None:
        self._asleep.append((time.monotonic() + self.stop_seconds, wake))

    def tend(self) -> None:
        due = [wake for at, wake in self._asleep if at <= time.monotonic()]
        self._asleep = [(at, wake) for at, wake in self._asleep if at > time.monotonic()]
        self._wake(due)
        if not self.pool.alive:
            self._restart()

    def wake(self) -> None:
        """Wake all that sleeps, now."""
        asleep, self._asleep = self._asleep, []
        self._wake([wake for _, wake in asleep])

    @staticmethod
    def _wake(all_of: list[Callable[[], None]]) -> None:
        for wake in all_of:
            with suppress(ProcessLookupError):  # it was replaced meanwhile
                wake()

    def resident(self) -> int:
        """MiB of memory of the driver's process, 0 when it cannot be told now."""
        pid = self.pool.pid if self.kinds == LOCAL else self._pid("driver")
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")), 0)


@contextmanager
def started(folder: Path, *, executor: str, lease: float, stop_seconds: float, delay: float) -> Iterator[Parts]:
    """All parts, started; they end with the block, whatever state they were struck into."""
    s3 = S3Server(folder / "s3")
    s3.start()
    try:
        with start_model_server(delay=delay) as model, _ray(s3, executor) as address:
            more = ("--ray-address", address, "--runner-cpus", "0.5") if address else ()
            pool = Pool(
                folder / "pool",
                ledger=s3.uri("chaos"),
                executor=executor,
                env=s3.env,
                runners=2,
                branches=4,
                lease=lease,
                ping=lease / 2,
                more=more,
            )
            parts = Parts(pool, s3, model, stop_seconds, ON_RAY if address else LOCAL)
            pool.start()
            try:
                yield parts
            finally:
                parts.wake()
                pool.stop()
    finally:
        s3.stop()


@contextmanager
def _ray(s3: S3Server, executor: str) -> Iterator[str]:
    """A Ray that outlives the ingress; drivers and runners inherit the store's keys from it."""
    if executor != "ray":
        yield ""
        return
    from cluster.ray_runtime import RayRuntime

    os.environ.update(s3.env)
    with tempfile.TemporaryDirectory() as folder:
        runtime: Any = RayRuntime(Path(folder))
        runtime.start()
        try:
            yield runtime.address
        finally:
            runtime.stop()

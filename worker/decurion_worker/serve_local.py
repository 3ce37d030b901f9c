"""A driver and its runners in this process, behind the ingress: for `decurion worker serve`, and as a child process.

As a child (`python -m decurion_worker.serve_local`, see `local_pool`) it ends with its parent, however that ends: the
end of stdin is seen by a thread of its own, so that a busy event loop does not delay it for long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
from starlette.applications import Starlette

from decurion_crds.errors import DecurionError
from decurion_ledger import Credentials, S3Options, Store, open_store
from decurion_ledger import Settings as LogSettings
from decurion_ledger.admission import Admission
from decurion_ledger.errors import StoreMisconfigured
from decurion_ledger.patience import Patience
from decurion_worker.driver import Driver, DriverSettings
from decurion_worker.drivers import DriverCalls
from decurion_worker.executors.local import LocalExecutor
from decurion_worker.local_pool import LocalPoolConfig
from decurion_worker.pool import Pool, PoolSettings
from decurion_worker.runner import RunnerSettings
from decurion_worker.serve import ingress, listen_unix, serve_on
from decurion_worker.sources import Sources

log = logging.getLogger(__name__)

ORPHAN_SECONDS = 10.0
"""How long a pool may take to end by itself after its parent has ended."""


@dataclass(frozen=True, slots=True)
class LocalDrivers:
    """The ingress of a driver in this process; `release` lets those go who wait for news of its runs."""

    app: Starlette
    release: Callable[[], None]


@asynccontextmanager
async def local_drivers(
    *,
    name: str,
    ledger: str,
    opener: Callable[[str], Store],
    token: str,
    driver: DriverSettings,
    pool: PoolSettings,
    runner: RunnerSettings,
) -> AsyncIterator[LocalDrivers]:
    """A started driver whose runners are in this process; its runs are let go at the end.

    `opener` opens a store by its address: that of the ledger, and those of the buckets that inputs are read from.
    Raises what it raises for the ledger.
    """
    made = Driver(
        name,
        store=opener(ledger),
        ledger_uri=ledger,
        sources=Sources(opener, files=False, ledger=ledger),
        settings=driver,
    )
    running = Pool(made, LocalExecutor(runner), pool)
    await running.start()
    try:
        calls = DriverCalls(made)
        yield LocalDrivers(ingress(calls, token=token), calls.release)
    finally:
        await running.stop()


async def serve_child(config: LocalPoolConfig, stop: asyncio.Event, *, ready: Callable[[], None]) -> None:
    """Serve one pool on its Unix socket until `stop` is set. Raises `DecurionError` when it cannot begin: the store is
    let in before anything else, which shows that it may be written.
    """
    credentials = (
        Credentials(config.access_key, config.secret_key, config.session_token or None) if config.access_key else None
    )
    opener = partial(
        open_store,
        endpoint_url=config.endpoint_url or None,
        region=config.region or None,
        credentials=credentials,
        options=await asyncio.to_thread(store_options, config),
    )
    await Admission(opener(config.ledger)).check()
    log_settings = LogSettings(patience=Patience(total=config.patience), interval=0.02)
    listening = listen_unix(config.socket)
    async with local_drivers(
        name="driver-0",
        ledger=config.ledger,
        opener=opener,
        token=config.token,
        driver=DriverSettings(log=log_settings),
        pool=PoolSettings(config.min_runners, config.max_runners, config.branches),
        runner=RunnerSettings(branches=config.branches, patience=log_settings.patience),
    ) as served:
        await serve_on(served.app, listening, ready=ready, stop=stop, release=served.release)


def store_options(config: LocalPoolConfig) -> S3Options:
    """How the store of an s3:// ledger wants to be asked. Certificates are put into a file beside the socket, for the
    library takes them from files alone. Raises `StoreMisconfigured` where they are none.
    """
    if not config.ca:
        return S3Options(config.addressing, config.checksum)
    try:
        ssl.create_default_context(cadata=config.ca)
    except (ssl.SSLError, ValueError) as e:
        raise StoreMisconfigured(f"spec.ledger.caBundle holds no certificates as PEM ({e})") from e
    file = Path(config.socket).with_name("ca.pem")
    file.write_text(config.ca)
    return S3Options(config.addressing, config.checksum, str(file))


def main() -> int:
    """The child process. Its exit status is 3 when it could not begin, 1 when its parent was gone and it hung."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s pool %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    try:
        asyncio.run(_child(LocalPoolConfig.from_line(line)))
    except DecurionError as error:
        _say({"error": str(error)})
        return 3
    return 0


async def _child(config: LocalPoolConfig) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    threading.Thread(target=_end_with_parent, args=(loop, stop), name="parent", daemon=True).start()
    await serve_child(config, stop, ready=lambda: _say({"ready": True}))


def _end_with_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(0, 1024):
        continue
    try:
        loop.call_soon_threadsafe(stop.set)
    except RuntimeError:
        return  # the loop has ended, and the process with it
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def _say(message: dict[str, object]) -> None:
    try:
        os.write(1, orjson.dumps(message) + b"\n")
    except OSError as error:
        log.warning("nobody reads what this pool says: %s", error)


if __name__ == "__main__":
    sys.exit(main())

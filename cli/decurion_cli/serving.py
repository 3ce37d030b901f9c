"""Starting what `decurion worker serve` serves: a driver here, or a driver actor on Ray, behind the ingress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from decurion_crds.errors import DecurionError
from decurion_ledger import Settings as LogSettings
from decurion_ledger import open_store
from decurion_ledger.patience import Patience
from decurion_worker.driver import DriverSettings
from decurion_worker.permits import Terms
from decurion_worker.pool import PoolSettings
from decurion_worker.runner import RunnerSettings
from decurion_worker.serve import ingress, serve
from decurion_worker.serve_local import local_drivers


class RayMissing(DecurionError):
    def __init__(self) -> None:
        super().__init__("the Ray executor is not installed: pip install 'decurion[ray]', or use --executor local")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    ledger: str
    ray: bool
    host: str
    port: int
    token: str = field(repr=False)
    driver: str
    min_runners: int
    max_runners: int
    branches: int
    runner_cpus: float
    ray_address: str
    lease: float
    ping: float
    patience: float

    @property
    def settings(self) -> DriverSettings:
        log = LogSettings(patience=Patience(total=self.patience), interval=0.02)
        return DriverSettings(
            lease=self.lease, log=log, tick=min(1.0, self.lease / 4), pause=0.005 if self.ray else 0.0
        )

    @property
    def pool(self) -> PoolSettings:
        return PoolSettings(min_runners=self.min_runners, max_runners=self.max_runners, branches=self.branches)

    @property
    def runner(self) -> RunnerSettings:
        beat = min(2.0, self.lease / 4)
        return RunnerSettings(
            branches=self.branches,
            beat=beat,
            silence=self.lease,
            patience=self.settings.log.patience,
            terms=Terms(lease=self.lease),
        )


async def serve_until(stop: asyncio.Event, options: ServeOptions, *, ready: Callable[[str], None]) -> None:
    """Serve until `stop` is set. `ready` is told the ingress's URL when a driver stands behind it."""
    if options.ray:
        await _serve_ray(stop, options, ready)
    else:
        await _serve_local(stop, options, ready)


async def _serve_local(stop: asyncio.Event, options: ServeOptions, ready: Callable[[str], None]) -> None:
    drivers = local_drivers(
        name=options.driver,
        ledger=options.ledger,
        opener=open_store,
        token=options.token,
        driver=options.settings,
        pool=options.pool,
        runner=options.runner,
    )
    async with drivers as served:
        await serve(served.app, host=options.host, port=options.port, ready=ready, stop=stop, release=served.release)


async def _serve_ray(stop: asyncio.Event, options: ServeOptions, ready: Callable[[str], None]) -> None:
    try:
        from decurion_worker.executors.ray import RayRunnerSettings
        from decurion_worker.serve_ray import DriverConfig, PingSettings, RayDrivers, ray_session
    except ImportError as error:
        raise RayMissing from error
    config = DriverConfig(
        name=options.driver,
        ledger=options.ledger,
        driver=options.settings,
        pool=options.pool,
        runners=RayRunnerSettings(ledger=options.ledger, cpus=options.runner_cpus, runner=options.runner),
    )
    ping = PingSettings(every=options.ping, timeout=2 * options.ping, stall=4 * options.ping)
    with ray_session(options.ray_address):
        drivers = RayDrivers(config, ping)
        try:
            await drivers.start()
            app = ingress(drivers, token=options.token)
            await serve(app, host=options.host, port=options.port, ready=ready, stop=stop)
        finally:
            await drivers.stop()

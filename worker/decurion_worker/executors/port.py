"""The port between a driver and wherever its runners live."""

from __future__ import annotations

from typing import Protocol

from decurion_worker.driver import Driver


class Executor(Protocol):
    async def start(self, driver: Driver) -> None:
        """Begin to serve a driver. Runners report to it by `submit`."""

    async def scale(self, runners: int) -> None:
        """Have this many runners. Fewer than now: idle ones end."""

    async def stop(self) -> None:
        """End every runner."""

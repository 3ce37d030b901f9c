"""Loops that must not end: a fault is logged, and the loop begins again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds before a loop that failed begins again."""


def supervised(loop: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
    """A task that runs `loop`, again when it fails, until it is cancelled."""

    async def run() -> None:
        while True:
            try:
                await loop()
            except Exception:
                log.exception("the loop %s failed and begins again", name)
                await asyncio.sleep(PAUSE)
            else:
                return

    return asyncio.get_running_loop().create_task(run(), name=name)

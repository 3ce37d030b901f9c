"""A loop whose clock jumps to the next thing that is due, for work that waits for nothing outside the process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import looptime

T = TypeVar("T")


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which sleeps without taking time. It must wait for no thread, file or socket."""
    with asyncio.Runner(loop_factory=_loop) as runner:
        return runner.run(work)


def _loop() -> asyncio.AbstractEventLoop:
    # One idle turn before the clock moves is enough, since nothing comes from outside.
    return looptime.patch_event_loop(asyncio.new_event_loop(), noop_cycles=1)

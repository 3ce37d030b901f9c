"""Sessions of the interpreter: every one with a clock and randomness of its own, limits, no files and no output.

The library's default is the real clock and real randomness, so this module is the only one that opens a session.
"""

from __future__ import annotations

import datetime
import os
import signal
from types import TracebackType
from typing import Self

import pydantic_monty as monty

from decurion_crds.canonical import Json
from decurion_crds.expressions import prelude
from decurion_crds.expressions.groups import PRELUDE

MEMORY = 256 * 2**20
"""Bytes of heap that a session may hold."""
SETTLED_CLOCK = "1970-01-01T00:00:00+00:00"
SETTLED_SEED = "decurion"


def os_policy(seed: str, clock: str) -> monty.OSPolicy:
    """A clock that stands still at `clock` (ISO 8601, UTC when it names no zone) and randomness that `seed` decides."""
    now = datetime.datetime.fromisoformat(clock)
    if now.tzinfo is None:
        now = now.replace(tzinfo=datetime.UTC)
    return monty.OSPolicy(
        datetime=now,
        timezone="utc",
        sleep="zero",
        process_time="zero",
        random_start=monty.RandomSeed(seed=seed),
    )


def limits(seconds: float) -> monty.ResourceLimits:
    return monty.ResourceLimits(max_feed_duration_secs=seconds, max_memory=MEMORY)


class Session:
    """One session with our functions defined. A context manager, used by one thread; `kill` may be called by another.

    Whoever feeds it discards it after `MontyCrashedError` or a limit: its heap is then in no state to rely on.
    """

    def __init__(
        self,
        pool: monty.Monty,
        *,
        seconds: float,
        seed: str = SETTLED_SEED,
        clock: str = SETTLED_CLOCK,
    ) -> None:
        self.settings = (seconds, seed, clock)
        self.defined: dict[str, int] = {}
        self.uses = 0
        self._session = pool.checkout(
            script_name="expression", limits=limits(seconds), os_policy=os_policy(seed, clock)
        )
        self._pid: int | None = None

    def __enter__(self) -> Self:
        self._session.__enter__()
        self._pid = self._session.worker_pid
        self.feed(prelude.RUN)
        self.feed(PRELUDE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._session.__exit__(kind, error, traceback)

    def feed(self, source: str, inputs: dict[str, Json] | None = None) -> object:
        """Runs `source` and gives the value of its last expression. Raises `pydantic_monty.MontyError`."""
        self.uses += 1
        return self._session.feed_run(source, inputs=inputs, print_callback=_drop)

    def define(self, key: str, source: str) -> int:
        """Runs `source`, which defines a function, once for each `key`. Gives the number of the feed that did it."""
        if key not in self.defined:
            number = self.uses
            self.feed(source)
            self.defined[key] = number
        return self.defined[key]

    def kill(self) -> None:
        """Ends the worker process of this session; a feed under way raises `MontyCrashedError`."""
        if self._pid is not None:
            try:
                os.kill(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                self._pid = None


def _drop(stream: str, text: str) -> None:
    """What code prints goes nowhere: it is no part of a result."""

"""Times of a run that are up: what the log says is due, and the alarm that rings for it.

Time enters the engine only by records. What has a time of its own (a map, a graph, an approval, the run itself by
`limits.seconds`) gets a `timer_set` that says when it is due, so that a driver that comes later counts from the same
moment, and a `timer_fired` when it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from decurion_ledger import Record


class Timed(Protocol):
    """What has a time of its own: a map or graph that is open, a request to people."""

    path: str
    due: str | None

    @property
    def seconds(self) -> float | None: ...


class Timers:
    """Alarms for what is open. `write` takes the records that are due, `now` is the wall clock."""

    def __init__(self, run: str, *, now: Callable[[], datetime], write: Callable[[Record], None]) -> None:
        self._run = run
        self._now = now
        self._write = write
        self._asked: set[str] = set()
        self._alarms: dict[str, asyncio.TimerHandle] = {}

    def tend(self, opened: Iterable[Timed]) -> None:
        """Set what is not set, and an alarm for what is; what is open no more rings no more."""
        current = {one.path: one for one in opened}
        for path in [path for path in self._alarms if path not in current]:
            self._alarms.pop(path).cancel()
        for path, one in current.items():
            if one.due is None and path not in self._asked and one.seconds is not None:
                self._asked.add(path)
                due = self._now().astimezone(UTC) + timedelta(seconds=one.seconds)
                self._record("timer_set", path, due.isoformat(timespec="milliseconds"))
            elif one.due is not None and path not in self._alarms:
                left = (datetime.fromisoformat(one.due) - self._now()).total_seconds()
                loop = asyncio.get_running_loop()
                self._alarms[path] = loop.call_later(max(0.0, left), self._record, "timer_fired", path, one.due)

    def stop(self) -> None:
        for alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()

    def _record(self, type: str, path: str, due: str) -> None:
        self._write(Record.event(type, path, {"run": self._run, "due": due}))

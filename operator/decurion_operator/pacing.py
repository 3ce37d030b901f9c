"""How fast status is written: per run, and over all runs, in writes and in bytes.

`Limiter` is the generic cell rate algorithm (ITU-T I.371): one number says when the next unit may pass. `Pacer` puts
the limits of the operator page together: phase changes first, then the oldest; what must wait is told for how long.
Nothing here sleeps or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from decurion_operator.settings import OperatorSettings


class Limiter:
    """At most `rate` units a second in the long run, `burst` units at once. Units may be fractions."""

    def __init__(self, *, rate: float, burst: float) -> None:
        self._spacing = 1.0 / rate
        self._tolerance = burst / rate
        self._full_at = 0.0

    def reserve(self, now: float, units: float = 1.0) -> float:
        """Take `units` and return when they may pass: `now`, or later. What is taken is not given back."""
        start = max(now, self._full_at)
        self._full_at = start + units * self._spacing
        return max(now, self._full_at - self._tolerance)


@dataclass(slots=True)
class _Writes:
    """One object: when its status was written last, and the times granted to writes that wait, by their sort, so that
    asking twice does not pay twice."""

    written: float
    phase: float | None = None
    progress: float | None = None


class Pacer:
    """Says when the status of an object may be written.

    A phase change waits for nothing but the limit of phase changes; progress waits for the object's own interval, then
    for its turn among all objects, in the order of asking (so the oldest goes first). A delay of 0 grants the write;
    ask again after any other. A grant is kept until `wrote`.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        rate, size = settings.all_status_rate, settings.all_status_bytes_rate
        self._phases = Limiter(rate=rate, burst=rate)
        self._all = Limiter(rate=rate, burst=rate)
        self._bytes = Limiter(rate=size, burst=size)
        self._objects: dict[str, _Writes] = {}

    def phase(self, uid: str, *, now: float, size: int) -> float:
        """Seconds until a phase change of `size` bytes may be written."""
        writes = self._of(uid, now)
        if writes.phase is None:
            # What phase changes take, progress does not get: they are taken from both limits, and wait for one.
            self._all.reserve(now)
            self._bytes.reserve(now, size)
            writes.phase = self._phases.reserve(now)
        return max(0.0, writes.phase - now)

    def progress(self, uid: str, *, now: float, size: int, age: float) -> float:
        """Seconds until progress of `size` bytes of an object that began `age` seconds ago may be written."""
        writes = self._of(uid, now)
        own = writes.written + self._interval(size, age)
        if now < own:
            return own - now
        if writes.progress is None:
            writes.progress = max(self._all.reserve(now), self._bytes.reserve(now, size))
        return max(0.0, writes.progress - now)

    def wrote(self, uid: str, *, now: float) -> None:
        self._objects[uid] = _Writes(written=now)

    def forget(self, uid: str) -> None:
        self._objects.pop(uid, None)

    def _of(self, uid: str, now: float) -> _Writes:
        # An object of which nothing was written yet waits for no interval.
        return self._objects.setdefault(uid, _Writes(written=now - self._settings.status_slow_seconds))

    def _interval(self, size: int, age: float) -> float:
        s = self._settings
        aged = min(max(s.status_seconds, age / 10), s.status_slow_seconds)
        return max(aged, size / s.status_bytes_rate)

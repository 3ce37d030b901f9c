"""How fast status is written: per run, and over all runs, in writes and in bytes.

`Limiter` is the generic cell rate algorithm (ITU-T I.371): one number says when the next unit may pass. `Pacer` puts
the limits of the operator page together: phase changes first, then the oldest; what must wait is told for how long.
Nothing here sleeps or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from decurion_operator.settings import OperatorSettings


class Limiter:
    """At most `rate` units a second in the long run, `burst` units at once. Units may be fractions.

    More than `burst` units pass as soon as `burst` of them may; the rest is waited for afterwards.
    """

    def __init__(self, *, rate: float, burst: float) -> None:
        self._spacing = 1.0 / rate
        self._burst = burst
        self._full_at = 0.0

    def wait(self, now: float, units: float = 1.0) -> float:
        """Seconds until `units` may pass; takes nothing."""
        due = max(now, self._full_at) + (min(units, self._burst) - self._burst) * self._spacing
        return max(0.0, due - now)

    def take(self, now: float, units: float = 1.0) -> None:
        """Take `units`, whether or not they may pass yet. What is taken is not given back."""
        self._full_at = max(now, self._full_at) + units * self._spacing

    def reserve(self, now: float, units: float = 1.0) -> float:
        """Take `units` and return when they may pass: `now`, or later."""
        wait = self.wait(now, units)
        self.take(now, units)
        return now + wait


@dataclass(slots=True)
class _Writes:
    """One object: when its status was written last, and the times granted to writes that wait, by their sort, so that
    asking twice does not pay twice."""

    written: float
    phase: float | None = None
    progress: float | None = None


class Pacer:
    """Says when the status of an object may be written. A delay of 0 grants the write; ask again after any other.

    A phase change waits for nothing but the limits of phase changes, which are those of all writes. Progress waits for
    the object's own interval, then for its turn, in the order of asking (so the oldest goes first), and then until
    phase changes and earlier progress have left room.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        rate, size = settings.all_status_rate, settings.all_status_bytes_rate
        self._phases = Limiter(rate=rate, burst=rate)
        self._phase_bytes = Limiter(rate=size, burst=size)
        self._turns = Limiter(rate=rate, burst=rate)
        self._turn_bytes = Limiter(rate=size, burst=size)
        self._all = Limiter(rate=rate, burst=rate)
        self._all_bytes = Limiter(rate=size, burst=size)
        self._objects: dict[str, _Writes] = {}

    def phase(self, uid: str, *, now: float, size: int) -> float:
        """Seconds until a phase change of `size` bytes may be written."""
        writes = self._of(uid, now)
        if writes.phase is None:
            writes.phase = max(self._phases.reserve(now), self._phase_bytes.reserve(now, size))
        wait = max(0.0, writes.phase - now)
        if wait == 0:
            self._take(now, size)
        return wait

    def progress(self, uid: str, *, now: float, size: int, age: float) -> float:
        """Seconds until progress of `size` bytes of an object that began `age` seconds ago may be written."""
        writes = self._of(uid, now)
        own = writes.written + self._interval(size, age)
        if now < own:
            return own - now
        if writes.progress is None:
            writes.progress = max(self._turns.reserve(now), self._turn_bytes.reserve(now, size))
        wait = max(writes.progress - now, self._all.wait(now), self._all_bytes.wait(now, size))
        if wait <= 0:
            self._take(now, size)
        return max(0.0, wait)

    def wrote(self, uid: str, *, now: float) -> None:
        self._objects[uid] = _Writes(written=now)

    def forget(self, uid: str) -> None:
        self._objects.pop(uid, None)

    def _take(self, now: float, size: int) -> None:
        self._all.take(now)
        self._all_bytes.take(now, size)

    def _of(self, uid: str, now: float) -> _Writes:
        # An object of which nothing was written yet waits for no interval.
        return self._objects.setdefault(uid, _Writes(written=now - self._settings.status_slow_seconds))

    def _interval(self, size: int, age: float) -> float:
        s = self._settings
        aged = min(max(s.status_seconds, age / 10), s.status_slow_seconds)
        return max(aged, size / s.status_bytes_rate)

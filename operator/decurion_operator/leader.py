"""The leader epoch: the number by which a run's log refuses an operator that has been replaced.

There is one replica, so the epoch is Unix seconds at start; a log that has seen a higher one, from a machine whose
clock was ahead, raises it once. Election by a Lease comes with the second replica.
"""

from __future__ import annotations

from collections.abc import Callable


class Leader:
    """`epoch` of this process. `now` gives Unix seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.epoch = int(now())

    def raise_above(self, highest: int) -> None:
        """Go above the highest epoch that a log has seen. It never goes down."""
        self.epoch = max(self.epoch, highest + 1, int(self._now()))

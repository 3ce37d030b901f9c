"""Which runner gets which item: an even share to each runner that has room, runs in turn.

An item that was lost with its runner is under suspicion, and stands with fewer others the next time, until what broke
its runners is alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from decurion_worker.engine import Task
from decurion_worker.link import Outbox, Recall
from decurion_worker.session import RunSession

SLACK = 8
"""Items that a runner may hold beyond its share: moving fewer is not worth the message."""


class Seat:
    """A runner as its driver sees it."""

    def __init__(self, name: str, outbox: Outbox) -> None:
        self.name = name
        self.outbox = outbox
        self.capacity = 0
        self.heard = 0.0
        self.seen = 0
        self.held: dict[str, set[str]] = {}
        self.recalled = False
        """It was asked for what it has not started, and got no work since."""
        self.coming: set[tuple[str, str]] = set()
        """Run and key of what it will hold once what was done of it before is read."""

    @property
    def load(self) -> int:
        return sum(len(keys) for keys in self.held.values()) + len(self.coming)


class Offering:
    """Shares what may run of `sessions` between `seats`; `hand` brings tasks that were taken to their runner."""

    def __init__(
        self,
        seats: Mapping[str, Seat],
        sessions: Mapping[str, RunSession],
        *,
        hand: Callable[[Seat, RunSession, list[Task]], None],
    ) -> None:
        self._seats = seats
        self._sessions = sessions
        self._hand = hand

    @property
    def pending(self) -> int:
        """Tasks that could be taken now, over all runs."""
        return sum(session.engine.pending for session in self._sessions.values())

    def share_out(self) -> None:
        """Hand out what may run, as far as there is room."""
        joined = [seat for seat in self._seats.values() if seat.capacity]
        seats = [seat for seat in joined if seat.capacity > seat.load]
        if not seats:
            return
        waiting = {session.run: session.engine.pending for session in self._sessions.values()}
        offering = [session for session in self._sessions.values() if waiting[session.run]]
        fair = -(-(sum(waiting.values()) + sum(seat.load for seat in joined)) // len(joined))
        for seat in sorted(seats, key=lambda s: s.load):
            room = min(seat.capacity, fair) - seat.load
            share = self._share(seat)
            for session in sorted(offering, key=lambda s: len(s.leases)):
                if room <= 0:
                    break
                given, share = self._give(seat, session, room, share)
                room -= given
        if not self.pending:
            self._recall(joined, fair)

    def _recall(self, joined: list[Seat], fair: int) -> None:
        """Ask runners that hold more than their share for what they have not started, while others have room."""
        room = sum(max(0, min(seat.capacity, fair) - seat.load) for seat in joined)
        for seat in sorted(joined, key=lambda s: -s.load):
            spare = min(seat.load - fair, room)
            if spare > SLACK and not seat.recalled:
                seat.recalled = True
                room -= spare
                seat.outbox.put(Recall(spare))

    def _give(self, seat: Seat, session: RunSession, room: int, share: float) -> tuple[int, float]:
        """Give a runner up to `room` tasks of a run; how many, and what `share` is then: how many items may stand on it
        together.
        """
        given = seat.load

        def fits(key: str) -> bool:
            nonlocal given, share
            own = session.suspects.get(key)
            limit = min(share, own.share) if own is not None else share
            if given + 1 > limit:
                return False
            given, share = given + 1, limit
            return True

        tasks = session.take(room, seat.name, room=fits)
        self._hand(seat, session, tasks)
        return len(tasks), share

    def _share(self, seat: Seat) -> float:
        """How many items may stand on a runner together, for the sake of the suspects of any run among them."""
        shares = [
            session.suspects[key].share
            for session in self._sessions.values()
            if session.suspects
            for key in (
                *(lease.key for lease in session.leases.values() if lease.runner == seat.name),
                *(key for run, key in seat.coming if run == session.run),
            )
            if key in session.suspects
        ]
        return min(shares, default=math.inf)

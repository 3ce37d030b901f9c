"""The time of a graph or loop that one runner runs whole inside a branch.

It counts from what the log says of its start, so that a runner that takes it over counts on. Where the driver hands the
parts out, timers of the log count it: see `timers`.
"""

from __future__ import annotations

from datetime import datetime

from decurion_crds.canonical import Json
from decurion_crds.compiled import Node
from decurion_worker.engine.opened import UNBOUNDED
from decurion_worker.wall_clock import stamp


def opening_time(node: Node, now: datetime) -> dict[str, Json]:
    """What the record that opens a node says of its start, beside what it computed."""
    return {"at": stamp(now)} if node.timeout_seconds < UNBOUNDED else {}


def time_left(node: Node, begun: str | None, now: datetime) -> float | None:
    """Seconds that are left of the time of a node that began at `begun` (RFC 3339); None where it has no end.

    Not more than all of it, should the clock have been set back meanwhile.
    """
    if node.timeout_seconds >= UNBOUNDED:
        return None
    if begun is None:
        return node.timeout_seconds
    gone = (now - datetime.fromisoformat(begun)).total_seconds()
    return min(max(node.timeout_seconds - gone, 0.0), node.timeout_seconds)

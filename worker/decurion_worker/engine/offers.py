"""What may be handed out: nodes that are ready, and branches that may start; deepest scope first, then the oldest."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from decurion_worker.engine.scopes import Opened, ScopeState
from decurion_worker.engine.tasks import key_of
from decurion_worker.link import ItemKind


class Ready(NamedTuple):
    """A task of a scope that may be made. Sorts by depth, then by age."""

    depth: int
    order: int
    key: str
    kind: ItemKind
    scope: str
    node: str


class Offers:
    """The queue of one engine. Branches that were started end before new ones start: memory is bounded by what runs."""

    def __init__(self) -> None:
        self._order = 0
        self._ready: list[Ready] = []
        self._open: dict[int, dict[str, Opened]] = {}
        """What may have a branch to start, by depth."""

    def __bool__(self) -> bool:
        """Whether a task is ready; branches that may start do not count."""
        return bool(self._ready)

    @property
    def pending(self) -> int:
        """How many tasks could be handed out, at most."""
        return len(self._ready) + sum(o.startable for opened in self._open.values() for o in opened.values())

    def push(self, scope: ScopeState, kind: ItemKind, node: str) -> None:
        self._order += 1
        ready = Ready(-scope.depth, self._order, key_of(scope, kind, node), kind, scope.path, node)
        heapq.heappush(self._ready, ready)

    def pop(self) -> Ready:
        return heapq.heappop(self._ready)

    def offer(self, opened: Opened) -> None:
        """A map or graph that may have a branch to start."""
        self._open.setdefault(opened.depth, {})[opened.path] = opened

    def withdraw(self, opened: Opened) -> None:
        self._open.get(opened.depth, {}).pop(opened.path, None)

    def opened(self) -> Iterator[Opened]:
        """What may have a branch to start, deepest first. What has none any more is withdrawn on the way."""
        for depth in sorted(self._open, reverse=True):
            for opened in list(self._open[depth].values()):
                yield opened
                if opened.exhausted:
                    self.withdraw(opened)

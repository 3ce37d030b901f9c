"""What may be handed out: nodes that are ready, and branches that may start; deepest scope first, then the oldest."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from decurion_worker.engine.opened import Opened
from decurion_worker.engine.scopes import ScopeState
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
        self._open: dict[str, Opened] = {}
        """What may have a branch to start, by path."""
        self._turns: list[tuple[int, int, str]] = []
        """Depth, age and path of these, as a heap; of what was withdrawn meanwhile too."""

    def __bool__(self) -> bool:
        """Whether a task is ready; branches that may start do not count."""
        return bool(self._ready)

    @property
    def pending(self) -> int:
        """How many tasks could be handed out, at most."""
        return len(self._ready) + sum(opened.startable for opened in self._open.values())

    def push(self, scope: ScopeState, kind: ItemKind, node: str) -> None:
        self._order += 1
        ready = Ready(-scope.depth, self._order, key_of(scope, kind, node), kind, scope.path, node)
        heapq.heappush(self._ready, ready)

    def pop(self) -> Ready:
        return heapq.heappop(self._ready)

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Leave out what is offered of all scopes but those whose path is `wanted`."""
        self._ready = [ready for ready in self._ready if wanted(ready.scope)]
        heapq.heapify(self._ready)
        self._open = {path: opened for path, opened in self._open.items() if wanted(path)}

    def offer(self, opened: Opened) -> None:
        """A map or graph that may have a branch to start."""
        if opened.path in self._open:
            return
        if not opened.order:
            self._order += 1
            opened.order = self._order
        self._open[opened.path] = opened
        heapq.heappush(self._turns, (-opened.depth, opened.order, opened.path))

    def withdraw(self, opened: Opened) -> None:
        self._open.pop(opened.path, None)

    def opened(self) -> Iterator[Opened]:
        """What may have a branch to start, deepest first, then the oldest. What had its turn is withdrawn, since no
        branch of it could start then: it is offered again once one can.
        """
        while self._turns:
            opened = self._open.get(self._turns[0][2])
            if opened is None:
                heapq.heappop(self._turns)
                continue
            yield opened
            self.withdraw(opened)

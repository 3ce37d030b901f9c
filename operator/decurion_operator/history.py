"""Keeping the history of graphs within their limits: ended runs beyond them are deleted, oldest first.

All is read off the cache at each look, so nothing is remembered: what a look leaves over, or an operator that stopped,
is found by the next. A deletion that fails makes its run due again, which asks for the next look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from decurion_operator.cache import Cache, Resource
from decurion_operator.gateway import Gateway
from decurion_operator.plan.history import limits_of, named_by, surplus
from decurion_operator.plan.run import Action
from decurion_operator.queue import Key
from decurion_operator.tasks import Deeds

AT_ONCE: Final = 50
"""Most deletions of one graph in flight: as runs go, the next follow."""
LOOK_SECONDS: Final = 1.0
"""Ends of runs within so long are one look at their graph."""


class History:
    """`again(key, seconds)` makes a graph due."""

    def __init__(self, cache: Cache, gateway: Gateway, deeds: Deeds, *, again: Callable[[Key, float], None]) -> None:
        self._cache = cache
        self._gateway = gateway
        self._deeds = deeds
        self._again = again

    def ended(self, run: Resource) -> None:
        """A run has ended or is gone: its graph may keep too many by now, or that of the run that it began with."""
        graphs = {run.graph}
        for name in named_by(run):
            earlier = self._cache.by_uid(name) or self._cache.get(Key("TaskGraphRun", run.key.namespace, name))
            graphs |= {earlier.graph} if earlier is not None else set()
        for key in graphs:
            graph = self._cache.get(key)
            if graph is not None and limits_of(graph.spec):
                self._again(key, LOOK_SECONDS)

    def tidy(self, key: Key) -> None:
        """Begin to delete what is beyond the limits of a graph."""
        graph = self._cache.get(key)
        limits = limits_of(graph.spec) if graph is not None and not graph.deleting else {}
        if not limits:
            return
        near = (run for run in self._cache.all("TaskGraphRun") if run.key.namespace == key.namespace)
        needed = frozenset(name for run in near if not run.finished for name in named_by(run))
        for run in surplus(self._cache.referrers(key, "TaskGraphRun"), limits, needed=needed)[:AT_ONCE]:
            self._delete(run)

    def _delete(self, run: Resource) -> None:
        self._deeds.start(run.key, run.uid, Action.DELETE, lambda: self._gateway.delete(run.key, uid=run.uid))

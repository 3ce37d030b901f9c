"""Parking: what only waits for people holds no place, neither on a runner nor in the `concurrency` of its maps.

A scope rests when nothing in it can go on before somebody decides; a map rests when all its branches do that can
start. A scope that rests is parked, up to the root. It counts again as soon as a task of it is handed out, and that
only where its maps have room: so no more branches execute than the map allows, however many decisions come at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from decurion_worker.engine.opened import Opened
from decurion_worker.engine.scopes import NodeStatus, ScopeState


def rests(scope: ScopeState) -> bool:
    """Whether nothing in a scope can go on before somebody decides."""
    if scope.ended or scope.finishing or scope.finishes or scope.kept:
        return False
    if scope.halted:
        # Where something failed, the `finally` of what is inside may still wait.
        inside = [opened for opened in scope.opened.values() if not opened.joined]
        return 0 < len(inside) == scope.running and all(opened.rests for opened in inside)
    waits = False
    for name, status in scope.status.items():
        if status is NodeStatus.READY:
            return False
        if status is NodeStatus.OPEN:
            if not scope.waits_for_people(name):
                return False
            waits = True
    return waits


def park(scope: ScopeState) -> Iterator[Opened]:
    """Park a scope that rests, and what rests because of it; the maps that have room for that."""
    while not scope.parked and rests(scope):
        scope.parked = True
        owner = scope.owner
        if owner is None:
            return
        owner.parked += 1
        yield owner
        if not owner.rests:
            return
        scope = owner.home


def wake(scope: ScopeState) -> Opened | None:
    """Count a scope among what executes, with all that it is in. The map that has no room for it, and then nothing
    changes; None when it counts.
    """
    at = scope
    while at.parked and at.owner is not None:
        if at.owner.room < 1:
            return at.owner
        at = at.owner.home
    unpark(scope)
    return None


def branch_of(scope: ScopeState, map: Opened) -> int:
    """The branch of `map` that a scope is, or is inside of."""
    while scope.owner is not map:
        assert scope.owner is not None
        scope = scope.owner.home
    return scope.index


def unpark(scope: ScopeState) -> None:
    """Count a scope among what executes, with all that it is in, whether there is room or not: as one of which a record
    says that it went on.
    """
    at: ScopeState | None = scope
    while at is not None and at.parked:
        at.parked = False
        if at.owner is not None:
            at.owner.parked -= 1
        at = at.owner.home if at.owner is not None else None

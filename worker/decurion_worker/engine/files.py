"""The files of a scope, as far as they are known from records: which version it began with, and what its nodes left."""

from __future__ import annotations

from collections.abc import Iterable

from decurion_crds.canonical import Json
from decurion_crds.compiled import Scope
from decurion_ledger import Record
from decurion_worker.engine.opened import Opened
from decurion_worker.engine.scopes import NodeStatus, ScopeState


def seen_by(scope: ScopeState, name: str) -> Json:
    """What a runner is told of the files that a node sees; None where it sees none."""
    if scope.scope.by_name[name].workspace is None:
        return None
    return _told(scope, scope.scope.writers_before[name])


def left_by(scope: ScopeState) -> Json:
    """What a runner is told of the files that a scope leaves behind; None where it has nothing to do with them."""
    return _told(scope, scope.scope.writers) if scope.scope.filed else None


def opened_with(opened: Opened) -> Json:
    """What a runner is told that runs a whole branch, graph or loop."""
    return None if opened.node.workspace is None else {"base": opened.files, "layers": []}


def note_files(scope: ScopeState, name: str, record: Record) -> None:
    """A node ended well, or what it opened did: keep the version that it left."""
    if "workspace" in record.envelope and name in scope.scope.writers:
        scope.files[name] = record.envelope["workspace"]


def _told(scope: ScopeState, names: Iterable[str]) -> Json:
    if scope.before is not None:
        base, layers = scope.before.files
        return {"base": base, "layers": [*layers, *_layers(scope, names)]}
    return {"base": scope.base_files, "layers": _layers(scope, names)}


def _layers(scope: ScopeState, names: Iterable[str]) -> list[Json]:
    """Of these nodes those that ended well: what a node did that failed, or was given up, does not count."""
    ended = (name for name in names if scope.status[name] is NodeStatus.OK and name in scope.files)
    return [[name, scope.files[name]] for name in ended]


def whole(scope: ScopeState) -> tuple[Json, list[Json]]:
    """The files that the nodes of a scope leave to its `finally`, however they ended."""
    return scope.base_files, _layers(scope, scope.scope.writers)


def leaf_layers(scope: Scope, name: str | None, files: dict[str, Json]) -> list[Json]:
    """The layers before a node of a leaf scope, or of its end, out of the versions that its nodes left."""
    names = scope.writers if name is None else scope.writers_before[name]
    return [[one, files[one]] for one in names if one in files]

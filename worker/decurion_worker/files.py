"""The files of a run on a runner: what a node sees of them, and what it makes of them.

A node sees the files that its scope began with, and on them what the nodes wrote that ended before it: what runs beside
it does not exist for it. What it makes of them is a version of its own, which its record names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from decurion_crds.canonical import Json
from decurion_crds.compiled import Artefact, CompiledGraph, Scope
from decurion_crds.globs import Globs
from decurion_ledger import Store
from decurion_ledger.errors import BadTree, OutOfScope, WorkspaceTooLarge
from decurion_ledger.patience import Patience
from decurion_ledger.workspace import EMPTY, Draft, Layer, Limits, Objects, Version, files_of, overlay
from decurion_worker.errors import ArtefactMissing, WorkspaceRefused

if TYPE_CHECKING:
    from decurion_worker.context import Execution


class RunFiles:
    """The files of one run on one runner. What a node is told of them is `{base, layers}`: the version that its scope
    began with, None for no files, and name and version of each node that may have changed them since.
    """

    def __init__(self, graph: CompiledGraph, store: Store, run: str, *, patience: Patience | None = None) -> None:
        self._graph = graph
        self.objects = Objects(store, run, patience=patience)
        self.limits = limits_of(graph)

    async def view(self, scope: Scope, files: Json, *, path: str) -> Version:
        """The files of a scope after the nodes that are told. Raises `WorkspaceRefused`."""
        if files is None:
            return EMPTY
        layers = [Layer(version_of(version), self._writes(scope, name).fits) for name, version in files["layers"]]
        with refusals(path):
            return await overlay(self.objects, version_of(files["base"]), layers, limits=self.limits)

    def _writes(self, scope: Scope, name: str) -> Globs:
        """What a node may write. Nodes of `finally` come after those of the root, which have other names."""
        node = scope.by_name.get(name) or self._graph.root.by_name[name]
        return Globs(node.workspace.write if node.workspace is not None else ())


async def missing_artefact(files: RunFiles, artefacts: Sequence[Artefact], version: Version) -> ArtefactMissing | None:
    """What is wrong where a run leaves no file for one of its artefacts."""
    if not artefacts:
        return None
    await files.objects.learn(version)
    held = await files_of(files.objects, version.root)
    for artefact in artefacts:
        if not any(map(Globs((artefact.path,)).fits, held)):
            return ArtefactMissing(artefact.name, artefact.path)
    return None


def limits_of(graph: CompiledGraph) -> Limits:
    given = graph.workspace
    return Limits() if given is None else Limits(bytes=given.max_bytes, files=given.max_files)


def version_of(files: Json) -> Version:
    return EMPTY if files is None else Version.from_json(files)


def files_in(envelope: Mapping[str, Json]) -> Json:
    """The version that a record names, None where it names none."""
    return envelope.get("workspace")


async def open_files(execution: Execution) -> None:
    """Give a node its files, as the nodes before it left them. Raises `WorkspaceRefused`."""
    node = execution.node
    if node.workspace is None:
        return
    files = execution.context.files
    version = await files.view(execution.scope, execution.files, path=execution.path)
    execution.draft = Draft(
        files.objects, version, read=Globs(node.workspace.read), write=Globs(node.workspace.write), limits=files.limits
    )


async def close_files(execution: Execution) -> Version | None:
    """The files as the node leaves them; None for one that has nothing to do with them. Raises `WorkspaceRefused`."""
    if execution.draft is None:
        return None
    with refusals(execution.path):
        return await execution.draft.commit()


@contextmanager
def refusals(path: str) -> Iterator[None]:
    """What no workspace may hold, as a failure of the node at `path`."""
    try:
        yield
    except (BadTree, OutOfScope, WorkspaceTooLarge) as error:
        raise WorkspaceRefused(path, str(error)) from error

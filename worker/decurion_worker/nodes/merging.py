"""What the items of a map made of the files, merged by what the map says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from decurion_crds.canonical import Json
from decurion_crds.compiled import CONFLICTS, MapWorkspace
from decurion_ledger.workspace import Conflict, Merged, Policy, merge
from decurion_worker.context import Execution
from decurion_worker.errors import WorkspaceConflict
from decurion_worker.files import refusals, version_of


async def merge_items(execution: Execution, base: Json, arms: Mapping[int, Json]) -> Merged:
    """The merge of the versions of the items that ended well, over the `base` that they began with. It has no version
    where the items do not agree and that fails the map. Raises `WorkspaceRefused`.
    """
    node, files, block = execution.node, execution.context.files, _block(execution)
    versions = {index: version_of(version) for index, version in arms.items()}
    with refusals(execution.path):
        return await merge(
            files.objects,
            version_of(base),
            versions,
            _policy(block),
            names={index: f"{node.name}/{index:05d}" for index in versions},
            disjoint=block.merge == "disjoint",
            limits=files.limits,
        )


def rows(execution: Execution, conflicts: Sequence[Conflict]) -> list[Json]:
    """Conflicts as a record and the node's output list them; where they are collected, each side names the folder that
    its files are in.
    """
    found = [conflict.to_json() for conflict in conflicts]
    if collects(execution):
        for row in found:
            for side in row["sides"]:
                side["folder"] = f"{CONFLICTS}/{execution.node.name}/{side['items'][0]:05d}"
    return found


def collects(execution: Execution) -> bool:
    return _block(execution).on_conflict == "collect"


def conflict_error(execution: Execution, conflicts: Sequence[Conflict]) -> WorkspaceConflict:
    first = conflicts[0]
    items = sorted(side.arms[0] for side in first.sides) if len(first.sides) > 1 else list(first.sides[0].arms)
    return WorkspaceConflict(execution.path, first.path, items, len(conflicts))


def _block(execution: Execution) -> MapWorkspace:
    block = execution.node.map.workspace if execution.node.map is not None else None
    return block or MapWorkspace.model_validate({})


def _policy(block: MapWorkspace) -> Policy:
    if block.merge == "prefer":
        return Policy.PREFER
    if block.merge == "namespace":
        return Policy.NAMESPACE
    return Policy.RESOLVER if block.on_conflict == "collect" else Policy.FAIL

"""What a node sees: the workspace that its scope began with, and on it what the nodes before it wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from decurion_ledger.workspace.edit import diffs, edited
from decurion_ledger.workspace.objects import Objects
from decurion_ledger.workspace.tree import Entry
from decurion_ledger.workspace.upload import Upload
from decurion_ledger.workspace.version import Limits, Version


class Layer(NamedTuple):
    """The workspace as a node left it, and which paths that node may write."""

    version: Version
    writes: Callable[[str], bool]


async def overlay(objects: Objects, base: Version, layers: Sequence[Layer], *, limits: Limits | None = None) -> Version:
    """`base` with what each layer wrote, a later one over those before it.

    Of two layers whose `writes` meet, the later must have begun with what the earlier had written: then each path is
    as the last that may write it left it. Raises as `edited` does.
    """
    layers = [layer for layer in layers if layer.version.root != base.root or len(layers) > 1]
    if not layers:
        return base
    await objects.learn(base, *(layer.version for layer in layers))
    changed = await diffs(objects, base.root, {layer.version.root for layer in layers})
    changes: dict[str, Entry | None] = {}
    for layer in layers:
        for path in [path for path in changes if layer.writes(path)]:
            del changes[path]
        found = changed[layer.version.root]
        changes |= {path: entry for path, entry in found.items() if layer.writes(path)}
    if not changes:
        return base
    if len(layers) == 1 and all(map(layers[0].writes, changed[layers[0].version.root])):
        return layers[0].version
    upload = Upload(objects, base)
    await upload.need(changes.values())
    return await upload.version(await edited(upload, base.root, changes, limits=limits))

"""Merging what many did to one workspace.

Base is the tree that all arms started from. Of each path the *distinct* outcomes that differ from base count:

| base | distinct changes over all arms | result |
|---|---|---|
| A | none | A |
| A | one value, in any number of arms | that value |
| A | removed in some, no other change | removed |
| A | edited in one, removed in another | conflict |
| A or absent | two or more different values | conflict |
| any | a file in one, a folder in another | conflict |
| absent | names that are the same on some systems | conflict |

The result depends on base, arms and their order, and not on who was done first. Design: "Workspaces".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from decurion_crds.canonical import Json
from decurion_ledger.workspace.edit import Changes, check_limits, diffs, edited, entry_at
from decurion_ledger.workspace.names import folded
from decurion_ledger.workspace.objects import Objects
from decurion_ledger.workspace.tree import Entry
from decurion_ledger.workspace.upload import Upload
from decurion_ledger.workspace.version import Limits, Version

CONFLICTS = ".conflicts"
"""The folder that what arms disagree on is put into, below the arm's name."""


class Policy(StrEnum):
    """What becomes of conflicts. `FAIL`: nothing is merged. `PREFER`: the first arm that changed the path wins.
    `NAMESPACE`: there are none, each arm's files stand in a folder of its own. `RESOLVER`: base stays, and each arm's
    files stand below `.conflicts`, for whoever resolves them.
    """

    FAIL = "fail"
    PREFER = "prefer"
    NAMESPACE = "namespace"
    RESOLVER = "resolver"


@dataclass(frozen=True, slots=True)
class Side:
    """One outcome of a conflict: the arms that agree on it, in order, and what they did at its path and below."""

    arms: tuple[int, ...]
    changes: Changes

    def to_json(self, path: str) -> dict[str, Json]:
        """`items` are the arms; `kind` is that of the file, `folder`, or `absent`."""
        told: dict[str, Json] = {"items": list(self.arms)}
        here = self.changes.get(path)
        if here is not None:
            return told | {"kind": here.kind, "size": here.size} | ({} if here.kind == "link" else {"sha256": here.ref})
        return told | {"kind": "folder" if any(entry is not None for entry in self.changes.values()) else "absent"}


@dataclass(frozen=True, slots=True)
class Conflict:
    """What arms disagree on: a path, or a folder with all that changed below it. `base` is what was there before."""

    path: str
    base: Entry | None
    sides: tuple[Side, ...]

    def to_json(self) -> dict[str, Json]:
        base: Json = None
        if self.base is not None:
            base = {"kind": "folder" if self.base.kind == "dir" else self.base.kind, "size": self.base.size}
        return {"path": self.path, "base": base, "sides": [side.to_json(self.path) for side in self.sides]}


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of a merge. `version` is None where conflicts forbid one. `conflicts` stand in order of their paths;
    with `PREFER` they are settled.
    """

    version: Version | None
    conflicts: tuple[Conflict, ...] = ()


async def merge(
    objects: Objects,
    base: Version,
    arms: Mapping[int, Version],
    policy: Policy = Policy.FAIL,
    *,
    names: Mapping[int, str] | None = None,
    disjoint: bool = False,
    limits: Limits | None = None,
) -> Merged:
    """The merge of `arms`, which stand in the order of their numbers, over `base`.

    `names` are those of the arms' folders, by default their numbers in five digits. With `disjoint` also the same
    change by two arms is a conflict. Raises `WorkspaceTooLarge` for a result beyond `limits`, `BadTree` for one that
    no workspace may hold, `BlobCorrupt`, or the store's error.
    """
    own = objects.apart(near=1 << 40)
    await own.learn(base, *arms.values())
    changed = await diffs(own, base.root, {arm.root for arm in arms.values()})
    table = {number: changed[arms[number].root] for number in sorted(arms) if changed[arms[number].root]}
    called = names or {number: f"{number:05d}" for number in table}
    if policy is Policy.NAMESPACE:
        changes = _apart(table, called)
        return Merged(await _version(own, base, changes, limits))
    merged, groups = _decided(table, disjoint=disjoint)
    conflicts = tuple([await _conflict(own, base, path, sides) for path, sides in sorted(groups.items())])
    if conflicts and policy is Policy.FAIL:
        return Merged(None, conflicts)
    for conflict in conflicts:
        if policy is Policy.PREFER:
            merged |= min(conflict.sides, key=lambda side: side.arms).changes
        else:
            for side in conflict.sides:
                merged |= _moved(side.changes, f"{CONFLICTS}/{called[side.arms[0]]}")
    return Merged(await _version(own, base, merged, limits), conflicts)


async def _version(objects: Objects, base: Version, changes: Changes, limits: Limits | None) -> Version:
    if not changes:
        if limits is not None:
            await check_limits(objects, base.root, limits)
        return base
    upload = Upload(objects, base)
    await upload.need(changes.values())
    return await upload.version(await edited(upload, base.root, changes, limits=limits))


def _apart(table: Mapping[int, Changes], names: Mapping[int, str]) -> dict[str, Entry | None]:
    """The files that each arm made, in a folder of its own; what it removed stays where it is."""
    changes: dict[str, Entry | None] = {}
    for number, made in table.items():
        changes |= _moved(made, names[number])
    return changes


def _moved(changes: Changes, folder: str) -> dict[str, Entry | None]:
    return {f"{folder}/{path}": entry for path, entry in changes.items() if entry is not None}


def _decided(
    table: Mapping[int, Changes], *, disjoint: bool
) -> tuple[dict[str, Entry | None], dict[str, tuple[Side, ...]]]:
    """What the arms agree on, and the sides of what they do not, by its path."""
    tops = _tops(table)
    owner: dict[str, int] = {}
    shared: set[str] = set()
    for number, changes in table.items():
        for path in changes:
            where = _group(path, tops)
            if owner.setdefault(where, number) != number:
                shared.add(where)
    merged: dict[str, Entry | None] = {}
    groups: dict[str, dict[int, dict[str, Entry | None]]] = defaultdict(lambda: defaultdict(dict))
    for number, changes in table.items():
        if not shared:
            merged |= changes
            continue
        for path, entry in changes.items():
            where = _group(path, tops)
            if where in shared:
                groups[where][number][path] = entry
            else:
                merged[path] = entry
    open_: dict[str, tuple[Side, ...]] = {}
    for path, by_arm in groups.items():
        sides: dict[frozenset[tuple[str, Entry | None]], list[int]] = {}
        for number, changes in by_arm.items():
            sides.setdefault(frozenset(changes.items()), []).append(number)
        if len(sides) == 1 and not disjoint:
            merged |= next(iter(by_arm.values()))
        else:
            open_[path] = tuple(Side(tuple(arms), by_arm[arms[0]]) for arms in sides.values())
    return merged, open_


def _tops(table: Mapping[int, Changes]) -> dict[str, str]:
    """Places where arms want a file and a folder, or names that are the same on some systems: folded path → path."""
    present = sorted({path for changes in table.values() for path, entry in changes.items() if entry is not None})
    spelled: dict[str, str] = {}
    tops: dict[str, str] = {}
    folders: dict[str, str] = {}

    def seen(path: str) -> str:
        """The folded path; each folder above is looked at once, before what is in it."""
        above, slash, name = path.rpartition("/")
        fold = folded(name)
        if slash:
            if above not in folders:
                folders[above] = seen(above)
            fold = f"{folders[above]}/{fold}"
        if spelled.setdefault(fold, path) != path:
            tops.setdefault(fold, spelled[fold])
        return fold

    files = {seen(path) for path in present}
    for fold in folders.values():
        if fold in files:
            tops.setdefault(fold, spelled[fold])
    return tops


def _group(path: str, tops: Mapping[str, str]) -> str:
    """The path that is decided on together with this one."""
    if tops:
        fold = ""
        for name in path.split("/"):
            fold = f"{fold}/{folded(name)}" if fold else folded(name)
            if fold in tops:
                return tops[fold]
    return path


async def _conflict(objects: Objects, base: Version, path: str, sides: tuple[Side, ...]) -> Conflict:
    return Conflict(path, await entry_at(objects, base.root, path), tuple(sorted(sides, key=lambda side: side.arms)))

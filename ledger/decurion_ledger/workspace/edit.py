"""Reading and changing trees: all files, what differs, and a tree with some files changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from decurion_ledger.errors import BadTree, WorkspaceTooLarge
from decurion_ledger.workspace.names import check_link, check_path, folded
from decurion_ledger.workspace.objects import Objects
from decurion_ledger.workspace.pack import MAX_OBJECT, Blob
from decurion_ledger.workspace.tree import (
    EMPTY_ROOT,
    MAX_ENTRIES,
    Entry,
    Tree,
    encode_tree,
    folder_entry,
    tree_name,
)
from decurion_ledger.workspace.upload import Upload
from decurion_ledger.workspace.version import Limits

Changes: TypeAlias = Mapping[str, Entry | None]
"""Path → the file that stands there, None where none does any more."""
_Pair: TypeAlias = tuple[str, str, Entry | None, Entry | None]
"""A tree's root, a path in it, and the folders there before and after."""


async def totals(objects: Objects, root: str) -> Entry:
    """How much a tree holds, as the entry of a folder. Raises `BlobCorrupt` and `BadTree`."""
    return folder_entry((await objects.trees([root]))[root], root)


async def check_limits(objects: Objects, root: str, limits: Limits) -> None:
    """Raises `WorkspaceTooLarge`."""
    whole = await totals(objects, root)
    if whole.files > limits.files:
        raise WorkspaceTooLarge("files", whole.files, limits.files)
    if whole.size > limits.bytes:
        raise WorkspaceTooLarge("bytes", whole.size, limits.bytes)


async def files_of(
    objects: Objects, root: str, *, limits: Limits | None = None, folder: Callable[[str], bool] = lambda path: True
) -> dict[str, Entry]:
    """The files and links of a tree by path, in order of their paths; of its folders only those that `folder` wants.

    Raises `WorkspaceTooLarge` before it has read more than `limits` allow, `BlobCorrupt` and `BadTree`.
    """
    bounds = limits or Limits()
    await check_limits(objects, root, bounds)
    found: dict[str, Entry] = {}
    level = [("", (await objects.trees([root]))[root])]
    depth = 0
    while level:
        if depth > bounds.depth:
            raise WorkspaceTooLarge("folders above a file", depth, bounds.depth)
        below: list[tuple[str, Entry]] = []
        for prefix, tree in level:
            for name, entry in tree.items():
                path = f"{prefix}{name}"
                if entry.kind == "dir":
                    if folder(path):
                        below.append((path, entry))
                    continue
                if entry.kind == "link":
                    check_link(path, entry.ref)
                found[path] = entry
        trees = await objects.folders(entry for _, entry in below)
        level = [(f"{path}/", trees[entry.ref]) for path, entry in below]
        depth += 1
    return dict(sorted(found.items()))


async def entry_at(objects: Objects, root: str, path: str) -> Entry | None:
    """The file, link or folder at a path, or None."""
    tree = (await objects.trees([root]))[root]
    *folders, name = path.split("/")
    for folder in folders:
        entry = tree.get(folder)
        if entry is None or entry.kind != "dir":
            return None
        tree = (await objects.folders([entry]))[entry.ref]
    return tree.get(name)


async def diffs(objects: Objects, base: str, roots: Iterable[str]) -> dict[str, dict[str, Entry | None]]:
    """What each tree has that `base` has not, by its root: path → its file, None where it has none any more.

    Folders that are equal are not read.
    """
    found: dict[str, dict[str, Entry | None]] = {root: {} for root in roots}
    whole = Entry("dir", 0, base)
    level: list[_Pair] = [(root, "", whole, Entry("dir", 0, root)) for root in found if root != base]
    while level:
        refs = {e.ref for _, _, before, after in level for e in (before, after) if e is not None}
        trees = await objects.trees(refs)
        below: list[_Pair] = []
        for root, prefix, old, new in level:
            before = trees[old.ref] if old is not None else {}
            after = trees[new.ref] if new is not None else {}
            _differ(found[root], below, root, prefix, before, after)
        level = below
    return found


def _differ(
    found: dict[str, Entry | None],
    below: list[_Pair],
    root: str,
    prefix: str,
    before: Tree,
    after: Tree,
) -> None:
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        path = f"{prefix}{name}"
        old_dir = old if old is not None and old.kind == "dir" else None
        new_dir = new if new is not None and new.kind == "dir" else None
        if old_dir is not None or new_dir is not None:
            below.append((root, f"{path}/", old_dir, new_dir))
        if new is not None and new_dir is None:
            found[path] = new
        elif old is not None and old_dir is None:
            found[path] = None


@dataclass(slots=True)
class _Place:
    """What changes at one place of a tree: the file there, and what is below."""

    here: tuple[Entry | None] | None = None
    below: dict[str, _Place] = field(default_factory=dict)


async def edited(upload: Upload, root: str, changes: Changes, *, limits: Limits | None = None) -> str:
    """The root of the tree `root` with these changes; its folders are added to `upload`.

    Raises `BadTree` for paths that no tree may have, or that cannot stand beside what is there, and
    `WorkspaceTooLarge`.
    """
    top = _Place()
    for path, entry in changes.items():
        names = check_path(path)
        if entry is not None and entry.kind == "link":
            check_link(path, entry.ref)
        if limits is not None and len(names) - 1 > limits.depth:
            raise WorkspaceTooLarge("folders above a file", len(names) - 1, limits.depth)
        place = top
        for name in names:
            place = place.below.setdefault(name, _Place())
        place.here = (entry,)
    tree = await _folder(upload, "", root, top) if top.below else None
    after = root if tree is None else tree.ref
    if limits is not None:
        await check_limits(upload.objects, after, limits)
    return after


async def _folder(upload: Upload, path: str, ref: str | None, place: _Place) -> Entry:
    """The entry of a folder with its changes."""
    objects = upload.objects
    tree = dict((await objects.trees([ref]))[ref]) if ref is not None else {}
    added: list[str] = []
    for name, change in place.below.items():
        old = tree.get(name)
        folder = old if old is not None and old.kind == "dir" else None
        if change.below:
            folder = await _folder(upload, f"{path}{name}/", folder.ref if folder is not None else None, change)
        entry = _stands(f"{path}{name}", old, folder if folder is not None and folder.files else None, change)
        if entry is None:
            tree.pop(name, None)
        else:
            tree[name] = entry
            if old is None:
                added.append(name)
    if added:
        _check_added(path, tree, added)
    if len(tree) > MAX_ENTRIES:
        raise WorkspaceTooLarge(f"files and folders in {path or 'its root'}", len(tree), MAX_ENTRIES)
    raw = encode_tree(tree)
    if len(raw) > MAX_OBJECT:
        raise WorkspaceTooLarge(f"bytes of names in {path or 'its root'}", len(raw), MAX_OBJECT)
    name = tree_name(raw)
    if name != EMPTY_ROOT:
        await upload.add(Blob(name, "tree", raw))
    return folder_entry(tree, name)


def _stands(path: str, old: Entry | None, folder: Entry | None, change: _Place) -> Entry | None:
    """What stands at a place in the end. Raises `BadTree` where a file and a folder would."""
    if change.here is None:
        if folder is not None and old is not None and old.kind != "dir":
            raise BadTree(path, "a folder cannot stand where a file is; remove that first")
        return folder if folder is not None or change.below else old
    (entry,) = change.here
    if entry is None:
        return folder
    if folder is not None:
        raise BadTree(path, "a file cannot stand where a folder with files is; remove these first")
    return entry


def _check_added(path: str, tree: Tree, added: list[str]) -> None:
    spelled: dict[str, list[str]] = {}
    for name in tree:
        spelled.setdefault(folded(name), []).append(name)
    for name in added:
        others = [other for other in spelled[folded(name)] if other != name]
        if others:
            raise BadTree(f"{path}{name}", f"on some systems it is the same name as {others[0]!r}; rename one")

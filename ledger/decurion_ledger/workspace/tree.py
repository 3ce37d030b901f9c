"""Trees: folders as objects that are named by what is in them.

A folder is a sorted list of entries. A file is named by the SHA-256 of its content, whatever form that is kept in; a
folder by the digest of its own bytes. So equal trees have equal roots, wherever and in whatever order they were made.
Folders exist only as far as there are files in them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import orjson

from decurion_crds.canonical import canonical, digest
from decurion_ledger.errors import BadTree, BlobCorrupt
from decurion_ledger.workspace.names import MAX_PATH, folded, name_fault

Kind = Literal["file", "exec", "link", "dir"]
TREE_VERSION = 0
MAX_ENTRIES = 200_000
"""Entries of one folder."""
_HASH = re.compile(r"[0-9a-f]{64}")
_KINDS = frozenset({"file", "exec", "link", "dir"})


class Entry(NamedTuple):
    """A file, a link or a folder. `ref` is the hash of its content, of a link its target. `size` and `files` of a
    folder are those of all that is below it.
    """

    kind: Kind
    size: int
    ref: str
    files: int = 1


Tree: TypeAlias = dict[str, Entry]


def encode_tree(tree: Mapping[str, Entry]) -> bytes:
    """The canonical bytes of a folder: entries sorted by the bytes of their names."""
    rows: list[list[Any]] = []
    for name in sorted(tree, key=str.encode):
        kind, size, ref, files = tree[name]
        rows.append([name, kind, size, ref, files] if kind == "dir" else [name, kind, size, ref])
    return canonical({"entries": rows, "v": TREE_VERSION})


def tree_name(raw: bytes) -> str:
    """What a folder with these canonical bytes is called."""
    return digest("tree/v0", raw)


def file_name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def decode_tree(raw: bytes, where: str) -> Tree:
    """The folder of its canonical bytes. Raises `BlobCorrupt`, naming `where`, for what is none, and `BadTree` for
    names that no workspace may hold.
    """
    try:
        held = orjson.loads(raw)
        if held.keys() != {"entries", "v"} or held["v"] != TREE_VERSION or len(held["entries"]) > MAX_ENTRIES:
            raise ValueError("it is of another format")
        tree = {row[0]: _entry(row) for row in held["entries"]}
        if encode_tree(tree) != raw:
            raise ValueError("its bytes are not canonical")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        raise BlobCorrupt(where, f"it is no folder of a workspace ({e})") from e
    check_names(tree)
    return tree


def _entry(row: list[Any]) -> Entry:
    name, kind, size, ref, *more = row
    files = more[0] if more else 1
    numbers = isinstance(size, int) and isinstance(files, int) and size >= 0 and files >= 1
    if not isinstance(name, str) or kind not in _KINDS or not numbers or (kind == "dir") is not (len(more) == 1):
        raise ValueError("an entry is malformed")
    if not isinstance(ref, str) or (kind == "link" and len(ref) > MAX_PATH):
        raise ValueError("a link is malformed")
    if kind != "link" and not _HASH.fullmatch(ref):
        raise ValueError("a hash is malformed")
    return Entry(kind, size, ref, files)


def check_names(names: Iterable[str], *, below: str = "") -> None:
    """That these names may stand in one folder. Raises `BadTree`."""
    seen: dict[str, str] = {}
    for name in names:
        fault = name_fault(name)
        if fault is not None:
            raise BadTree(f"{below}{name}"[:200], fault)
        other = seen.setdefault(folded(name), name)
        if other != name:
            raise BadTree(f"{below}{name}"[:200], f"on some systems it is the same name as {other!r}; rename one")


def folder_entry(tree: Mapping[str, Entry], name: str) -> Entry:
    """The entry of a folder that is called `name`."""
    size = sum(entry.size for entry in tree.values())
    files = sum(entry.files for entry in tree.values())
    return Entry("dir", size, name, files)


EMPTY_TREE = encode_tree({})
EMPTY_ROOT = tree_name(EMPTY_TREE)
"""The root of a workspace without files."""

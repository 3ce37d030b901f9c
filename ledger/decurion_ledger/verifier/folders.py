"""Folders of workspaces, read on their own: what is in one, and whether any system could hold it."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, NamedTuple

import orjson

from decurion_ledger.verifier.form import canonical

_HASH = re.compile(r"[0-9a-f]{64}")
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f/\\\\]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[1-9]|lpt[1-9]) *(\..*)?", re.IGNORECASE | re.DOTALL)
_MOST_ENTRIES = 200_000


class Lead(NamedTuple):
    """A file or folder that a folder holds: its kind (`file` or `tree`), bytes, and files."""

    name: str
    kind: str
    size: int
    files: int


class Folder(NamedTuple):
    """What a folder leads to, what it holds in all, and how many folders must stand above it for its links to stay
    inside.
    """

    leads: tuple[Lead, ...]
    size: int
    files: int
    above: int


def folder(raw: bytes) -> Folder:
    """Raises `ValueError`, `KeyError`, `TypeError`, `IndexError` or `AttributeError` for what no writer leaves."""
    held = orjson.loads(raw)
    rows = held["entries"]
    if held.keys() != {"entries", "v"} or held["v"] != 0 or len(rows) > _MOST_ENTRIES or canonical(held) != raw:
        raise ValueError("it is no folder in canonical form")
    names = [row[0] for row in rows]
    if [name.encode() for name in names] != sorted({name.encode() for name in names}):
        raise ValueError("its names are not in order, or not different")
    if len({_folded(name) for name in names}) < len(names):
        raise ValueError("two of its names are the same on some systems")
    leads, size, files, above = [], 0, 0, 0
    for row in rows:
        fault = name_fault(row[0]) or _row_fault(row)
        if fault:
            raise ValueError(f"the entry {row[0]!r:.80} {fault}")
        _, kind, bytes_, ref, *more = row
        size, files = size + bytes_, files + (more[0] if more else 1)
        if kind == "link":
            above = max(above, _above(ref))
        else:
            leads.append(Lead(ref, "tree" if kind == "dir" else "file", bytes_, more[0] if more else 1))
    return Folder(tuple(leads), size, files, above)


def name_fault(name: str) -> str:
    if name in ("", ".", ".."):
        return "is no name"
    if _NOT_IN_NAMES.search(name) or name[-1] in ". " or len(name.encode()) > 255:
        return "has a name that not every system can hold"
    return "has the name of a device" if _DEVICE.fullmatch(name) else ""


def _row_fault(row: list[Any]) -> str:
    _, kind, size, ref, *more = row
    numbers = [size, *more]
    if kind not in ("file", "exec", "link", "dir") or len(more) != (kind == "dir"):
        return "is of no kind"
    if any(type(number) is not int or number < 0 for number in numbers) or 0 in more or not isinstance(ref, str):
        return "is malformed"
    if kind != "link":
        return "" if _HASH.fullmatch(ref) else "leads to what is no hash"
    return "" if size == len(ref.encode()) <= 1024 and _stays(ref) else "is a link that leads out"


def _stays(target: str) -> bool:
    """Whether a link leads to a plain place, as far as can be said without knowing where it lies."""
    names = target.split("/")[_above(target) :]
    return names == ["."] or (bool(names) and not any(map(name_fault, names))) or (not names and bool(target))


def _above(target: str) -> int:
    names = target.split("/")
    return next((i for i, name in enumerate(names) if name != ".."), len(names))


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())

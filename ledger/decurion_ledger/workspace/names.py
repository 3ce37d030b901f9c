"""Names and paths of files in a workspace: what may stand in a tree, so that every system can hold it and nothing of it
can lie outside.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from decurion_ledger.errors import BadTree

MAX_NAME = 255
"""Bytes of one name, as most file systems have it."""
MAX_PATH = 1024
"""Bytes of a whole path."""
MAX_DEPTH = 64
"""Folders above a file."""

_PLAIN = re.compile(r"[A-Za-z0-9_+@=,~-]([A-Za-z0-9._+@=,~-]{0,100}[A-Za-z0-9_+@=,~-])?")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f/\\\\]")
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"com{i}" for i in range(1, 10)), *(f"lpt{i}" for i in range(1, 10))]
)


@lru_cache(maxsize=1 << 16)
def name_fault(name: str) -> str | None:
    """Why a file or folder may not have this name, or None."""
    if _PLAIN.fullmatch(name) and name.partition(".")[0].lower() not in _DEVICES:
        return None
    if name in ("", ".", ".."):
        return "a part of a path is neither empty nor one or two dots"
    if _CONTROL.search(name):
        return "a name has no slash, backslash, NUL or other control character"
    if name[-1] in ". ":
        return "a name does not end in a dot or a blank: some systems drop these"
    if name.partition(".")[0].rstrip(" ").lower() in _DEVICES:
        return "it is the name of a device on some systems"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "a name is UTF-8"
    return f"a name has at most {MAX_NAME} bytes" if size > MAX_NAME else None


def check_path(path: str) -> tuple[str, ...]:
    """The names of a path relative to the workspace. Raises `BadTree`."""
    if path.startswith("/"):
        raise BadTree(path[:200], "a path in a workspace is relative; remove the slash in front")
    names = tuple(path.split("/"))
    for name in names:
        fault = name_fault(name)
        if fault is not None:
            raise BadTree(path[:200], fault)
    if len(names) > MAX_DEPTH + 1:
        raise BadTree(path[:200], f"a file lies in at most {MAX_DEPTH} folders")
    if len(path.encode()) > MAX_PATH:
        raise BadTree(path[:200], f"a path has at most {MAX_PATH} bytes")
    return names


@lru_cache(maxsize=1 << 16)
def folded(name: str) -> str:
    """What is the same for names that are one and the same on a system that ignores case or the form of letters."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def check_link(path: str, target: str) -> None:
    """That a symbolic link at `path` stays inside. Raises `BadTree`.

    Only leading `..` are allowed: behind the name of another link they would lead anywhere.
    """
    names = target.split("/")
    up = 0
    while names and names[0] == "..":
        names.pop(0)
        up += 1
    if target.startswith("/") or up > path.count("/"):
        raise BadTree(path[:200], f"its link leads out of the workspace, to {target[:200]!r}")
    if not names and up:
        return
    for name in names if names != ["."] else ():
        fault = name_fault(name)
        if fault is not None:
            raise BadTree(path[:200], f"its link leads to {target[:200]!r}: {fault}, and .. stands in front only")

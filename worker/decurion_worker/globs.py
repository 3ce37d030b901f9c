"""Globs over keys: `*`, `?` and `[…]` stand for characters of one name, `**` for any number of folders."""

from __future__ import annotations

import fnmatch
import re

_WILD = re.compile(r"[*?\[]")


class Glob:
    """A pattern for whole keys, such as `2024/**/*.txt`. `**` is a folder of its own: elsewhere it is like `*`."""

    def __init__(self, pattern: str) -> None:
        *folders, name = pattern.split("/")
        if name == "**":
            folders, name = [*folders, name], "*"
        parts = [r"(?:[^/]+/)*" if part == "**" else f"{_one_name(part)}/" for part in folders]
        self._matches = re.compile("".join(parts) + _one_name(name), re.DOTALL).fullmatch
        self.fixed = pattern[: found.start()] if (found := _WILD.search(pattern)) else pattern
        """What all keys that fit begin with."""

    def fits(self, key: str) -> bool:
        return self._matches(key) is not None


def _bare(translated: str) -> str:
    """`[abc]` out of `(?s:[abc])` and the sign for the end of the text."""
    return translated[len("(?s:") : -len(r")\Z")]


def _one_name(pattern: str) -> str:
    """The expression for one part between slashes."""
    found = ""
    for piece in re.split(r"(\*+|\?|\[!?\]?[^\]/]*\])", pattern):
        if piece.startswith("*"):
            found += "[^/]*"
        elif piece == "?":
            found += "[^/]"
        elif piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
            found += f"(?!/){_bare(fnmatch.translate(piece))}"
        else:
            found += re.escape(piece)
    return found

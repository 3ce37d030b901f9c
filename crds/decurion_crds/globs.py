"""Globs over keys: `*`, `?` and `[…]` stand for characters of one name, `**` for any number of folders."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

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


@dataclass(frozen=True)
class Globs:
    """Several patterns: a path fits when it fits one of them."""

    patterns: tuple[str, ...]

    @cached_property
    def _globs(self) -> tuple[Glob, ...]:
        return tuple(Glob(pattern) for pattern in self.patterns)

    def fits(self, path: str) -> bool:
        return any(glob.fits(path) for glob in self._globs)

    @property
    def words(self) -> str:
        return ", ".join(self.patterns) or "nothing"


ALL = Globs(("**",))


def overlap(one: str, other: str) -> bool:
    """Whether a path of one pattern can be a path of the other, or lie below one, where case does not matter."""
    return _meet(tuple(_parts(one)), tuple(_parts(other)))


def _parts(pattern: str) -> list[str]:
    parts = pattern.lower().split("/")
    return [*parts, "*"] if parts[-1] == "**" else parts


@lru_cache(maxsize=4096)
def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if not one or not other:
        return True  # what one names lies in what the other names
    if one[0] == "**":
        return _meet(one[1:], other) or _meet(one, other[1:])
    if other[0] == "**":
        return _meet(one, other[1:]) or _meet(one[1:], other)
    return _names_meet(one[0], other[0]) and _meet(one[1:], other[1:])


_PIECE = re.compile(r"\*+|\?|\[!?\]?[^\]/]*\]|.", re.DOTALL)


def _names_meet(one: str, other: str) -> bool:
    """Whether one name fits both patterns."""
    return _pieces_meet(tuple(_PIECE.findall(one)), tuple(_PIECE.findall(other)))


@lru_cache(maxsize=4096)
def _pieces_meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if not one or not other:
        return all(piece.startswith("*") for piece in (*one, *other))
    if one[0].startswith("*"):
        return _pieces_meet(one[1:], other) or _pieces_meet(one, other[1:])
    if other[0].startswith("*"):
        return _pieces_meet(one, other[1:]) or _pieces_meet(one[1:], other)
    return _letters_meet(one[0], other[0]) and _pieces_meet(one[1:], other[1:])


def _letters_meet(one: str, other: str) -> bool:
    if len(one) > 1 and len(other) > 1:
        return True  # two sets of letters: taken as meeting
    if len(other) > 1:
        one, other = other, one
    return one == "?" or other == "?" or one == other or (len(one) > 1 and Glob(one).fits(other))


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

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
    """Whether a path of one pattern can be a path of the other, or lie below one, where case does not matter.

    Takes time by the product of the lengths.
    """
    return not apart(one, other) and _meet(_parts(one), _parts(other))


def apart(one: str, other: str) -> bool:
    """Whether what stands before the first wild card says already that no path is of both; cheap."""
    first, second = _fixed(one), _fixed(other)
    return not first.startswith(second) and not second.startswith(first)


@lru_cache(maxsize=4096)
def _fixed(pattern: str) -> str:
    """What every path begins with that fits, in small letters; a pattern without wild cards ends with a slash."""
    found = _WILD.search(pattern)
    return (pattern[: found.start()] if found else f"{pattern}/").lower()


def _parts(pattern: str) -> tuple[str, ...]:
    parts = pattern.lower().split("/")
    return (*parts, "*") if parts[-1] == "**" else tuple(parts)


def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Row by row from the ends: `below[j]` says whether what comes behind meets `other[j:]`."""
    below = [True] * (len(other) + 1)  # what one names lies in what the other names
    for part in reversed(one):
        here = [True] * (len(other) + 1)
        for j in reversed(range(len(other))):
            if part == "**" or other[j] == "**":
                here[j] = below[j] or here[j + 1]
            else:
                here[j] = below[j + 1] and _names_meet(part, other[j])
        below = here
    return below[0]


_PIECE = re.compile(r"\*+|\?|\[!?\]?[^\]/]*\]|.", re.DOTALL)


@lru_cache(maxsize=4096)
def _pieces(name: str) -> tuple[str, ...]:
    return tuple(_PIECE.findall(name))


@lru_cache(maxsize=4096)
def _names_meet(one: str, other: str) -> bool:
    """Whether one name fits both patterns."""
    if one == other or "*" in (one, other):
        return True
    ends = [name[max(name.rfind(sign) for sign in "*?]") + 1 :] for name in (one, other)]
    if not ends[0].endswith(ends[1]) and not ends[1].endswith(ends[0]):
        return False
    first, second = _pieces(one), _pieces(other)
    below = [False] * (len(second) + 1)
    below[len(second)] = True
    for j in reversed(range(len(second))):
        below[j] = below[j + 1] and second[j].startswith("*")
    for piece in reversed(first):
        star = piece.startswith("*")
        here = [False] * (len(second) + 1)
        here[len(second)] = star and below[len(second)]
        for j in reversed(range(len(second))):
            if star or second[j].startswith("*"):
                here[j] = below[j] or here[j + 1]
            else:
                here[j] = below[j + 1] and _letters_meet(piece, second[j])
        below = here
    return below[0]


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

"""Globs: which paths fit, and whether two can name the same file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decurion_crds.globs import Glob, overlap

MEET = [
    ("a", "a"),
    ("src/**", "src/a/b.py"),
    ("**", "x"),
    ("**/*.py", "src/**"),
    ("out/*/a", "out/b/*"),
    ("a", "a/b"),
    ("src", "src/**"),
    ("*.py", "test_*"),
    ("a?c", "abc"),
    ("[ab]x", "bx"),
    ("Src/**", "src/a"),
]
APART = [
    ("a", "b"),
    ("src/**", "docs/**"),
    ("*.py", "*.md"),
    ("out/1/**", "out/2/**"),
    ("src/*.py", "src/*.md"),
    ("a?", "abc"),
    ("[ab]x", "cx"),
    ("tests/**", "test/**"),
]


@pytest.mark.parametrize(("one", "other"), MEET)
def test_globs_that_meet(one: str, other: str) -> None:
    assert overlap(one, other)
    assert overlap(other, one)


@pytest.mark.parametrize(("one", "other"), APART)
def test_globs_that_lie_apart(one: str, other: str) -> None:
    assert not overlap(one, other)
    assert not overlap(other, one)


PART = st.sampled_from(["a", "b", "*", "a*", "*b", "?", "**", "[ab]", "ab"])
GLOB = st.lists(PART, min_size=1, max_size=3).map("/".join)
PATH = st.lists(st.sampled_from(["a", "b", "ab", "ba"]), min_size=1, max_size=3).map("/".join)


@settings(max_examples=300, deadline=None)
@given(one=GLOB, other=GLOB, path=PATH, below=st.sampled_from(["", "/a", "/a/b"]))
def test_what_fits_both_is_never_said_to_lie_apart(one: str, other: str, path: str, below: str) -> None:
    if Glob(one).fits(path) and Glob(other).fits(path + below):
        assert overlap(one, other)

"""What is drawn of a random graph: nodes and templates, as lines of YAML."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Template:
    """One template as YAML lines. `wide`: its output is padded, so that a map of it may be a wide list. `files` are
    the folders that it writes.
    """

    name: str
    depth: int
    fallible: bool = False
    wide: bool = False
    files: frozenset[str] = frozenset()
    text: str = ""


@dataclass
class Made:
    """One node. `reads` is an integer expression over its output, which may be None, `gives` one over an output that
    there is; `files` are the folders that it writes.
    """

    name: str
    reads: str
    lines: list[str]
    files: frozenset[str] = frozenset()
    gives: str = "output.v"

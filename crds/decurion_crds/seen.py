"""What one node sees of the scope around it, with types: for whoever gives it values in place of a run's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decurion_crds.blocks import Schema


@dataclass(frozen=True, slots=True)
class Seen:
    """`names` are those of the node's `with` and `load`, with the schema of everything where a type is not known.
    `absent` are the paths (`nodes.x`, `state.c`) that may be None when it reads them. `run` is the schema of `run`.
    """

    names: Mapping[str, Schema]
    absent: frozenset[str]
    run: Schema

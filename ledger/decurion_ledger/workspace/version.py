"""Versions: a root, and where what it names is kept."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from decurion_crds.canonical import Json
from decurion_ledger.workspace.names import MAX_DEPTH
from decurion_ledger.workspace.tree import EMPTY_ROOT

INLINE = 8 * 1024
"""Bytes of objects that stand in the record itself, in place of a pack of their own."""
MAX_PACKS = 32
"""Packs of one version, above which one index is written of them all."""


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a workspace. `root` alone says what is in it; all that it names is in `packs` or `inline`, which is
    the bytes of a pack.
    """

    root: str = EMPTY_ROOT
    packs: tuple[str, ...] = ()
    inline: bytes = b""

    def to_json(self) -> dict[str, Json]:
        told: dict[str, Json] = {"root": self.root}
        if self.packs:
            told["packs"] = list(self.packs)
        if self.inline:
            told["inline"] = base64.b64encode(self.inline).decode()
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Json]) -> Version:
        return cls(told["root"], tuple(told.get("packs", ())), base64.b64decode(told.get("inline", "")))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a workspace may hold: `bytes` and `files` in all, `depth` folders above a file."""

    bytes: int = 1024 * 1024 * 1024
    files: int = 100_000
    depth: int = MAX_DEPTH


EMPTY = Version()

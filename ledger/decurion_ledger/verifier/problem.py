"""What the verifier says: findings, each with the invariant that is broken, and who signed what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INVARIANTS: Mapping[str, int] = {
    "SLOT-MISSING": 1,
    "FOREIGN-OBJECT": 1,
    "TRUNCATED": 1,
    "FINAL": 1,
    "FINAL-MISSING": 1,
    "SEGMENT-HASH": 2,
    "SEGMENT-FORMAT": 2,
    "WRONG-PLACE": 2,
    "CHAIN": 2,
    "MERKLE-ROOT": 2,
    "INDEX": 2,
    "RECORD-FORMAT": 2,
    "NOT-CANONICAL": 2,
    "GENESIS": 2,
    "EPOCH": 3,
    "OWNER": 3,
    "DUPLICATE-PATH": 4,
    "ROLLED-BACK": 5,
    "BEYOND-CLOSE": 6,
    "CORE-HASH": 7,
    "PARENT": 7,
    "ARMS": 7,
    "STATE": 8,
    "DERIVED": 8,
    "ISOLATION": 10,
    "VALUE-HASH": 11,
    "BLOB": 11,
    "BLOB-MISSING": 11,
    "PACK": 11,
    "FILES": 11,
    "LIST": 11,
    "SIGNATURE": 15,
    "CERTIFICATE": 15,
    "UNSIGNED": 15,
    "ANCHOR": 15,
    "PROVENANCE": 15,
    "PROVENANCE-MISSING": 15,
}
"""The codes of findings, each with the number of the invariant that it breaks; they are listed in `docs/trust.md`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding. `code` is stable, `where` the key of the object, `message` one sentence. `slot` is that of a
    segment, `path` that of a record, where the finding is about one.
    """

    code: str
    where: str
    message: str
    path: str = ""

    @property
    def invariant(self) -> int:
        return INVARIANTS[self.code]

    @property
    def slot(self) -> int | None:
        folder, _, name = self.where.rpartition("/")
        return int(name) if folder.endswith("/log") and name.isascii() and name.isdigit() else None

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "invariant": self.invariant,
            "slot": self.slot,
            "path": self.path or None,
            "object": self.where,
            "message": self.message,
        }

    def __str__(self) -> str:
        place = self.where if self.slot is None else f"slot {self.slot}"
        return f"{place}{self.path and f' {self.path}'} [{self.code}, invariant {self.invariant}] {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What was found of one run. No problem is the proof.

    `slots` is the number of segments, `head` the hash of the last one, `root` the Merkle root over all of them,
    `closed` whether the log has its close record, `anchors` how many anchors there were to compare with.
    `signed` counts the segments with a signature, `issuers` are the root keys, in hex, whose holders appointed their
    writers; they are those that were asked for only where a root key was given.
    """

    problems: list[Problem]
    slots: int
    head: str
    root: str
    closed: bool
    signed: int
    issuers: tuple[str, ...]
    anchors: int = 0

    @property
    def signature(self) -> str:
        """`signed`, `unsigned`, or `partly signed`."""
        if self.signed == 0:
            return "unsigned"
        return "signed" if self.signed == self.slots else "partly signed"

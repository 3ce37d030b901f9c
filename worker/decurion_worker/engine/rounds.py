"""Rounds of loops: what is known of one that ended, and what is kept of those before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decurion_crds.canonical import Json
from decurion_ledger import Record


@dataclass(frozen=True, slots=True)
class Best:
    """The best round so far, its score and its output, and the hash of the record that ended it."""

    round: int
    score: float
    output: Json
    core: str
    files: Json = None

    def to_json(self) -> dict[str, Json]:
        """As it stands in the ledger, where the output is that of the round."""
        return {"round": self.round, "score": self.score}


@dataclass(frozen=True, slots=True)
class Round:
    """A round that ended well: its number from 1, its input, its output, the hash of the record that ended it, and the
    best one of the rounds before it.
    """

    number: int
    input: Mapping[str, Json]
    output: Json
    core: str
    best: Best | None = None
    files: Json = None

    def to_json(self) -> dict[str, Json]:
        """As it goes to a runner, wide values by reference."""
        best = self.best
        told = {
            "round": self.number,
            "input": dict(self.input),
            "output": self.output,
            "core": self.core,
            "files": self.files,
        }
        if best is not None:
            told["best"] = {**best.to_json(), "output": best.output, "core": best.core, "files": best.files}
        return told

    @classmethod
    def of(cls, told: Mapping[str, Json]) -> Round:
        best = Best(**told["best"]) if "best" in told else None
        return cls(told["round"], told["input"], told["output"], told["core"], best, told["files"])


def forget_rounds(held: dict[str, Record], begun: str, *, best: object) -> None:
    """Of the records `held` by path, drop what the round `begun` (`refine@003`) no longer needs of those before it: all
    but the end of the `best` one, which it may return. So what is held does not grow with the rounds.
    """
    loop, _, number = begun.rpartition("@")
    before = int(number) - 1
    inside, ends = f"{loop}@{before:03d}/", f"{loop}@"
    keep = {f"{loop}@{best:03d}!output", f"{loop}@{number}!open"} if isinstance(best, int) else {f"{begun}!open"}
    for path in [path for path in held if path.startswith((inside, ends))]:
        if path.startswith(inside) or ("/" not in path[len(ends) :] and path not in keep):
            del held[path]

"""Why a node, a branch or a run failed: a value that travels from the runner to the ledger, the status and the join."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """`klass` is the branch of the error tree, `code` one class of it; `path` is where it happened."""

    path: str
    klass: str
    code: str
    message: str

    @property
    def node(self) -> str:
        return self.path.rsplit("/", 1)[-1].split("!", 1)[0].split("[", 1)[0].split("@", 1)[0]

"""Why a node, a branch or a run failed: a value that travels from the runner to the ledger, the status and the join."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

HIDDEN = "it works with something sensitive, so what it said is encrypted: decurion ledger show --reveal"
"""The message of a failure that may quote something sensitive."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`klass` is the branch of the error tree, `code` one class of it; `path` is where it happened."""

    path: str
    klass: str
    code: str
    message: str
    said: str = field(default="", repr=False)
    """What was said, where `message` stands in its place; it is encrypted, or lost."""

    @property
    def node(self) -> str:
        return self.path.rsplit("/", 1)[-1].split("!", 1)[0].split("[", 1)[0].split("@", 1)[0]


def unsaid(failure: Failure) -> Failure:
    """`failure` with a message that says nothing sensitive."""
    return failure if failure.message == HIDDEN else replace(failure, message=HIDDEN, said=failure.message)

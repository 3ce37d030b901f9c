"""What a run asks people, and what they answered: each request from its record to the decision of its node.

A request is named by the nonce of its record, so that nobody can answer before it was asked. Every answer is a record;
the first that decides, decides. Pure: the time, where it decides, comes in as a `timer_fired`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decurion_crds.canonical import Json
from decurion_crds.compiled import ApprovalBlock, Node
from decurion_ledger import Record
from decurion_worker.errors import ApprovalTimeout, Rejected
from decurion_worker.failure import Failure

if TYPE_CHECKING:
    from decurion_worker.engine.scopes import ScopeState

MAX_MESSAGE = 1024
"""Characters of a message that are kept beside its request; the record has it whole."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request came to: the node's output, or its failure. `by` is who decided, empty for the time."""

    by: str
    at: str
    output: dict[str, Json] | None = None
    failure: Failure | None = None


@dataclass(slots=True, eq=False)
class Asked:
    """A request that is open. `core` is the hash of its record, `request` its nonce, `digest` that of what was shown.

    `approved` are those who approved, in order; `due` is when its time is over (RFC 3339), once that is in the log.
    """

    path: str
    home: ScopeState
    node: Node
    core: str
    request: str
    digest: str
    message: str
    approved: list[str] = field(default_factory=list)
    due: str | None = None
    outcome: Outcome | None = None

    @property
    def block(self) -> ApprovalBlock:
        if self.node.approval is None:
            raise TypeError(f"{self.path} is no approval")
        return self.node.approval

    @property
    def seconds(self) -> float | None:
        """How long it waits, None without an end."""
        return self.block.timeout_seconds


class Approvals:
    """The requests of one run. `answers` maps the ids of all recorded answers to the nonce that each named."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self._open: dict[str, Asked] = {}
        self._named: dict[str, Asked] = {}
        self._decided: dict[str, tuple[str, str]] = {}

    def __bool__(self) -> bool:
        """Whether anybody is waited for."""
        return any(True for _ in self.pending())

    def pending(self) -> Iterator[Asked]:
        """The requests that nothing has decided yet, in the order in which they were made."""
        return (asked for asked in self._open.values() if asked.outcome is None)

    def at(self, path: str) -> Asked | None:
        return self._open.get(path)

    def of(self, request: str) -> Asked | None:
        """The undecided request of this nonce."""
        asked = self._named.get(request)
        return asked if asked is not None and asked.outcome is None else None

    def decided(self, request: str) -> str:
        """How a request was decided, as a clause; empty for one that nobody made, or that fell with its scope."""
        found = self._decided.get(request)
        return (
            f"{found[0]} was decided before{f' by {found[1]}' if found[1] else ', since its time was over'}"
            if found
            else ""
        )

    def ask(self, asked: Asked) -> None:
        self._open[asked.path] = self._named[asked.request] = asked

    def drop(self, path: str) -> None:
        """The node has its result, or nobody needs one any more."""
        asked = self._open.pop(path, None)
        if asked is not None:
            del self._named[asked.request]

    def give(self, record: Record) -> Asked | None:
        """Take an answer; the request, when this decided it."""
        answer = record.envelope
        self.answers[answer["id"]] = answer["request"]
        asked = self._open.get(record.path)
        if asked is None or asked.request != answer["request"] or asked.outcome is not None:
            return None
        if answer["decision"] == "Approve":
            if answer["by"] not in asked.approved:
                asked.approved.append(answer["by"])
            if len(asked.approved) < asked.block.count:
                return None
        return self._decide(asked, _outcome(asked, answer))

    def expire(self, path: str) -> Asked | None:
        """The time of a request is over; the request, when that decided it."""
        asked = self._open.get(path)
        if asked is None or asked.outcome is not None:
            return None
        block, at = asked.block, asked.due or ""
        if block.on_timeout == "approve":
            return self._decide(asked, Outcome("", at, {"approved": True, "at": at}))
        if block.on_timeout == "reject" and block.on_reject == "continue":
            return self._decide(asked, Outcome("", at, {"approved": False, "at": at}))
        error = ApprovalTimeout(path, block.timeout_seconds or 0.0)
        return self._decide(asked, Outcome("", at, failure=Failure(path, error.klass, error.code, str(error))))

    def _decide(self, asked: Asked, outcome: Outcome) -> Asked:
        asked.outcome = outcome
        self._decided[asked.request] = (asked.path, outcome.by)
        return asked


def _outcome(asked: Asked, answer: Mapping[str, Json]) -> Outcome:
    by, at, approved = answer["by"], answer["at"], answer["decision"] == "Approve"
    if not approved and asked.block.on_reject == "fail":
        error = Rejected(asked.path, by, answer.get("comment", ""))
        return Outcome(by, at, failure=Failure(asked.path, error.klass, error.code, str(error)))
    output: dict[str, Json] = {"approved": approved, "by": by, "at": at}
    if "form" in answer:
        output["form"] = answer["form"]
    return Outcome(by, at, output)

"""Answers of people on their way into the log: whether an answer may be recorded, and the record of it.

What is wrong with an answer is one sentence for the person who gave it, and changes nothing in the run. An answer is
known by its id (the uid of its Approval): given twice, it counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from decurion_crds.canonical import Json, canonical
from decurion_crds.values import OutputMismatch, Validator, ValueRefused, normalise
from decurion_ledger import Record, Store, read_log
from decurion_ledger.errors import RunNotFound
from decurion_worker.engine.approvals import Approvals, Asked
from decurion_worker.errors import RunLetGo, RunUnknown

MAX_FORM = 64 * 1024
"""Bytes of what one person fills in."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One decision of one person. `id` tells it from all others; `name` is that of its Approval, where it has one."""

    id: str
    request: str
    digest: str
    decision: Literal["Approve", "Reject"]
    by: str
    group: str = ""
    name: str = ""
    comment: str = ""
    form: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an answer: it is in the log, or `why` not."""

    why: str = ""

    @property
    def accepted(self) -> bool:
        return not self.why


def judge(approvals: Approvals, answer: Answer, *, beside: set[tuple[str, str]]) -> tuple[Asked | None, str]:
    """The open request that an answer may be recorded for, or why it may not.

    `beside` are who answered which request in the records that are about to be written.
    """
    asked = approvals.of(answer.request)
    if asked is None:
        known = approvals.decided(answer.request)
        return None, f"{known}; nothing more is to do" if known else _NO_REQUEST
    if answer.digest != asked.digest:
        return (
            None,
            f"{asked.path}: what is asked is not what the answer names by digest; read it again, and answer that",
        )
    why = _not_theirs(asked, answer) or (
        _form_fault(asked, answer) if answer.form is not None else _form_due(asked, answer)
    )
    if not why and (answer.by in asked.approved or (answer.request, answer.by) in beside):
        why = f"{asked.path}: {answer.by} has answered already, and {asked.block.count} different people are to"
    return (None, why) if why else (asked, "")


_ANOTHER = "an answer of this id was given to another request; give this one an id of its own"
_NO_REQUEST = "the run waits for no request of that name; see status.approvals of the run, or decurion approve RUN"


def _not_theirs(asked: Asked, answer: Answer) -> str:
    block = asked.block
    if not (block.users or block.groups) or answer.by in block.users or answer.group in block.groups:
        return ""
    users, groups = ", ".join(block.users), ", ".join(block.groups)
    may = " or ".join(part for part in (users, f"members of {groups} (name the group)" if groups else "") if part)
    return f"{asked.path}: {answer.by} may not decide this; {may} may"


def _form_due(asked: Asked, answer: Answer) -> str:
    if asked.block.form is None or answer.decision == "Reject":
        return ""
    try:
        Validator(asked.block.form).check({})
    except OutputMismatch as error:
        return f"{asked.path}: a form is to be filled in: {_listed(error)}"
    return ""


def _form_fault(asked: Asked, answer: Answer) -> str:
    schema = asked.block.form
    if schema is None:
        return f"{asked.path}: it has no form to fill in; leave form out"
    try:
        value = normalise(dict(answer.form or {}), schema)
        if len(canonical(value)) > MAX_FORM:
            return f"{asked.path}: the form exceeds {MAX_FORM} bytes; shorten it"
        Validator(schema).check(value)
    except OutputMismatch as error:
        return f"{asked.path}: {_listed(error)}"
    except ValueRefused as error:
        return f"{asked.path}: form{str(error).removeprefix('$')}"
    return ""


def _listed(error: OutputMismatch) -> str:
    return "; ".join(f"form{problem.removeprefix('$')}" for problem in error.problems[:5])


def answer_record(run: str, asked: Asked, answer: Answer, *, at: str) -> Record:
    """The record of an answer that was judged."""
    envelope: dict[str, Json] = {
        "run": run,
        "id": answer.id,
        "request": answer.request,
        "digest": answer.digest,
        "decision": answer.decision,
        "by": answer.by,
        "at": at,
    }
    for name, value in (("group", answer.group), ("approval", answer.name), ("comment", answer.comment)):
        if value:
            envelope[name] = value
    if answer.form is not None and asked.block.form is not None:
        envelope["form"] = normalise(dict(answer.form), asked.block.form)
    return Record.event("approval_given", asked.path, envelope)


@dataclass(slots=True)
class Judged:
    """Answers that go into one segment: their records, and who waits for these to be durable."""

    records: list[Record] = field(default_factory=list)
    waiting: list[asyncio.Future[Verdict]] = field(default_factory=list)

    def settle(self) -> None:
        """The records are durable."""
        for one in self.waiting:
            if not one.done():
                one.set_result(Verdict())


class Answers:
    """The answers to one run that are on their way into its log."""

    def __init__(self, run: str, approvals: Approvals) -> None:
        self._run = run
        self._approvals = approvals
        self._coming: list[tuple[Answer, asyncio.Future[Verdict]]] = []
        self._writing = Judged()
        self._ended = False

    def put(self, answer: Answer) -> asyncio.Future[Verdict]:
        """What will become of an answer. Raises `RunLetGo` for a run that is not worked on any more."""
        if self._ended:
            raise RunLetGo(self._run, "it has ended here; give the answer again")
        waiting: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._coming.append((answer, waiting))
        return waiting

    def judged(self, *, at: str) -> Judged:
        """Judge what has come by what is durable now. Whoever is refused, or was recorded before, knows at once."""
        coming, self._coming = self._coming, []
        self._writing = judged = Judged()
        beside: set[tuple[str, str]] = set()
        ids: dict[str, str] = {}
        for answer, waiting in coming:
            if waiting.done():
                continue
            before = self._before(answer, ids)
            if before is not None:
                if before.accepted and answer.id in ids:
                    judged.waiting.append(waiting)
                else:
                    waiting.set_result(before)
                continue
            asked, why = judge(self._approvals, answer, beside=beside)
            if asked is None:
                waiting.set_result(Verdict(why))
                continue
            beside.add((answer.request, answer.by))
            ids[answer.id] = answer.request
            judged.records.append(answer_record(self._run, asked, answer, at=at))
            judged.waiting.append(waiting)
        return judged

    def _before(self, answer: Answer, beside: Mapping[str, str]) -> Verdict | None:
        """What became of an answer of this id that was given before, or that is written `beside`."""
        named = beside.get(answer.id) or self._approvals.answers.get(answer.id)
        if named is None:
            return None
        return Verdict("" if named == answer.request else _ANOTHER)

    def fail(self, why: str) -> None:
        """The run ends here: nobody is answered any more."""
        self._ended = True
        waiting = [*self._writing.waiting, *(waiting for _, waiting in self._coming)]
        self._coming = []
        for one in waiting:
            if not one.done():
                one.set_exception(RunLetGo(self._run, why or "it has ended; give the answer again"))


async def answered_before(store: Store, run: str, answer: Answer) -> Verdict:
    """What the log of a run that has ended says about an answer. Raises `RunUnknown` for one that has not ended."""
    given, outcome = False, ""
    try:
        async for _, record in read_log(store, run):
            given = given or (record.type == "approval_given" and record.envelope["id"] == answer.id)
            if record.type == "close":
                outcome = str(record.envelope["outcome"])
    except RunNotFound:
        raise RunUnknown(run) from None
    if not outcome:
        raise RunUnknown(run)
    return Verdict("" if given else f"the run has ended ({outcome}); nothing more is to decide")

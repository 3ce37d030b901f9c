"""Threads that feed the interpreter: a bounded number, each with one session, all of a kind taking from one queue.

A feed costs about 100 µs however little it does, so an expression lane takes what has gathered and runs it in one feed.
Jobs answer for themselves; only a limit or a crash strikes a whole feed, and then its jobs run again one by one. A
process that ends takes down one job twice at most: what it evaluates has no effects.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic

import pydantic_monty as monty

from decurion_crds.canonical import Json
from decurion_crds.expressions.code import MAIN, author_line
from decurion_crds.expressions.errors import ExpressionFailed
from decurion_crds.expressions.groups import Group
from decurion_crds.expressions.jobs import CLOSED, CodeJob, GroupJob, J, Jobs, Outcome
from decurion_crds.expressions.plain import plain, reason
from decurion_crds.expressions.session import MEMORY, SETTLED_CLOCK, SETTLED_SEED, Session

MAX_BATCH = 64
MAX_USES = 5_000
"""Feeds after which a session is replaced, so that what it has gathered is bounded."""
MAX_DEFINED = 256
MAX_FAULTS = 5
"""Faults of our own in a row after which a lane gives up."""

Deliver = Callable[[Sequence[Outcome]], None]


class _Lane(threading.Thread, Generic[J]):
    """A thread that takes jobs until its queue is closed, and owns at most one session at a time.

    What it does not expect fails the jobs at hand; several times in a row, as when no process can be started, it closes
    the queue and fails whoever waits.
    """

    most = 1

    def __init__(self, pool: monty.Monty, jobs: Jobs[J], deliver: Deliver) -> None:
        super().__init__(name=f"decurion-{type(self).__name__}", daemon=True)
        self._pool = pool
        self._jobs: Jobs[J] = jobs
        self._deliver = deliver
        self._session: Session | None = None

    def run(self) -> None:
        jobs: list[J] = []
        faults = 0
        try:
            while jobs := self._jobs.take(self.most):
                try:
                    self._work([job for job in jobs if not job.future.cancelled()])
                    faults = 0
                except Exception as error:
                    faults += 1
                    if faults >= MAX_FAULTS:
                        raise
                    self._discard()
                    failed = ExpressionFailed(f"the interpreter failed: {type(error).__name__}: {error}"[:1000])
                    self._deliver([(job.future, failed) for job in jobs])
        except BaseException as error:
            failed = ExpressionFailed(f"the interpreter cannot be used: {error}")
            self._deliver([(job.future, failed) for job in (*jobs, *self._jobs.close())])
            raise
        finally:
            self._discard()

    def _work(self, jobs: list[J]) -> None:
        raise NotImplementedError

    def _open(self, *, seconds: float, seed: str = SETTLED_SEED, clock: str = SETTLED_CLOCK) -> Session:
        """A session with these limits, a new one if need be."""
        session = self._session
        if session is not None and (
            session.settings != (seconds, seed, clock)
            or session.uses >= MAX_USES
            or len(session.defined) >= MAX_DEFINED
        ):
            self._discard()
            session = None
        if session is None:
            session = Session(self._pool, seconds=seconds, seed=seed, clock=clock)
            session.__enter__()
            self._session = session
        return session

    def _discard(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)


class ExpressionLane(_Lane[GroupJob]):
    """Evaluates groups, many in one feed. Groups in `slow` took long once; they run alone from then on."""

    most = MAX_BATCH

    def __init__(self, pool: monty.Monty, jobs: Jobs[GroupJob], deliver: Deliver, *, seconds: float) -> None:
        super().__init__(pool, jobs, deliver)
        self._seconds = seconds
        self._slow: set[str] = set()

    def _work(self, jobs: list[GroupJob]) -> None:
        alone = [job for job in jobs if job.group.key in self._slow or job.seconds is not None]
        together = [job for job in jobs if job not in alone] if alone else jobs
        if together:
            self._deliver(self._run(together))
        for job in alone:
            self._deliver(self._run([job]))

    def _run(self, jobs: list[GroupJob], *, again: bool = True) -> list[Outcome]:
        """`again`: one whose process ended is run once more, for that may have been none of its doing."""
        seconds = jobs[0].seconds or self._seconds
        try:
            session = self._open(seconds=seconds)
            for job in jobs:
                session.define(job.group.key, job.group.source)
            answers = session.feed("_run(_jobs)", {"_jobs": [[job.group.key, job.values] for job in jobs]})
        except monty.MontyError as error:
            self._discard()
            if len(jobs) > 1:
                return [outcome for job in jobs for outcome in self._run_alone(job)]
            if again and isinstance(error, monty.MontyCrashedError):
                return self._run(jobs, again=False)
            return [(jobs[0].future, self._failure(_message(error), jobs[0].group.names[0], seconds))]
        if not isinstance(answers, list):
            raise TypeError(f"_run gives a list, not {type(answers).__name__}")
        return [
            (job.future, self._outcome(job.group, answer, seconds)) for job, answer in zip(jobs, answers, strict=True)
        ]

    def _run_alone(self, job: GroupJob) -> list[Outcome]:
        started = time.monotonic()
        outcomes = self._run([job])
        if time.monotonic() - started > self._seconds / 4:
            self._slow.add(job.group.key)
        return outcomes

    def _outcome(self, group: Group, answer: object, seconds: float) -> list[Json] | ExpressionFailed:
        if isinstance(answer, tuple):
            index, kind, text = answer
            return self._failure(f"{kind}: {text}", group.names[index], seconds)
        values: list[Json] = []
        for name, value in zip(group.names, answer, strict=True):  # type: ignore[call-overload]
            try:
                values.append(plain(value))
            except ExpressionFailed as failed:
                return ExpressionFailed(failed.message, name=name)
        return values

    def _failure(self, message: str, name: str, seconds: float) -> ExpressionFailed:
        return ExpressionFailed(reason(message, seconds=seconds, memory=MEMORY), name=name)


class CodeLane(_Lane[CodeJob]):
    """Runs sources, one a feed. A call that uses clock or randomness gets a session of its own."""

    def _work(self, jobs: list[CodeJob]) -> None:
        for job in jobs:
            self._deliver([(job.future, self._run(job))])

    def _run(self, job: CodeJob, *, again: bool = True) -> Json | ExpressionFailed:
        """As an expression whose process ended, a source is run once more, unless nobody waits for it."""
        defined = 0
        try:
            if job.code.fresh:
                self._discard()
                session = self._open(seconds=job.seconds, seed=job.seed, clock=job.clock)
            else:
                session = self._open(seconds=job.seconds)
            if not job.begin(session):
                return ExpressionFailed(CLOSED, name=MAIN)
            key = hashlib.sha256(job.code.py.encode()).hexdigest()
            defined = session.define(key, f"{job.code.py}\n_functions[{key!r}] = {MAIN}")
            return plain(session.feed("_call(_key, _inputs)", {"_key": key, "_inputs": job.inputs}))
        except monty.MontyError as error:
            self._discard()
            if again and isinstance(error, monty.MontyCrashedError) and not job.abandoned:
                return self._run(job, again=False)
            message = reason(_message(error), seconds=job.seconds, memory=MEMORY)
            line = _line(error, defined)
            author = author_line(job.code, line) if line else None
            where = f"line {author}: " if author else ""
            return ExpressionFailed(where + message, name=MAIN, line=author)
        except ExpressionFailed as failed:
            return ExpressionFailed(failed.message, name=MAIN)
        finally:
            job.end()
            if job.code.fresh:
                self._discard()


def _message(error: monty.MontyError) -> str:
    """`ValueError: boom`."""
    if isinstance(error, monty.MontyCrashedError):
        return "the interpreter ended; the source may need more memory than there is"
    return str(error)


def _line(error: monty.MontyError, feed: int) -> int | None:
    """The innermost line of what the session's feed number `feed` defined, in the traceback of `error`."""
    if not isinstance(error, monty.MontyRuntimeError):
        return None
    frames = [frame.line for frame in error.traceback() if frame.filename == f"<python-input-{feed}>"]
    return frames[-1] if frames else None

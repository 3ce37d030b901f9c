"""Work for the interpreter on its way between the event loop and the threads of lanes."""

from __future__ import annotations

import asyncio
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from decurion_crds.canonical import Json
from decurion_crds.compiled import Code
from decurion_crds.expressions.errors import ExpressionFailed
from decurion_crds.expressions.groups import Group

if TYPE_CHECKING:
    from decurion_crds.expressions.session import Session

CLOSED = "the evaluator was closed before this was evaluated"


@dataclass(eq=False, slots=True)
class GroupJob:
    """One evaluation of a group. Its future gets the list of values, in the order of the group.

    `seconds` is its time where it has one of its own.
    """

    group: Group
    values: list[Json]
    future: asyncio.Future[list[Json]]
    seconds: float | None = None


@dataclass(eq=False, slots=True)
class CodeJob:
    """One call of a source. Its future gets the result.

    `session` is set while it runs, and `abandoned` once nobody waits for it; both change only under `lock`.
    """

    code: Code
    inputs: dict[str, Json]
    seconds: float
    seed: str
    clock: str
    future: asyncio.Future[Json]
    lock: threading.Lock
    session: Session | None = None
    abandoned: bool = False

    def begin(self, session: Session) -> bool:
        """Whether the job is still wanted, in which case it runs on `session` from now on."""
        with self.lock:
            if not self.abandoned:
                self.session = session
            return not self.abandoned

    def end(self) -> None:
        with self.lock:
            self.session = None

    def abandon(self) -> None:
        """Keeps the job from running, or ends the process that runs it."""
        with self.lock:
            self.abandoned = True
            if self.session is not None:
                self.session.kill()


Outcome: TypeAlias = "tuple[asyncio.Future[Json], Json | ExpressionFailed]"
J = TypeVar("J", GroupJob, CodeJob)


class Jobs(Generic[J]):
    """A queue with one event loop at one end and threads at the other. None in it says that it is closed."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[J | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()

    def put(self, job: J) -> None:
        """Raises `ExpressionFailed` when the queue is closed."""
        with self._lock:
            if self._closed:
                raise ExpressionFailed(CLOSED)
            self._queue.put(job)

    def take(self, most: int) -> list[J]:
        """Waits for jobs and takes up to `most`; none once the queue is closed."""
        jobs: list[J] = []
        job = self._queue.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == most:
                return jobs
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return jobs
        self._queue.put(None)
        return jobs

    def close(self) -> list[J]:
        """Lets nothing in any more, and gives what was not begun."""
        left: list[J] = []
        with self._lock:
            self._closed = True
            while True:
                try:
                    job = self._queue.get_nowait()
                except queue.Empty:
                    break
                if job is not None:
                    left.append(job)
            self._queue.put(None)
        return left

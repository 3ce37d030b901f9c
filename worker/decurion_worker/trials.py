"""Runs that may be what ends their driver, told from the others by what their logs say.

A fence that no result follows is a life of a driver in which the run came no further. Whatever ends a driver leaves
such fences in the logs of all its runs, so after `SUSPECT` of them in a row a run is not condemned but on trial: a
driver opens one such run at a time, and refuses the others meanwhile. An innocent run comes further, and is no suspect
any more; the cause ends its driver again. After `TRIALS` trials it fails. A trial is over with the run's first result,
with its end, or when the driver has outlived it for `PASSED` seconds.
"""

from __future__ import annotations

import asyncio

from decurion_ledger import Record, RecordType
from decurion_worker.errors import DriverCrashLoop, RunOnTrial
from decurion_worker.failure import Failure

SUSPECT = 3
TRIALS = 3
PASSED = 60.0


class Lives:
    """Counts, record by record, the lives of drivers at the end of a log in which the run came no further."""

    def __init__(self) -> None:
        self.barren = 0

    def note(self, record: Record) -> None:
        if record.type == RecordType.FENCE:
            self.barren += 1
        elif record.core is not None:
            self.barren = 0


def verdict(run: str, barren: int) -> Failure | None:
    """The failure of a run that ended its driver too often, by its barren lives before the one that begins."""
    if barren < SUSPECT + TRIALS:
        return None
    error = DriverCrashLoop(run, barren)
    return Failure("/", error.klass, error.code, str(error))


class Trials:
    """Which run is on trial in a driver."""

    def __init__(self) -> None:
        self._run = ""
        self._since = 0.0

    def admit(self, run: str, barren: int) -> None:
        """Whether a run with so many barren lives may be opened now. Raises `RunOnTrial`: later."""
        if barren < SUSPECT:
            return
        now = asyncio.get_running_loop().time()
        if self._run not in ("", run) and now - self._since < PASSED:
            raise RunOnTrial(run, self._run)
        self._run, self._since = run, now

    def over(self, run: str) -> None:
        """A run came further, has ended, or its driver has let go of it."""
        if run == self._run:
            self._run = ""

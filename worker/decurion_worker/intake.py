"""What runners sent to a run, judged before anything of it is written: first without the store, then with it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from decurion_ledger import Record, Values
from decurion_ledger.errors import BlobCorrupt, ValueMissing
from decurion_worker.acceptance import Acceptance
from decurion_worker.engine import Applied, Engine, Task
from decurion_worker.link import Submitted
from decurion_worker.loading import applied

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Lease:
    id: str
    key: str
    runner: str


@dataclass(slots=True)
class Suspicion:
    """An item that was lost with its runner. `share`: how many items may stand beside it and itself on one runner."""

    share: int
    strikes: int = 0


class Suspects(dict[str, Suspicion]):
    """Items that were lost with their runners, by their keys."""

    def note(self, lost: Record) -> Suspicion:
        """An item was lost, as a `lease_lost` says: the next time it stands with half as many others."""
        held = lost.envelope["held"]
        before = self.get(lost.path, Suspicion(share=held))
        strikes = before.strikes + (1 if held == 1 else 0)
        after = Suspicion(share=max(1, min(before.share, held) // 2), strikes=strikes)
        self[lost.path] = after
        return after


@dataclass(slots=True)
class Checked:
    """What came of records that runners sent: those to be committed, how far each runner is answered, the leases by
    runner that are void, and why.
    """

    accepted: list[tuple[Record, Task]] = field(default_factory=list)
    acks: dict[str, int] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    void: list[tuple[Lease, str]] = field(default_factory=list)


class Intake:
    """Judges what runners say that was done under `leases`."""

    def __init__(
        self,
        run: str,
        *,
        acceptance: Acceptance,
        engine: Engine,
        values: Values,
        leases: dict[str, Lease],
        suspects: Suspects,
    ) -> None:
        self._run = run
        self._acceptance = acceptance
        self._engine = engine
        self._values = values
        self._leases = leases
        self._suspects = suspects

    def check(self, submitted: Iterable[tuple[str, Submitted]], *, epoch: int) -> Checked:
        """What runners sent, as far as it can be judged without the store."""
        checked = Checked()
        void: set[str] = set()
        paths: set[str] = set()
        for runner, one in submitted:
            if not one.lease.startswith(f"{epoch}."):
                continue  # said to an earlier owner of the run: its numbers are not ours
            checked.acks[runner] = max(one.seq, checked.acks.get(runner, 0))
            lease = self._leases.get(one.lease)
            task = self._engine.out.get(lease.key) if lease is not None else None
            if lease is None or task is None or lease.runner != runner or one.lease in void:
                checked.refused.setdefault(runner, []).append(one.lease)
                continue
            committed, opened = self._engine.results, self._engine.opened
            why = self._acceptance.fault(
                one.record, task=task, last=one.last, committed=committed, beside=paths, opened=opened
            )
            if why is not None:
                void.add(one.lease)
                self._refuse(checked, lease, one.record, why)
                continue
            if one.record.core is not None:
                paths.add(one.record.path)
            checked.accepted.append((one.record, task))
            if one.last:
                self._leases.pop(one.lease, None)
                self._suspects.pop(lease.key, None)
        return checked

    async def load(self, checked: Checked) -> list[Applied]:
        """The accepted records with the values that the engine wants. One that has none that it can take is refused:
        once it were durable, no driver could read the log any more.
        """
        loaded: list[Applied] = []
        for record, task in checked.accepted:
            try:
                found = await applied(self._values, self._engine, 0, record)
                why = self._acceptance.opening_fault(task, record, found.value)
            except (BlobCorrupt, ValueMissing) as error:
                why = str(error)
            if why is None:
                loaded.append(found)
            else:
                lease = Lease("", task.key, str(record.envelope.get("worker", "")))
                self._refuse(checked, lease, record, why)
        return loaded

    def _refuse(self, checked: Checked, lease: Lease, record: Record, why: str) -> None:
        """A record that cannot be right voids the item: it is offered again from what is committed."""
        log.error("run %s: a record of %s at %s is refused: %s", self._run, lease.runner, record.path, why)
        if lease.id:
            self._leases.pop(lease.id, None)
            checked.refused.setdefault(lease.runner, []).append(lease.id)
        checked.void.append((lease, why))

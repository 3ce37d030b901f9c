"""What an engine takes and gives: durable records with their values, tasks for runners, decisions for the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from decurion_crds.canonical import Json
from decurion_ledger import Record
from decurion_worker.engine.approvals import Asked
from decurion_worker.engine.opened import Opened
from decurion_worker.engine.scopes import ScopeState
from decurion_worker.failure import Failure
from decurion_worker.link import ItemKind

if TYPE_CHECKING:
    from decurion_worker.engine.budgets import Account

Outcome = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Task:
    """Work for a runner, named by `key` (its path in the ledger; one task of a key is out at a time)."""

    key: str
    kind: ItemKind
    scope: str
    node: str
    env: dict[str, Json]
    template: str
    parents: tuple[tuple[str, str], ...]
    skip: bool
    done: Mapping[str, Record]
    files: Json = None


@dataclass(frozen=True, slots=True)
class Join:
    map: Opened


@dataclass(frozen=True, slots=True)
class EndScope:
    """A branch or graph scope that failed, or whose `finally` has ended: its `!output` record says so."""

    scope: ScopeState
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Decide:
    """People have decided, or the time is over: the record of their node says so."""

    asked: Asked


@dataclass(frozen=True, slots=True)
class RaceWon:
    """Enough of the nodes that race for `name` have ended well: a record says which, and who is given up."""

    scope: ScopeState
    name: str


@dataclass(frozen=True, slots=True)
class RaceLost:
    """Too few of the nodes that race for `name` can still end well, since some failed: its record says so."""

    scope: ScopeState
    name: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A node that was given up when a race was won: the record at `path` says that it is skipped."""

    scope: ScopeState
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Spent:
    """A limit is used up: a record says which, and what has it is broken off."""

    account: Account
    limit: str


@dataclass(frozen=True, slots=True)
class Overspent:
    """An agent whose tools used up a limit of it: its record says so."""

    scope: ScopeState
    name: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class OpenFinally:
    """The nodes of a scope have ended, and how: its `finally` begins. `parents` are the records that ended them, with
    that of what they came to; else the one that opened the scope.
    """

    scope: ScopeState
    outcome: Outcome
    failure: Failure | None
    parents: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, scope: ScopeState, outcome: Outcome, failure: Failure | None) -> OpenFinally:
        """What is due now: records that come between this and its own are none of its parents, live and replayed."""
        ends = list(scope.cores.values())
        if scope.result is not None:
            ends.append((f"{scope.path}!result", scope.result.core))
        return cls(scope, outcome, failure, tuple(sorted(ends)) or scope.start())


@dataclass(frozen=True, slots=True)
class Close:
    outcome: Outcome
    failure: Failure | None
    output: Json
    output_hash: str | None


Step: TypeAlias = Join | EndScope | Decide | RaceWon | RaceLost | GiveUp | Spent | Overspent | OpenFinally
Decision: TypeAlias = Step | Close


@dataclass(frozen=True, slots=True)
class Applied:
    """A durable record: the slot it is in, and its values, loaded where the engine wants them.

    `value` is that of its delta, `writes` those of its channels. `size` is the bytes of a branch's output, None where
    it was not loaded.
    """

    record: Record
    value: Json = None
    writes: Mapping[str, Json] | None = None
    slot: int = 0
    size: int | None = None


def failure_of(record: Record) -> Failure | None:
    """The failure that a record states, or None."""
    outcome = record.core["outcome"] if record.core else None
    if not isinstance(outcome, dict):
        return None
    failed = outcome["failed"]
    at = record.envelope.get("failed_at", record.path)
    return Failure(at, failed["class"], failed["code"], record.envelope.get("message", ""))

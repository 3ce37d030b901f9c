"""The link between a driver and a runner: two short one-way calls that carry coalesced messages.

`Driver.submit` takes what runners say, `Runner.deliver` what the driver says. Neither waits for work or for a commit:
acknowledgements come later, in a message of their own. Each direction has an `Outbox`: at most one call is in flight
to a peer, and what is said meanwhile goes with the next one. Every call carries the driver's incarnation and a
sequence number, so a call that is repeated after a lost answer changes nothing.

    runner                              driver
      │ submit(Joined, Submitted, …)      │
      │ ─────────────────────────────────▶│  queue ─▶ segment ─▶ PUT
      │ deliver(Begin, Work, Acked, …)    │
      │ ◀─────────────────────────────────│

Design: execution page, "The link between driver and runner".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, Seal
from decurion_worker.failure import Failure

HISTORY = "!history."
"""How the names among what is committed begin that stand for what a node said in earlier rounds."""
ItemKind = Literal["node", "branch", "output", "result", "writes", "otherwise", "join", "loop", "round"]


@dataclass(frozen=True, slots=True)
class Done:
    """A node of a branch that is already committed: what the rest of the branch needs of it."""

    status: Literal["ok", "skipped", "failed"]
    output: Json
    core_hash: str
    failure: Failure | None = None
    writes: tuple[tuple[str, Json], ...] = ()
    instead: bool = False
    """Its output stands for that of a node that failed."""
    files: Json = None
    """The version of the files that its record names."""
    at: str | None = None
    """When what it opened began (RFC 3339), where its record says so."""
    input: Json = None
    """What it had read, of one that stands for what a node said in an earlier round."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One unit of work under one lease.

    `node`: one node of the scope `scope`, whose environment is `env`. `output`: the scope's output expressions.
    `writes`: the `writes` of a finished map or graph, `env["output"]` being its output. `otherwise`: what stands for
    the output of a node that failed. `join`: the wide output of a map, from the slots of its branches' ends. `branch`:
    all of the leaf scope `scope`, whose input is `env["input"]`; `done` holds what was committed of it before, by path
    from there.
    `loop`: all rounds of the loop `node` at `scope`, whose template is leaf, from `env["opening"]`; `done` as for
    a branch. `round`: what comes after the round `env["round"]` of a loop. In both `env["env"]` is what the expressions
    of the loop see of their scope.
    `files` is what the item sees of the files of the run: see `RunFiles`; for a `join`, `base` is what the branches
    began with.
    `notes` are events of the item, or of nodes inside it, that have no result yet.
    `parents` are the core hashes (path, hash) that the first records depend on. `skip` says that the node's own
    predecessors were all skipped.
    """

    run: str
    lease: str
    kind: ItemKind
    scope: str
    node: str
    env: dict[str, Json]
    template: str = ""
    parents: tuple[tuple[str, str], ...] = ()
    skip: bool = False
    done: Mapping[str, Done] = field(default_factory=dict)
    notes: tuple[Record, ...] = ()
    files: Json = None


# ---- driver → runner


@dataclass(frozen=True, slots=True)
class Begin:
    """A run that this runner will get work of. Where something of it is sensitive, its `Key` came before."""

    run: str
    graph: CompiledGraph
    seed: str
    clock: str
    facts: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a run that will begin, with which its sensitive values are encrypted. Held in memory only."""

    run: str
    seal: Seal


@dataclass(frozen=True, slots=True)
class Runners:
    """How many runners there are: they share a model's concurrency evenly."""

    count: int


@dataclass(frozen=True, slots=True)
class Secrets:
    """Values of secrets for one run, by (name, key). Held in memory only; never part of a record, log or repr."""

    run: str
    values: Mapping[tuple[str, str], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Work:
    items: Sequence[WorkItem]


@dataclass(frozen=True, slots=True)
class Acked:
    """Everything this runner submitted for `run` up to `through` is durable or was refused."""

    run: str
    through: int


@dataclass(frozen=True, slots=True)
class Revoked:
    """These leases of a run are no longer the runner's: it stops their work; their records are refused."""

    run: str
    leases: Sequence[str]


@dataclass(frozen=True, slots=True)
class Recall:
    """Another runner could start at once what this one has not: it gives back up to `count` items, and answers."""

    count: int


@dataclass(frozen=True, slots=True)
class End:
    """The run needs nothing more of this runner."""

    run: str


@dataclass(frozen=True, slots=True)
class Alive:
    """Nothing but a sign of life."""


ToRunner: TypeAlias = Begin | Key | Runners | Secrets | Work | Acked | Revoked | Recall | End | Alive
ALONE = (Key, Secrets)
"""What goes in a call of its own: a large call becomes an object between processes, which may be written to a disk."""

# ---- runner → driver


@dataclass(frozen=True, slots=True)
class Joined:
    """First word of a runner: who it is and how many items it can hold at once."""

    worker: str
    capacity: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """One record under a lease. `seq` counts this runner's records of this run, from 1. `last` ends the item."""

    run: str
    seq: int
    lease: str
    record: Record
    last: bool


@dataclass(frozen=True, slots=True)
class Halted:
    """The store does not take what this runner has of `run`, nor will it by being asked again: `why` is a sentence."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The answer to a `Recall`: (run, lease) of items that were not started, and are not this runner's any more."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life every few seconds, whatever else is said."""


FromRunner: TypeAlias = Joined | Submitted | Returned | Beat | Halted


class DriverPort(Protocol):
    """What a runner sees of its driver."""

    async def submit(self, runner: str, incarnation: str, seq: int, messages: Sequence[FromRunner]) -> bool:
        """Take messages. False: this driver does not know the runner; the runner ends."""


class RunnerPort(Protocol):
    """What a driver sees of a runner."""

    async def deliver(self, incarnation: str, seq: int, messages: Sequence[ToRunner]) -> bool:
        """Take messages. False: the runner belongs to another incarnation, or has ended."""


class Outbox:
    """Coalesces messages to one peer: at most one call in flight, the next one carries all that came meanwhile, but for
    what goes `ALONE`.

    `send(seq, messages)` makes the call and answers whether the peer took it. An exception of `broken` types, or the
    answer False, ends the outbox and calls `on_broken` once; what was not delivered is dropped, since a peer that is
    gone needs nothing. A time-out repeats the same call with the same number.
    """

    def __init__(
        self,
        send: Callable[[int, list[Any]], Awaitable[bool]],
        *,
        on_broken: Callable[[str], None],
        broken: tuple[type[Exception], ...] = (),
        timeout: float = 15.0,
        pause: float = 0.0,
    ) -> None:
        self._send = send
        self._on_broken = on_broken
        self._broken = broken
        self._timeout = timeout
        self._pause = pause
        self._waiting: list[Any] = []
        self._seq = 0
        self._pump: asyncio.Task[None] | None = None
        self._closed = False
        self.calls = 0

    def put(self, *messages: Any) -> None:
        """Queue messages, in order."""
        if self._closed:
            return
        self._waiting.extend(messages)
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            # One turn of the loop first, so that what is said in the same breath goes in one call.
            await asyncio.sleep(self._pause)
            while self._waiting and not self._closed:
                self._seq += 1
                if not await self._call(self._seq, self._next()):
                    return
                if self._pause:
                    await asyncio.sleep(self._pause)
        finally:
            self._pump = None

    def _next(self) -> list[Any]:
        """All that waits, up to what goes alone."""
        apart = next((i for i, message in enumerate(self._waiting) if isinstance(message, ALONE)), len(self._waiting))
        count = max(apart, 1)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _call(self, seq: int, batch: list[Any]) -> bool:
        while True:
            self.calls += 1
            try:
                async with asyncio.timeout(self._timeout):
                    taken = await self._send(seq, batch)
            except TimeoutError:
                if self._closed:
                    return False
                continue
            except self._broken as error:
                self._break(f"{type(error).__name__}: {error}")
                return False
            if not taken:
                self._break("the peer did not take the message")
            return taken

    def _break(self, why: str) -> None:
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._on_broken(why)

    async def flush(self) -> None:
        """Return when everything queued so far was delivered, or the outbox is closed."""
        while self._pump is not None and not self._closed:
            await asyncio.shield(self._pump)

    def close(self) -> None:
        """Say nothing more; `on_broken` is not called."""
        self._closed = True
        self._waiting.clear()

"""The engine: which work a run allows now, given the records that are durable.

Pure and incremental. `apply` takes one record and costs what it changes; `take` and `decide` give what became
possible since. There is no clock, randomness or I/O in here (a test forbids the imports): everything that could
differ between two executions is a record. The state after a log is the same whatever order its branches ended in,
and a new engine that is fed the same log stands where the old one stood, with nothing handed out.

Two kinds of what comes next:

* a `Task` is work for a runner: one node, a whole leaf branch, the output expressions of a scope, the wide output of
  a map, what follows a node's end (`writes`) or failure (`otherwise`);
* a `Decision` is a record that the driver writes itself, since nothing has to be evaluated: the join of a narrow
  map, the end of a scope that failed, the close of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph, Node
from decurion_ledger import Record
from decurion_worker.engine.actions import (
    Applied,
    Close,
    Decide,
    Decision,
    EndScope,
    GiveUp,
    Join,
    OpenFinally,
    Outcome,
    Overspent,
    RaceLost,
    RaceWon,
    Task,
)
from decurion_worker.engine.applying import Applying
from decurion_worker.engine.approvals import Approvals, Asked
from decurion_worker.engine.consequences import Consequences
from decurion_worker.engine.environment import channel_values
from decurion_worker.engine.opened import Opened
from decurion_worker.engine.parking import branch_of, rests, wake
from decurion_worker.engine.races import apart, stands
from decurion_worker.engine.results import Results, arms_root
from decurion_worker.engine.scopes import NodeStatus, RunTime, ScopeState
from decurion_worker.engine.state import EngineState, base_of
from decurion_worker.engine.tasks import branch_task, loop_task, scope_task
from decurion_worker.link import ItemKind


class Engine:
    """The engine of one run. `input` is normalised; `facts` are `run.*` for expressions."""

    def __init__(self, graph: CompiledGraph, *, input: Json, facts: Mapping[str, Json]) -> None:
        self.state = EngineState(graph, input=input, facts=facts)
        self._then = Consequences(self.state)
        self._applying = Applying(self.state, self._then)
        self._then.start(self.state.root)

    @property
    def facts(self) -> dict[str, Json]:
        return self.state.facts

    @property
    def results(self) -> Results:
        """What is committed."""
        return self.state.results

    @property
    def root(self) -> ScopeState:
        return self.state.root

    @property
    def cancelled(self) -> str | None:
        """Why the run is to end, once that is in the log."""
        return self.state.cancelled

    @property
    def suspended(self) -> bool:
        """Nothing new is handed out; what is out may end."""
        return self.state.suspended

    @property
    def approvals(self) -> Approvals:
        return self.state.approvals

    @property
    def awaiting(self) -> bool:
        """Whether the run as a whole waits for people, and for nothing else.

        Only once every time that runs has its end in the log: whoever leaves a run that waits knows when to return.
        """
        state = self.state
        if state.quiet or state.out or state.decisions or not state.approvals:
            return False
        if state.offers.pending or not self._rest_of(state):
            return False
        return all(timed.due is not None for timed in self.timed())

    def _rest_of(self, state: EngineState) -> bool:
        """Whether what goes on in a run rests."""
        if state.final is None and state.cut is not None:
            return all(rests(scope) for scope in self._then.finals.running())
        return rests(state.final or state.root)

    @property
    def form(self) -> str | None:
        """How somebody ends the run, once that is in the log."""
        return self.state.form

    @property
    def cut(self) -> bool:
        """Whether the nodes were broken off: the run was cancelled, or its time was up."""
        return self.state.cut is not None

    @property
    def graph(self) -> CompiledGraph:
        return self.state.graph

    @property
    def final(self) -> ScopeState | None:
        """The scope of `finally`, once that has begun."""
        return self.state.final

    @property
    def budget(self) -> dict[str, int]:
        """What is used of the limits of the run, where it has any; its `finally` does not count."""
        return self._then.budgets.used

    @property
    def closed(self) -> Outcome | None:
        return self.state.closed

    @property
    def output(self) -> Json:
        return self.state.output

    @property
    def output_hash(self) -> str | None:
        return self.state.output_hash

    @property
    def out(self) -> Mapping[str, Task]:
        """Tasks that were taken, by key."""
        return self.state.out

    @property
    def opened(self) -> Mapping[str, Opened]:
        """What opened scopes and has not ended, by path."""
        return self.state.opened

    @property
    def abandoned(self) -> list[str]:
        """Keys of tasks that nobody needs any more: whoever holds them is told, gives them back, and clears this."""
        return self.state.abandoned

    def apply(self, applied: Applied) -> None:
        """Take one durable record. Raises `LogCorrupt` for a record that this graph cannot have."""
        self._applying.apply(applied)

    # ------------------------------------------------------------------ what comes next

    def decide(self) -> list[Decision]:
        """The records that the driver owes, each once, in the order in which they became due."""
        decisions = self.state.decisions
        if spent := self._then.budgets.due():
            # Alone, as races are: what is due beside it may be broken off with it.
            return list(spent)
        races = {key: one for key, one in decisions.items() if isinstance(one, RaceWon)}
        for key in [key for key, race in races.items() if not self._stands(race)]:
            del decisions[key], races[key]
        if races:
            # Without what else is due: some of that may be given up with them.
            won = apart(races)
            for key in won:
                del decisions[key]
            return list(won.values())
        due = list(decisions.values())
        decisions.clear()
        return [decision for decision in due if self._stands(decision)]

    def _stands(self, decision: Decision) -> bool:
        """Whether a decision still holds: a replay may bring more of what it thought had ended.

        What does not hold is taken back, and decided again when that has ended too.
        """
        match decision:
            case Join(map=joined):
                joined.joined = joined.complete
                return joined.joined
            case EndScope(scope=scope):
                scope.ended = scope.running == 0
                return scope.ended
            case OpenFinally(scope=scope) if scope is not self.state.root:
                return self._then.finals.stands(scope)
            case Close(outcome="failed") | OpenFinally(outcome="failed") if self._then.ending.natural():
                self.state.root.ended = self.state.root.running == 0
                return self.state.root.ended
            case Decide(asked=asked):
                over = self._then.ending.is_over(asked.path) or asked.home.halts(asked.node.name)
                return not over and not asked.home.ended
            case RaceWon(scope=scope, name=name):
                return stands(scope, name) and not self._then.ending.is_over(scope.path)
            case RaceLost(scope=scope, name=name) | GiveUp(scope=scope, name=name) | Overspent(scope=scope, name=name):
                over = self._then.ending.is_over(scope.path) or scope.halts(name) or scope.ended
                return not over and not scope.status[name].terminal
            case _:
                return True

    @property
    def deciding(self) -> bool:
        """Whether `decide` has something to give."""
        return bool(self.state.decisions)

    def leaves(self) -> list[tuple[str, str]]:
        """What the state of the run is made of: path and core hash of each result outside ended branches, and for each
        map that is open the root over the arms of those that ended.

        Branches of a map that was joined are in its join.
        """
        found = self.state.results.leaves()
        for opened in chain(self.state.opened.values(), *self.state.given_up.values()):
            if not opened.single and opened.ended:
                found.append((f"{opened.path}!arms", arms_root(opened.ended_arms())))
        return found

    def take(self, limit: int) -> list[Task]:
        """Up to `limit` tasks, deepest scope first, then in the order in which they became possible."""
        taken: list[Task] = []
        if self.state.quiet:
            return taken
        source = self._next()
        while len(taken) < limit:
            task = next(source, None)
            if task is None:
                break
            self.state.out[task.key] = task
            taken.append(task)
        return taken

    def _next(self) -> Iterator[Task]:
        while True:
            if self.state.offers:
                ready = self.state.offers.pop()
                task = self._task(ready.key, ready.kind, ready.scope, ready.node)
            else:
                task = self._next_branch()
                if task is None and not self.state.offers:
                    return
            if task is not None:
                yield task

    def _next_branch(self) -> Task | None:
        for opened in self.state.offers.opened():
            if self._then.ending.is_over(opened.path):
                self.state.offers.withdraw(opened)
                continue
            if opened.leaf and opened.startable and self._then.budgets.refuses_branch(opened):
                continue
            while (index := opened.next_index()) is not None:
                if opened.leaf and opened.node.loop is not None:
                    return loop_task(opened, facts=self.state.facts)
                if opened.leaf:
                    return branch_task(opened, index)
                self._then.enter(opened, index)
                if self.state.offers:
                    return None
        return None

    def _task(self, key: str, kind: ItemKind, scope_path: str, name: str) -> Task | None:
        scope = self.state.scopes.get(scope_path)
        if scope is None or scope.ended or self._then.ending.is_over(scope_path):
            return None
        if name in scope.lost:
            self._then.make_room(scope)
            return None
        if kind == "node" and name in scope.stopped:
            return None
        if kind == "round" and scope.opened[name].joined:
            return None  # a replay pushed it, and then brought the end of the loop
        if kind in ("join", "round") and scope.opened[name].stopped:
            self._then.settle_opened(scope.opened[name])
            return None
        if scope.halts(name):
            self._then.settle(scope)
            return None
        due = NodeStatus.READY if kind == "node" else NodeStatus.OPEN
        if key in self.state.results or key in self.state.out or (name and scope.status[name] is not due):
            return None  # a replay pushed it, and then brought its record
        if kind == "node" and self._then.budgets.refuses(scope, scope.scope.by_name[name]):
            return None
        if (full := wake(scope)) is not None:
            full.held.setdefault(branch_of(scope, full), []).append((kind, scope_path, name))
            return None
        scope.running += 1
        task = scope_task(scope, kind, name, facts=self.state.facts)
        return self._with_history(task, scope.scope.by_name[name]) if kind == "node" else task

    def _with_history(self, task: Task, node: Node) -> Task:
        """A task with what its node said in earlier rounds, on which its result then depends."""
        said = self.state.histories.of(task.key, node)
        if not said:
            return task
        parents = sorted({*task.parents, *((one.path, one.core_hash) for one in said.values())})
        return replace(task, done={**task.done, **said}, parents=tuple(parents))

    def give_back(self, key: str) -> None:
        """A task that was taken is nobody's any more: it may be taken again."""
        task = self.state.out.pop(key, None)
        if task is None:
            return
        if self._then.ending.is_over(task.scope):
            self._then.ending.settle()
            return
        if task.kind in ("branch", "loop"):
            home, index = self.state.branch(task.scope)
            home.give_back(index)
            self.state.offers.offer(home)
            self._then.settle_opened(home)
            return
        scope = self.state.scopes.get(task.scope)
        if scope is not None:
            scope.running -= 1
            if task.kind == "node" and task.node in scope.calling:
                scope.status[task.node] = NodeStatus.OPEN
            else:
                self.state.offers.push(scope, task.kind, task.node)
            if task.kind in ("join", "round"):
                self._then.settle_opened(scope.opened[task.node])
            self._then.settle(scope)
        self._then.ending.settle()

    @property
    def pending(self) -> int:
        """How many tasks could be taken now, at most: what runners are wanted for."""
        if self.state.quiet:
            return 0
        return self.state.offers.pending

    def channels(self) -> dict[str, Json]:
        """The root's channels as they stand."""
        return channel_values(self.state.root.scope, self.state.root.writes)

    def wants_value(self, record: Record) -> bool:
        """Whether `apply` needs the record's values loaded: not for what a runner runs whole, but for its end."""
        if record.type not in ("commit", "skip", "scope_opened", "join", "approval_requested"):
            return False
        base = base_of(record.path)
        if base in self.state.opened or base.endswith("]"):
            return True
        if self._applying.inner(base) is not None:
            return False
        return self._applying.agents.place(base) == base or self._applying.agents.hands_out(record)

    def is_branch_end(self, record: Record) -> bool:
        """Whether a record is the end of a branch of a map: its value is wanted only when it is at hand."""
        return record.path.endswith("]!output")

    @property
    def times_scopes(self) -> bool:
        """Whether a scope that begins, without a record of its own, may have a time of its own."""
        return self._then.budgets.times

    def timed(self) -> list[Opened | Asked | RunTime]:
        """What is open, or waits for people, and has a time of its own, and time left; the run while its nodes run."""
        is_over = self._then.ending.is_over
        found: list[Opened | Asked | RunTime] = [
            o
            for o in self.state.opened.values()
            if o.seconds is not None and not (o.timed_out or o.joined or is_over(o.path))
        ]
        found += self._then.budgets.timed()
        found += [asked for asked in self.approvals.pending() if asked.seconds is not None]
        if self.state.time.seconds is not None and not is_over("") and not self.state.root.ended:
            found.append(self.state.time)
        return found

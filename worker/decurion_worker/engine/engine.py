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

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record
from decurion_worker.engine.actions import Applied, Close, Decision, EndScope, Join, Outcome, Task, failure_of
from decurion_worker.engine.environment import channel_values
from decurion_worker.engine.offers import Offers
from decurion_worker.engine.results import Results, arms_root
from decurion_worker.engine.scopes import ABANDONED, BranchStatus, NodeStatus, Opened, ScopePlan, ScopeState, timed_out
from decurion_worker.engine.tasks import branch_task, scope_task
from decurion_worker.errors import LogCorrupt
from decurion_worker.failure import Failure
from decurion_worker.link import ItemKind


class Engine:
    """The state of one run. `input` is normalised; `facts` are `run.*` for expressions."""

    def __init__(self, graph: CompiledGraph, *, input: Json, facts: Mapping[str, Json]) -> None:
        self.graph = graph
        self.facts = dict(facts)
        self.results = Results(self._has_ended)
        self.cancelled: str | None = None
        self.closed: Outcome | None = None
        self.output: Json = None
        self.output_hash: str | None = None
        self.out: dict[str, Task] = {}
        self.abandoned: list[str] = []
        """Keys of tasks that nobody needs any more: whoever holds them is told, and they are given back."""
        self._plans = {name: ScopePlan(scope) for name, scope in graph.templates.items()}
        self._offers = Offers()
        self._decisions: dict[str, Decision] = {}
        self.root = ScopeState(path="", plan=ScopePlan(graph.root), input=input, depth=0)
        self._scopes: dict[str, ScopeState] = {"": self.root}
        self._opened: dict[str, Opened] = {}
        self._start(self.root)

    # ------------------------------------------------------------------ what comes next

    def decide(self) -> list[Decision]:
        """The records that the driver owes, each once, in the order in which they became due."""
        decisions = list(self._decisions.values())
        self._decisions.clear()
        return [decision for decision in decisions if self._stands(decision)]

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
            case Close(outcome="failed") if self.output_hash is None and "!output" not in self.root.failures:
                self.root.ended = self.root.running == 0
                return self.root.ended
            case _:
                return True

    @property
    def deciding(self) -> bool:
        """Whether `decide` has something to give."""
        return bool(self._decisions)

    def leaves(self) -> list[tuple[str, str]]:
        """What the state of the run is made of: path and core hash of each result outside ended branches, and for each
        map that is open the root over the arms of those that ended.

        Branches of a map that was joined are in its join.
        """
        found = self.results.leaves()
        for path, opened in self._opened.items():
            if not opened.single and opened.ended:
                found.append((f"{path}!arms", arms_root(opened.ended_arms())))
        return found

    def _has_ended(self, branch: str) -> bool:
        """Of a branch that is not open: whether it, or what it is in, has ended."""
        home_path, _, token = branch.rpartition("[")
        home = self._opened.get(home_path)
        if home is None or home.joined:
            return True
        index = home.index_of(token[:-1])
        return index is None or home.status[index] >= BranchStatus.OK

    def take(self, limit: int) -> list[Task]:
        """Up to `limit` tasks, deepest scope first, then in the order in which they became possible."""
        taken: list[Task] = []
        if self.cancelled is not None or self.closed is not None:
            return taken
        source = self._next()
        while len(taken) < limit:
            task = next(source, None)
            if task is None:
                break
            self.out[task.key] = task
            taken.append(task)
        return taken

    def _next(self) -> Iterator[Task]:
        while True:
            if self._offers:
                ready = self._offers.pop()
                task = self._task(ready.key, ready.kind, ready.scope, ready.node)
            else:
                task = self._next_branch()
                if task is None and not self._offers:
                    return
            if task is not None:
                yield task

    def _next_branch(self) -> Task | None:
        for opened in self._offers.opened():
            while (index := opened.next_index()) is not None:
                if opened.leaf:
                    return branch_task(opened, index)
                self._enter(opened, index)
                if self._offers:
                    return None
        return None

    def _task(self, key: str, kind: ItemKind, scope_path: str, name: str) -> Task | None:
        scope = self._scopes.get(scope_path)
        if scope is None or scope.ended:
            return None
        if kind == "join" and scope.opened[name].stopped:
            self._settle_opened(scope.opened[name])
            return None
        if scope.halted:
            self._settle(scope)
            return None
        due = NodeStatus.READY if kind == "node" else NodeStatus.OPEN
        if key in self.results or (name and scope.status[name] is not due):
            return None  # a replay pushed it, and then brought its record
        scope.running += 1
        return scope_task(scope, kind, name, facts=self.facts)

    def give_back(self, key: str) -> None:
        """A task that was taken is nobody's any more: it may be taken again."""
        task = self.out.pop(key, None)
        if task is None:
            return
        if task.kind == "branch":
            home, index = self._branch(task.scope)
            home.give_back(index)
            self._offers.offer(home)
            self._settle_opened(home)
            return
        scope = self._scopes.get(task.scope)
        if scope is not None:
            scope.running -= 1
            self._offers.push(scope, task.kind, task.node)
            if task.kind == "join":
                self._settle_opened(scope.opened[task.node])
            self._settle(scope)
        self._settle_cancel()

    @property
    def pending(self) -> int:
        """How many tasks could be taken now, at most: what runners are wanted for."""
        if self.cancelled is not None or self.closed is not None:
            return 0
        return self._offers.pending

    def channels(self) -> dict[str, Json]:
        """The root's channels as they stand."""
        return channel_values(self.root.scope, self.root.writes)

    def wants_value(self, record: Record) -> bool:
        """Whether `apply` needs the record's values loaded: not for what a runner runs whole, but for its end."""
        if record.type not in ("commit", "skip", "scope_opened", "join"):
            return False
        base = _base(record.path)
        return base in self._opened or base.endswith("]") or self._inner(base) is None

    def is_branch_end(self, record: Record) -> bool:
        """Whether a record is the end of a branch of a map: its value is wanted only when it is at hand."""
        return record.path.endswith("]!output")

    def timed(self) -> list[Opened]:
        """Open maps and graphs that have a time of their own, and time left."""
        return [o for o in self._opened.values() if o.seconds is not None and not (o.timed_out or o.joined)]

    # ------------------------------------------------------------------ what happened

    def apply(self, applied: Applied) -> None:
        """Take one durable record. Raises `LogCorrupt` for a record that this graph cannot have."""
        record = applied.record
        if record.core_hash and record.type != "genesis":
            self.results.add(record.path, record.core_hash)
            self._decisions.pop(record.path, None)
        match record.type:
            case "commit" | "skip" | "scope_opened" | "join":
                self._apply_result(applied)
            case "timer_set":
                if (opened := self._opened.get(record.path)) is not None:
                    opened.due = record.envelope["due"]
            case "timer_fired":
                if (opened := self._opened.get(record.path)) is not None and not opened.joined:
                    self._time_out(opened)
            case "cancel":
                self.cancelled = record.envelope.get("reason") or "Cancel"
                self._settle_cancel()
            case "close":
                self.closed = record.envelope["outcome"]
                self._decisions.clear()
            case _:
                return

    def _apply_result(self, applied: Applied) -> None:
        record = applied.record
        failure = failure_of(record)
        base = _base(record.path)
        mark = record.path[len(base) :]
        if mark == "!output" and base in ("", "/"):
            self._apply_run_output(applied, failure)
        elif mark == "!output" and (base.endswith("]") or base in self._opened):
            self._apply_end(base, applied, failure)
        elif (inner := self._inner(base)) is not None:
            self._apply_inner(*inner, applied, failure)
        elif mark == "!open":
            self._apply_opened(base, applied)
        elif mark == "!join":
            self._apply_join(base, applied, failure)
        else:
            self._apply_node(base, mark, applied, failure)

    def _inner(self, base: str) -> tuple[Opened, int, str] | None:
        """Where a path lies that a runner runs whole: what opened it, which branch, and the path from there.

        None for a node of a scope that the driver hands out; a replay enters that scope with the first record inside.
        """
        scope_path = base.rpartition("/")[0]
        if scope_path in self._scopes:
            return None
        unit = scope_path
        while unit not in self._opened and not unit.endswith("]"):
            unit = unit.rpartition("/")[0]
            if not unit:
                raise LogCorrupt(base, "no scope that is open holds this path")
        home, index = self._branch(unit)
        if home.leaf:
            return home, index, base[len(unit) + 1 :]
        if home.start(index):
            self._enter(home, index)
        if scope_path not in self._scopes:
            raise LogCorrupt(base, "no scope that is open holds this path")
        return None

    def _node_at(self, base: str) -> tuple[ScopeState, str]:
        scope_path, _, name = base.rpartition("/")
        scope = self._scopes.get(scope_path)
        if scope is None or name not in scope.status:
            raise LogCorrupt(base, "no node of this name is in the graph")
        return scope, name

    def _apply_node(self, base: str, mark: str, applied: Applied, failure: Failure | None) -> None:
        record = applied.record
        scope, name = self._node_at(base)
        for channel, value in (applied.writes or {}).items():
            scope.writes.setdefault(channel, {})[name] = value
        if mark == "!otherwise":
            self._taken_back(scope, record.path)
            scope.outputs[name] = applied.value
            self._end_node(scope, name, NodeStatus.FAILED if failure else NodeStatus.OK, record, failure)
        elif scope.status[name] is NodeStatus.OPEN:
            # The `writes` of what opened scopes: its output came with their end.
            self._taken_back(scope, f"{record.path}!writes")
            self._ended(scope, name, applied.record, failure)
        else:
            self._taken_back(scope, record.path)
            scope.outputs[name] = applied.value
            if record.type == "skip":
                self._end_node(scope, name, NodeStatus.SKIPPED, record, failure)
            else:
                self._ended(scope, name, record, failure)

    def _ended(self, scope: ScopeState, name: str, record: Record, failure: Failure | None) -> None:
        """A node's own work is over. One that failed on a runner has what its `otherwise` gave as its delta."""
        instead = record.core is not None and record.core["delta"] is not None
        rule = scope.scope.by_name[name].on_failure
        if failure is None:
            self._end_node(scope, name, NodeStatus.OK, record, None)
        elif rule == "skip":
            scope.outputs[name] = None
            self._end_node(scope, name, NodeStatus.SKIPPED, record, None)
        elif rule == "otherwise" and instead:
            self._end_node(scope, name, NodeStatus.OK, record, None)
        elif rule == "otherwise" and not scope.halted:
            scope.status[name] = NodeStatus.OPEN
            scope.cores[name] = (record.path, record.core_hash)
            self._offers.push(scope, "otherwise", name)
        else:
            self._end_node(scope, name, NodeStatus.FAILED, record, failure)

    def _taken_back(self, scope: ScopeState, key: str) -> None:
        """A task has its record. After a replay nobody had taken it."""
        if self.out.pop(key, None) is not None:
            scope.running -= 1

    def _apply_inner(self, home: Opened, index: int, inner: str, applied: Applied, failure: Failure | None) -> None:
        """A record from inside a leaf branch: kept until that ends, so that another runner can go on from there."""
        record = applied.record
        if record.path.endswith("!output") and failure is not None:
            self.results.forget_under(_base(record.path))
        if home.status[index] < BranchStatus.OK:
            mark = record.path[len(_base(record.path)) :]
            home.partial.setdefault(index, {})[inner + mark] = record

    def _apply_run_output(self, applied: Applied, failure: Failure | None) -> None:
        self._taken_back(self.root, "/!output")
        if failure is not None:
            self.root.failures["!output"] = failure
        else:
            self.output = applied.value
            self.output_hash = applied.record.core["delta"] if applied.record.core else None
        self.root.ended = True
        outcome: Outcome = "failed" if failure else "succeeded"
        self._decisions["close"] = Close(outcome, failure, self.output, self.output_hash)

    def _apply_end(self, unit: str, applied: Applied, failure: Failure | None) -> None:
        """The end of a branch or of a graph."""
        home, index = self._branch(unit)
        self.out.pop(unit, None)
        self.out.pop(f"{unit}!output", None)
        self._scopes.pop(unit, None)
        if home.single:
            self._graph_ended(home, applied, failure)
            return
        arm = self.results.close(unit, failed=failure is not None)
        home.end(index, output=applied.value, size=applied.size, slot=applied.slot, arm=arm, failure=failure)
        if home.stopped:
            self._halt_opened(home)
            if home.over_tolerance and home.node.map is not None and home.node.map.fail_fast:
                self._abandon(home)
        self._settle_opened(home)

    def _graph_ended(self, home: Opened, applied: Applied, failure: Failure | None) -> None:
        if failure is not None:
            self.results.forget_under(home.path)
        scope, name = home.home, home.node.name
        del self._opened[home.path]
        self._offers.withdraw(home)
        home.end(0, output=None, size=0, slot=0, arm=b"", failure=failure)
        home.forget()
        scope.running -= 1
        scope.outputs[name] = applied.value
        self._after_end(scope, name, applied.record, failure)

    def _apply_opened(self, base: str, applied: Applied) -> None:
        scope, name = self._node_at(base)
        node = scope.scope.by_name[name]
        if node.template is None:
            raise LogCorrupt(applied.record.path, "the node of this name opens nothing")
        self._taken_back(scope, base)
        value = applied.value
        single = node.map is None
        opened = Opened(
            path=base,
            home=scope,
            node=node,
            body=self._plans[node.template],
            items=[None] if single else value["items"],
            base=value if single else value["base"],
            keys=None if single else value.get("keys"),
            core=applied.record.core_hash,
            depth=scope.depth + 1,
        )
        scope.status[name] = NodeStatus.OPEN
        scope.opened[name] = opened
        scope.running += 1
        self._opened[base] = opened
        self._offers.offer(opened)
        self._settle_opened(opened)

    def _apply_join(self, base: str, applied: Applied, failure: Failure | None) -> None:
        joined = self._opened.pop(base, None)
        if joined is None:
            raise LogCorrupt(applied.record.path, "no map that is open has this path")
        self._offers.withdraw(joined)
        for index in {*joined.partial, *joined.scopes}:
            self.results.drop(joined.branch_path(index))
            self._scopes.pop(joined.branch_path(index), None)
        joined.forget()
        scope, name = joined.home, joined.node.name
        self._taken_back(scope, applied.record.path)
        scope.running -= 1
        scope.outputs[name] = applied.value
        self._after_end(scope, name, applied.record, failure)

    def _after_end(self, scope: ScopeState, name: str, record: Record, failure: Failure | None) -> None:
        """What opened scopes has its output, or its failure: its `writes` come next, or the node ends."""
        scope.cores[name] = (record.path, record.core_hash)
        if failure is None and scope.scope.by_name[name].writes:
            self._offers.push(scope, "writes", name)
            self._settle(scope)
        else:
            self._ended(scope, name, record, failure)

    # ------------------------------------------------------------------ consequences

    def _start(self, scope: ScopeState) -> None:
        for name, waits in scope.waits.items():
            if waits == 0:
                self._ready(scope, name)
        self._settle(scope)

    def _enter(self, home: Opened, index: int) -> None:
        """Open a branch that has a map inside: the driver hands out its nodes one by one."""
        scope = self._scope_of(home, index)
        home.scopes[index] = scope
        self._scopes[scope.path] = scope
        self._start(scope)

    def _scope_of(self, home: Opened, index: int) -> ScopeState:
        return ScopeState(
            path=home.branch_path(index),
            plan=home.body,
            input=home.branch_input(index),
            depth=home.depth,
            owner=home,
            index=index,
        )

    def _ready(self, scope: ScopeState, name: str) -> None:
        scope.status[name] = NodeStatus.READY
        self._offers.push(scope, "node", name)

    def _end_node(
        self, scope: ScopeState, name: str, status: NodeStatus, record: Record, failure: Failure | None
    ) -> None:
        scope.status[name] = status
        scope.cores[name] = (record.path, record.core_hash)
        scope.left -= 1
        if failure is not None:
            scope.failures[name] = failure
            self._halt(scope)
        else:
            for follower in scope.plan.followers[name]:
                scope.waits[follower] -= 1
                if scope.waits[follower] == 0:
                    self._ready(scope, follower)
        self._settle(scope)
        self._settle_cancel()

    def _halt(self, scope: ScopeState) -> None:
        """Nothing new starts in this scope or below it: end what has nothing running, from the inside out."""
        for opened in list(scope.opened.values()):
            if opened.path in self._opened:
                self._halt_opened(opened)
        self._settle(scope)

    def _halt_opened(self, opened: Opened) -> None:
        for inner in list(opened.scopes.values()):
            self._halt(inner)
        self._settle_opened(opened)

    def _time_out(self, opened: Opened) -> None:
        opened.timed_out = True
        self._halt_opened(opened)
        self._abandon(opened)

    def _abandon(self, home: Opened) -> None:
        """Nobody needs what runs of a map or graph that failed: it ends as soon as that is given back."""
        under = (f"{home.path}[", f"{home.path}/", f"{home.path}!")
        self.abandoned += [key for key in self.out if key == home.path or key.startswith(under)]

    def _settle(self, scope: ScopeState) -> None:
        """End a scope in which nothing can happen any more."""
        if scope.ended or self.closed is not None or self.cancelled is not None:
            return
        if scope.halted:
            if scope.running == 0:
                scope.ended = True
                failure = _why(scope)
                if scope.owner is None:
                    self._decisions["close"] = Close("failed", failure, None, None)
                else:
                    self._decisions[f"{scope.path}!output"] = EndScope(scope, failure)
        elif scope.left == 0 and not scope.finishing:
            scope.finishing = True
            self._offers.push(scope, "output", "")

    def _settle_opened(self, opened: Opened) -> None:
        if self.cancelled is None and opened.path in self._opened and not opened.joined and opened.complete:
            if opened.single:
                if opened.ended == 0:
                    opened.joined = True
                    scope = self._scope_of(opened, 0)
                    self._decisions[f"{opened.path}!output"] = EndScope(scope, _why(scope))
            elif opened.wide and not opened.stopped:
                if not opened.joining:
                    opened.joining = True
                    self._offers.push(opened.home, "join", opened.node.name)
            elif f"{opened.path}!join" not in self.out:
                opened.joined = True
                self._decisions[f"{opened.path}!join"] = Join(opened)
        self._settle_cancel()

    def _settle_cancel(self) -> None:
        done = self.output_hash is not None or "!output" in self.root.failures
        if self.cancelled is not None and self.closed is None and not self.out and not done:
            self.closed = "cancelled"
            failure = Failure("/", "Terminal", "Cancelled", f"the run was cancelled ({self.cancelled})")
            self._decisions["close"] = Close("cancelled", failure, None, None)

    def _branch(self, unit: str) -> tuple[Opened, int]:
        found = self._opened.get(unit)
        if found is not None and found.single:
            return found, 0
        home_path, _, token = unit.rpartition("[")
        home = self._opened.get(home_path)
        index = home.index_of(token[:-1]) if home is not None else None
        if home is None or index is None:
            raise LogCorrupt(unit, "no open map has this branch")
        return home, index


def _base(path: str) -> str:
    """A path without its mark: `/extract` of `/extract!open`."""
    mark = path.rfind("!")
    return path if mark < 0 else path[:mark]


def _why(scope: ScopeState) -> Failure:
    """Why a scope ends in failure: its time was up, something in it failed, or something around it did."""
    owner = scope.owner
    if owner is not None and owner.single and owner.timed_out:
        return timed_out(owner)
    return scope.failure or Failure(scope.path, "Terminal", ABANDONED, "what it belongs to failed")

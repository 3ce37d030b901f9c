"""The engine: which work a run allows now, given the records that are durable.

Pure and incremental. `apply` takes one record and costs what it changes; `take` and `decide` give what became
possible since. There is no clock, randomness or I/O in here (a test forbids the imports): everything that could
differ between two executions is a record. The state after a log is the same whatever order its branches ended in,
and a new engine that is fed the same log stands where the old one stood, with nothing handed out.

Two kinds of what comes next:

* a `Task` is work for a runner: one node, a whole leaf branch, the output expressions of a scope, a map's writes;
* a `Decision` is a record that the driver writes itself, since nothing has to be evaluated: the join of a map, the
  end of a branch scope that failed, the close of the run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record
from decurion_worker.engine.actions import Applied, Close, Decision, EndScope, Join, Outcome, Task, failure_of
from decurion_worker.engine.environment import channel_values, environment
from decurion_worker.engine.scopes import BranchStatus, MapState, NodeStatus, ScopePlan, ScopeState
from decurion_worker.errors import LogCorrupt
from decurion_worker.failure import Failure
from decurion_worker.link import ItemKind


class Engine:
    """The state of one run. `input` is normalised; `facts` are `run.*` for expressions."""

    def __init__(self, graph: CompiledGraph, *, input: Json, facts: Mapping[str, Json]) -> None:
        self.graph = graph
        self.facts = dict(facts)
        self.cores: dict[str, str] = {}
        self.cancelled: str | None = None
        self.closed: Outcome | None = None
        self.output: Json = None
        self.output_hash: str | None = None
        self.out: dict[str, Task] = {}
        self._plans = {name: ScopePlan(scope) for name, scope in graph.templates.items()}
        self._order = 0
        self._queue: list[tuple[int, int, str, ItemKind, str, str]] = []
        self._decisions: dict[str, Decision] = {}
        self._failed: set[str] = set()
        self._offering: dict[int, dict[str, MapState]] = {}
        """Open maps that may have a branch to start, by depth."""
        self.root = ScopeState(path="", plan=ScopePlan(graph.root), input=input, depth=0)
        self._scopes: dict[str, ScopeState] = {"": self.root}
        self._maps: dict[str, MapState] = {}
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

    def results(self) -> list[tuple[str, str]]:
        """Path and core hash of all results but those inside failed branches.

        How far a failed branch came before it stopped depends on time; that it failed does not.
        """
        if not self._failed:
            return list(self.cores.items())
        return [(path, core) for path, core in self.cores.items() if not self._in_failed(path)]

    def _in_failed(self, path: str) -> bool:
        end = path.find("]/")
        while end >= 0:
            if path[: end + 1] in self._failed:
                return True
            end = path.find("]/", end + 1)
        return False

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
            if self._queue:
                _, _, key, kind, scope_path, name = heapq.heappop(self._queue)
                task = self._task(key, kind, scope_path, name)
                if task is not None:
                    yield task
                continue
            task = self._next_branch()
            if task is None and not self._queue:
                return
            if task is not None:
                yield task

    def _next_branch(self) -> Task | None:
        for depth in sorted(self._offering, reverse=True):
            for path, open_map in list(self._offering[depth].items()):
                while (index := open_map.next_index()) is not None:
                    if open_map.leaf:
                        return self._branch_task(open_map, index)
                    self._enter(open_map, index)
                    if self._queue:
                        return None
                if open_map.exhausted:
                    del self._offering[depth][path]
        return None

    def _offer(self, open_map: MapState) -> None:
        self._offering.setdefault(open_map.depth, {})[open_map.path] = open_map

    def _task(self, key: str, kind: ItemKind, scope_path: str, name: str) -> Task | None:
        scope = self._scopes.get(scope_path)
        if scope is None or scope.ended:
            return None
        if scope.halted:
            self._settle(scope)
            return None
        due = NodeStatus.OPEN if kind == "writes" else NodeStatus.READY
        if key in self.cores or (name and scope.status[name] is not due):
            return None  # a replay pushed it, and then brought its record
        scope.running += 1
        if kind == "output":
            names = {read.split(".")[1] for read in scope.plan.output_reads if read.startswith("nodes.")}
            env = self._environment(scope, scope.plan.output_reads)
            return Task(key, kind, scope_path, "", env, self._template(scope), scope.ends(names), False, {})
        node = scope.scope.by_name[name]
        if kind == "writes":
            env = {"output": scope.outputs[name]} | self._environment(scope, node.reads)
            return Task(key, kind, scope_path, name, env, self._template(scope), scope.ends([name]), False, {})
        skip = bool(node.control) and all(scope.status[n] is NodeStatus.SKIPPED for n in node.control)
        env = self._environment(scope, node.reads)
        return Task(key, kind, scope_path, name, env, self._template(scope), scope.parents(node), skip, {})

    def _environment(self, scope: ScopeState, reads: tuple[str, ...]) -> dict[str, Json]:
        return environment(
            scope.scope,
            input=scope.input,
            outputs=scope.outputs,
            writes=scope.writes,
            facts=self.facts,
            reads=reads,
        )

    def _branch_task(self, open_map: MapState, index: int) -> Task:
        path = open_map.branch_path(index)
        block = open_map.node.map
        return Task(
            key=path,
            kind="branch",
            scope=path,
            node="",
            env={"input": open_map.branch_input(index)},
            template=block.template if block else "",
            parents=((f"{open_map.path}!open", open_map.opened),),
            skip=False,
            done=dict(open_map.partial.get(index, {})),
        )

    def _template(self, scope: ScopeState) -> str:
        return scope.owner.node.map.template if scope.owner is not None and scope.owner.node.map else ""

    def give_back(self, key: str) -> None:
        """A task that was taken is nobody's any more: it may be taken again."""
        task = self.out.pop(key, None)
        if task is None:
            return
        if task.kind == "branch":
            home, index = self._branch(task.scope)
            home.give_back(index)
            self._offer(home)
            self._settle_map(home)
            return
        scope = self._scopes.get(task.scope)
        if scope is not None:
            scope.running -= 1
            self._push(scope, task.kind, task.node)
            self._settle(scope)
        self._settle_cancel()

    @property
    def pending(self) -> int:
        """How many tasks could be taken now, at most: what runners are wanted for."""
        if self.cancelled is not None or self.closed is not None:
            return 0
        return len(self._queue) + sum(m.startable for maps in self._offering.values() for m in maps.values())

    def channels(self) -> dict[str, Json]:
        """The root's channels as they stand."""
        return channel_values(self.root.scope, self.root.writes)

    def wants_value(self, record: Record) -> bool:
        """Whether `apply` needs the record's values loaded: not for nodes inside a leaf branch."""
        if record.type not in ("commit", "skip", "scope_opened", "join"):
            return False
        if record.path.endswith(("!output", "!open", "!join")):
            return True
        path, _ = _split(record.path)
        return path in self._scopes or not self._branch(path)[0].leaf

    # ------------------------------------------------------------------ what happened

    def apply(self, applied: Applied) -> None:
        """Take one durable record. Raises `LogCorrupt` for a record that this graph cannot have."""
        record = applied.record
        if record.core_hash and record.type != "genesis":
            self.cores[record.path] = record.core_hash
            self._decisions.pop(record.path, None)
        match record.type:
            case "commit" | "skip":
                self._apply_commit(applied)
            case "scope_opened":
                self._apply_opened(applied)
            case "join":
                self._apply_join(applied)
            case "cancel":
                self.cancelled = record.envelope.get("reason") or "Cancel"
                self._settle_cancel()
            case "close":
                self.closed = record.envelope["outcome"]
                self._decisions.clear()
            case _:
                return

    def _apply_commit(self, applied: Applied) -> None:
        record = applied.record
        failure = failure_of(record)
        if record.path.endswith("!output"):
            self._apply_output(record.path.removesuffix("!output"), applied, failure)
            return
        scope_path, name = _split(record.path)
        scope = self._scope(scope_path)
        if scope is None:
            self._apply_inner(scope_path, name, applied, failure)
            return
        if name not in scope.status:
            raise LogCorrupt(record.path, "no node of this name is in the graph")
        if scope.status[name] is NodeStatus.OPEN:
            # The `writes` of a map: its output came with the join.
            self._taken_back(scope, f"{record.path}!writes")
            status = NodeStatus.FAILED if failure else NodeStatus.OK
            self._written(scope, name, applied, status=status, output=scope.outputs[name], failure=failure)
            return
        self._taken_back(scope, record.path)
        status = NodeStatus.FAILED if failure else NodeStatus.SKIPPED if record.type == "skip" else NodeStatus.OK
        self._written(scope, name, applied, status=status, output=applied.value, failure=failure)

    def _written(
        self,
        scope: ScopeState,
        name: str,
        applied: Applied,
        *,
        status: NodeStatus,
        output: Json,
        failure: Failure | None,
    ) -> None:
        for channel, value in (applied.writes or {}).items():
            scope.writes.setdefault(channel, {})[name] = value
        scope.outputs[name] = output
        self._end_node(scope, name, status, applied.record, failure)

    def _taken_back(self, scope: ScopeState, key: str) -> None:
        """A task has its record. After a replay nobody had taken it."""
        if self.out.pop(key, None) is not None:
            scope.running -= 1

    def _apply_inner(self, scope_path: str, name: str, applied: Applied, failure: Failure | None) -> None:
        """A node of a leaf branch: kept until the branch ends, so that another runner can go on from there."""
        home, index = self._branch(scope_path)
        if home.status[index] < BranchStatus.OK:
            home.partial.setdefault(index, {})[name] = applied.record

    def _apply_output(self, scope_path: str, applied: Applied, failure: Failure | None) -> None:
        if scope_path in ("", "/"):
            self._taken_back(self.root, "/!output")
            if failure is not None:
                self.root.failures["!output"] = failure
            else:
                self.output = applied.value
                self.output_hash = applied.record.core["delta"] if applied.record.core else None
            self.root.ended = True
            outcome: Outcome = "failed" if failure else "succeeded"
            self._decisions["close"] = Close(outcome, failure, self.output, self.output_hash)
            return
        home, index = self._branch(scope_path)
        self.out.pop(scope_path, None)
        self.out.pop(f"{scope_path}!output", None)
        self._scopes.pop(scope_path, None)
        home.end(index, output=applied.value, arm=applied.record.core_hash, failure=failure)
        if failure is not None:
            self._failed.add(scope_path)
        if home.stopped:
            self._halt_map(home)
        self._settle_map(home)

    def _apply_opened(self, applied: Applied) -> None:
        path = applied.record.path.removesuffix("!open")
        scope_path, name = _split(path)
        scope = self._scope(scope_path)
        node = scope.scope.by_name.get(name) if scope is not None else None
        if scope is None or node is None or node.map is None:
            raise LogCorrupt(applied.record.path, "no map of this name is in the graph")
        self._taken_back(scope, path)
        value = applied.value
        opened = MapState(
            path=path,
            home=scope,
            node=node,
            body=self._plans[node.map.template],
            items=value["items"],
            base=value["base"],
            keys=value.get("keys"),
            opened=applied.record.core_hash,
            depth=scope.depth + 1,
        )
        scope.status[name] = NodeStatus.OPEN
        scope.maps[name] = opened
        scope.running += 1
        self._maps[path] = opened
        self._offer(opened)
        self._settle_map(opened)

    def _apply_join(self, applied: Applied) -> None:
        path = applied.record.path.removesuffix("!join")
        joined = self._maps.pop(path)
        self._offering.get(joined.depth, {}).pop(path, None)
        scope, name = joined.home, joined.node.name
        scope.outputs[name] = applied.value
        scope.cores[name] = (applied.record.path, applied.record.core_hash)
        scope.running -= 1
        failure = failure_of(applied.record)
        if failure is None and joined.node.writes:
            self._push(scope, "writes", name)
            return
        status = NodeStatus.FAILED if failure else NodeStatus.OK
        self._end_node(scope, name, status, applied.record, failure)

    # ------------------------------------------------------------------ consequences

    def _scope(self, path: str) -> ScopeState | None:
        """The scope that the driver runs at `path`; a replay enters it with the first record from inside.

        None for a branch that a runner runs whole.
        """
        found = self._scopes.get(path)
        if found is None:
            home, index = self._branch(path)
            if not home.leaf and home.start(index):
                self._enter(home, index)
                found = self._scopes[path]
        return found

    def _start(self, scope: ScopeState) -> None:
        for name, waits in scope.waits.items():
            if waits == 0:
                self._ready(scope, name)
        self._settle(scope)

    def _enter(self, home: MapState, index: int) -> None:
        """Open a branch that has a map inside: the driver hands out its nodes one by one."""
        path = home.branch_path(index)
        scope = ScopeState(
            path=path,
            plan=home.body,
            input=home.branch_input(index),
            depth=home.depth,
            owner=home,
            index=index,
        )
        home.scopes[index] = scope
        self._scopes[path] = scope
        self._start(scope)

    def _ready(self, scope: ScopeState, name: str) -> None:
        scope.status[name] = NodeStatus.READY
        self._push(scope, "node", name)

    def _push(self, scope: ScopeState, kind: ItemKind, name: str) -> None:
        suffix = "!writes" if kind == "writes" else ""
        key = f"{scope.path or '/'}!output" if kind == "output" else f"{scope.path}/{name}{suffix}"
        self._order += 1
        heapq.heappush(self._queue, (-scope.depth, self._order, key, kind, scope.path, name))

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
        for open_map in list(scope.maps.values()):
            self._halt_map(open_map)
        self._settle(scope)

    def _halt_map(self, open_map: MapState) -> None:
        for inner in list(open_map.scopes.values()):
            self._halt(inner)
        self._settle_map(open_map)

    def _settle(self, scope: ScopeState) -> None:
        """End a scope in which nothing can happen any more."""
        if scope.ended or self.closed is not None or self.cancelled is not None:
            return
        if scope.halted:
            if scope.running == 0:
                scope.ended = True
                failure = scope.failure or Failure(scope.path, "Terminal", "Abandoned", "what it belongs to failed")
                if scope.owner is None:
                    self._decisions["close"] = Close("failed", failure, None, None)
                else:
                    self._decisions[f"{scope.path}!output"] = EndScope(scope, failure)
        elif scope.left == 0 and not scope.finishing:
            scope.finishing = True
            self._push(scope, "output", "")

    def _settle_map(self, open_map: MapState) -> None:
        if open_map.complete and not open_map.joined and self.cancelled is None:
            open_map.joined = True
            self._decisions[f"{open_map.path}!join"] = Join(open_map)
        self._settle_cancel()

    def _settle_cancel(self) -> None:
        if self.cancelled is not None and self.closed is None and not self.out:
            self.closed = "cancelled"
            failure = Failure("/", "Terminal", "Cancelled", f"the run was cancelled ({self.cancelled})")
            self._decisions["close"] = Close("cancelled", failure, None, None)

    def _branch(self, path: str) -> tuple[MapState, int]:
        home_path, _, token = path.rpartition("[")
        home = self._maps.get(home_path)
        index = home.index_of(token[:-1]) if home is not None else None
        if home is None or index is None:
            raise LogCorrupt(path, "no open map has this branch")
        return home, index


def _split(path: str) -> tuple[str, str]:
    """`/extract[00017]/read` → (`/extract[00017]`, `read`)."""
    scope, _, name = path.rpartition("/")
    return scope, name

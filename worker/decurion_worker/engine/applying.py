"""Taking in records: what each one that is durable says about the run."""

from __future__ import annotations

from dataclasses import replace

from decurion_ledger import Record
from decurion_worker.engine.actions import Applied, failure_of
from decurion_worker.engine.agents import AgentCalls
from decurion_worker.engine.approvals import Asked
from decurion_worker.engine.asking import Asking
from decurion_worker.engine.consequences import Consequences
from decurion_worker.engine.ending import FINAL_OPEN
from decurion_worker.engine.files import note_files
from decurion_worker.engine.finals import FINAL_MARK
from decurion_worker.engine.opened import ARM, BranchStatus, Opened, RoundEnd
from decurion_worker.engine.parking import unpark
from decurion_worker.engine.rounds import forget_rounds
from decurion_worker.engine.scopes import ABANDONED, NodeStatus, RunTime, ScopeState
from decurion_worker.engine.state import EngineState, base_of, loop_of
from decurion_worker.errors import LogCorrupt
from decurion_worker.failure import Failure


class Applying:
    """Takes records into the state of one run; what follows from them is for `then`."""

    def __init__(self, state: EngineState, then: Consequences) -> None:
        self._state = state
        self._then = then
        self._asking = Asking(state, then)
        self.agents = AgentCalls(state, then)

    def apply(self, applied: Applied) -> None:
        """Take one durable record. Raises `LogCorrupt` for a record that this graph cannot have."""
        self._apply(applied)
        self._then.budgets.charge(applied.record)

    def _timed(self, path: str) -> Opened | Asked | RunTime | None:
        """What has a time of its own at `path`."""
        state = self._state
        if path == "/":
            return state.time
        found = state.opened.get(path) or state.approvals.at(path)
        if (found is None and path.endswith("]")) or loop_of(path) is not None:
            self.inner(f"{path}/")
            scope = state.scopes.get(path)
            return scope.time if scope is not None else None
        return found

    def _apply(self, applied: Applied) -> None:
        record = applied.record
        if record.core_hash and record.type != "genesis":
            self._state.results.add(record.path, record.core_hash)
            self._state.decisions.pop(record.path, None)
        match record.type:
            case "commit" | "skip" | "scope_opened" | "join" | "approval_requested":
                self._apply_result(applied)
            case "timer_set":
                if (timed := self._timed(record.path)) is not None:
                    timed.due = record.envelope["due"]
            case "timer_fired" if record.path == "/":
                self._then.ending.time_out()
            case "timer_fired":
                if (opened := self._state.opened.get(record.path)) is not None and not opened.joined:
                    self._then.time_out(opened)
                elif opened is None:
                    self._then.budgets.time_out(record.path)
                self._asking.expire(record.path)
            case "budget":
                self._then.budgets.stop(record)
            case "race_won":
                self._then.races.won(record)
            case "approval_given":
                self._asking.give(record)
            case "suspended" | "resumed":
                self._state.suspended = record.type == "suspended"
            case "cancel":
                form = record.envelope.get("form") or "Cancel"
                self._then.ending.cancel(form, record.envelope.get("reason") or form)
            case "close":
                self._state.closed = record.envelope["outcome"]
                self._state.decisions.clear()
            case "turn" | "effect_intended" | "effect_settled" | "attempt_failed":
                self._then.finals.touch(record.path, self.inner)
            case _:
                return

    def _apply_result(self, applied: Applied) -> None:
        record = applied.record
        failure = failure_of(record)
        base = base_of(record.path)
        mark = record.path[len(base) :]
        if record.path == FINAL_OPEN:
            self._then.start(self._then.ending.opened(record, applied.value))
            self._then.ending.settle()
        elif record.path.endswith(FINAL_MARK):
            self._then.start(self._then.finals.opened(self._around(base), record, applied.value))
            self._then.ending.settle()
        elif mark == "!result":
            self._apply_scope_result(self._around(f"{base}/"), applied, failure)
        elif mark == "!output" and base in ("", "/"):
            self._apply_run_output(applied, failure)
        elif mark == "!output" and (base.endswith("]") or base in self._state.opened):
            self._apply_end(base, applied, failure)
        elif (loop := self._state.round_of(base)) is not None and not loop.leaf:
            self._apply_round(loop, base, mark, applied, failure)
        elif (inner := self.inner(base)) is not None:
            self._apply_inner(*inner, applied, failure)
        elif (place := self.agents.place(base)) != base:
            self._apply_call(place, base, applied, failure)
        elif mark == "!open":
            self._apply_opened(base, applied)
        elif mark == "!join":
            self._apply_join(base, applied, failure)
        else:
            self._apply_node(base, mark, applied, failure)

    def inner(self, base: str) -> tuple[Opened, int, str] | None:
        """Where a path lies that a runner runs whole: what opened it, which branch, and the path from there.

        None for a node of a scope that the driver hands out; a replay enters that scope with the first record inside.
        """
        place = self.agents.place(base)
        scope_path = place.rpartition("/")[0]
        loop = self._state.round_of(place)
        if loop is not None:
            return (loop, 0, base[len(loop.path) :]) if loop.leaf else None
        if scope_path in self._state.scopes:
            return None
        unit = scope_path
        while unit not in self._state.opened and self._state.round_of(unit) is None and not unit.endswith("]"):
            unit = unit.rpartition("/")[0]
            if not unit:
                raise LogCorrupt(base, "no scope that is open holds this path")
        home, index = self._state.branch(unit)
        if home.leaf:
            return home, index, base[len(home.path) :] if home.node.loop is not None else base[len(unit) + 1 :]
        if home.start(index):
            self._then.enter(home, index)
        if scope_path not in self._state.scopes:
            raise LogCorrupt(base, "no scope that is open holds this path")
        return None

    def _around(self, base: str) -> ScopeState:
        """The scope that a path lies in, which is entered where a replay has not yet."""
        self.inner(base)
        return self._state.scopes[base.rpartition("/")[0]]

    def _apply_scope_result(self, scope: ScopeState, applied: Applied, failure: Failure | None) -> None:
        """What a scope came to whose `finally` is next."""
        record = applied.record
        self._taken_back(scope, record.path)
        if failure is not None:
            scope.failures["!output"] = failure
            self._then.settle(scope)
        else:
            scope.result = RoundEnd(applied.value, record.core_hash, record.envelope.get("workspace"))
            self._then.finals.begin(scope, "succeeded", None)
        self._then.ending.settle()

    def _apply_node(self, base: str, mark: str, applied: Applied, failure: Failure | None) -> None:
        record = applied.record
        scope, name = self._state.node_at(base)
        self._then.finals.began(scope)
        for channel, value in (applied.writes or {}).items():
            scope.writes.setdefault(channel, {})[name] = value
        if record.type == "skip" and name in scope.lost:
            self._given_up(scope, name, record)
        elif mark == "!otherwise":
            self._taken_back(scope, record.path)
            scope.outputs[name] = applied.value
            self._then.end_node(scope, name, NodeStatus.FAILED if failure else NodeStatus.OK, record, failure)
        elif scope.status[name] is NodeStatus.OPEN and name not in scope.calling and name not in scope.stopped:
            # The `writes` of what opened scopes, or asked: its output came with their end.
            self._asking.end(scope, name)
            self._taken_back(scope, f"{record.path}!writes")
            self._ended(scope, name, applied.record, failure)
        else:
            self._taken_back(scope, record.path)
            self.agents.stop(scope, name, record)
            if scope.calls.pop(name, None) is not None and failure is not None:
                self._state.results.forget_calls(base)
            if failure is None:
                note_files(scope, name, record)
                self._state.histories.note(base, scope.scope.by_name[name], record)
            scope.outputs[name] = applied.value
            if record.type == "skip":
                self._then.end_node(scope, name, NodeStatus.SKIPPED, record, failure)
            else:
                self._ended(scope, name, record, failure)

    def _given_up(self, scope: ScopeState, name: str, record: Record) -> None:
        base = base_of(record.path)
        scope.calls.pop(name, None)
        self._then.races.given_up(base)
        self._state.results.forget_opened(base, but=record.path)
        self._then.end_node(scope, name, NodeStatus.SKIPPED, record, None)

    def _ended(self, scope: ScopeState, name: str, record: Record, failure: Failure | None) -> None:
        """A node's own work is over. One that failed on a runner has what its `otherwise` gave as its delta."""
        instead = record.core is not None and record.core["delta"] is not None
        rule = scope.scope.by_name[name].on_failure
        if failure is None:
            self._then.end_node(scope, name, NodeStatus.OK, record, None)
        elif rule == "skip":
            scope.outputs[name] = None
            self._then.end_node(scope, name, NodeStatus.SKIPPED, record, None)
        elif rule == "otherwise" and instead:
            self._then.end_node(scope, name, NodeStatus.OK, record, None)
        elif rule == "otherwise" and not scope.halts(name):
            scope.status[name] = NodeStatus.OPEN
            scope.cores[name] = (record.path, record.core_hash)
            self._state.offers.push(scope, "otherwise", name)
        else:
            # What was to stand for it is not asked for any more, since something else failed: that is the cause.
            failure = replace(failure, code=ABANDONED) if rule == "otherwise" else failure
            self._then.end_node(scope, name, NodeStatus.FAILED, record, failure)

    def _taken_back(self, scope: ScopeState, key: str) -> None:
        """A task has its record. After a replay nobody had taken it."""
        if self._state.out.pop(key, None) is not None:
            scope.running -= 1

    def _apply_inner(self, home: Opened, index: int, inner: str, applied: Applied, failure: Failure | None) -> None:
        """A record from inside a leaf branch: kept until that ends, so that another runner can go on from there."""
        record = applied.record
        if failure is not None:
            self._forget_inside(record)
        if home.node.loop is not None and "/" not in inner and record.path.endswith("!output") and failure is None:
            home.rounds += 1
        if home.status[index] < BranchStatus.OK:
            _hold(home.partial.setdefault(index, {}), inner, record)

    def _apply_call(self, place: str, base: str, applied: Applied, failure: Failure | None) -> None:
        """A record from below a call of the agent at `place`: kept until that ends, for whoever goes on with it."""
        scope, name = self._state.node_at(place)
        if failure is not None:
            self._forget_inside(applied.record)
        if not scope.status[name].terminal:
            _hold(scope.calls.setdefault(name, {}), base[len(place) :], applied.record)
            if self.agents.hands_out(applied.record):
                self.agents.open(scope, name, applied)

    def _forget_inside(self, record: Record) -> None:
        """What failed on a runner stands for all that was done inside it."""
        base, results = base_of(record.path), self._state.results
        if record.path.endswith("!output"):
            results.forget_under(base)
        elif record.path.endswith("!join"):
            results.forget_rounds(base)
        elif record.path == base:
            results.forget_calls(base)

    def _apply_run_output(self, applied: Applied, failure: Failure | None) -> None:
        self._taken_back(self._state.root, "/!output")
        if failure is not None:
            self._state.root.failures["!output"] = failure
        else:
            self._state.output = applied.value
            self._state.output_hash = applied.record.core["delta"] if applied.record.core else None
        self._then.ending.nodes_ended("failed" if failure else "succeeded", failure)

    def _apply_end(self, unit: str, applied: Applied, failure: Failure | None) -> None:
        """The end of a branch or of a graph."""
        home, index = self._state.branch(unit)
        self._state.out.pop(unit, None)
        self._state.out.pop(f"{unit}!output", None)
        self._state.scopes.pop(unit, None)
        if home.tool:
            self.agents.end(home, applied.record, failure)
            return
        if home.single:
            self._graph_ended(home, applied, failure)
            return
        arm = self._state.results.close(unit, failed=failure is not None)
        stopped, over = home.stopped, home.over_tolerance
        home.end(index, output=applied.value, size=applied.size, slot=applied.slot, arm=arm, failure=failure)
        # Once: what runs beside an end that follows knows already.
        if home.stopped and not stopped:
            self._then.halt_opened(home)
        if home.over_tolerance and not over and home.node.map is not None and home.node.map.fail_fast:
            self._then.abandon(home)
        self._then.settle_opened(home)

    def _graph_ended(self, home: Opened, applied: Applied, failure: Failure | None) -> None:
        if failure is not None:
            self._state.results.forget_under(home.path)
        scope, name = home.home, home.node.name
        del self._state.opened[home.path]
        self._state.offers.withdraw(home)
        home.end(0, output=None, size=0, slot=0, arm=b"", failure=failure)
        home.forget()
        scope.running -= 1
        scope.outputs[name] = applied.value
        self._after_end(scope, name, applied.record, failure)

    def _apply_opened(self, base: str, applied: Applied) -> None:
        scope, name = self._state.node_at(base)
        self._then.finals.began(scope)
        node = scope.scope.by_name[name]
        if node.approval is not None:
            self._taken_back(scope, base)
            self._asking.ask(scope, name, applied)
            return
        if node.template is None:
            raise LogCorrupt(applied.record.path, "the node of this name opens nothing")
        self._taken_back(scope, base)
        unpark(scope)
        value = applied.value
        single = node.map is None
        opened = Opened(
            path=base,
            home=scope,
            node=node,
            body=self._state.plans[node.template],
            items=[None] if single else value["items"],
            base=value if node.graph is not None else value["input"] if node.loop is not None else value["base"],
            keys=None if single else value.get("keys"),
            core=applied.record.core_hash,
            depth=scope.depth + 1,
            files=applied.record.envelope.get("workspace"),
        )
        scope.status[name] = NodeStatus.OPEN
        scope.opened[name] = opened
        scope.running += 1
        self._state.opened[base] = opened
        self._state.offers.offer(opened)
        self._then.settle_opened(opened)

    def _apply_join(self, base: str, applied: Applied, failure: Failure | None) -> None:
        joined = self._state.opened.pop(base, None)
        if joined is None:
            raise LogCorrupt(applied.record.path, "no map that is open has this path")
        self._state.offers.withdraw(joined)
        if joined.node.loop is not None:
            self._loop_ended(joined, failure)
        for index in {*joined.partial, *joined.scopes}:
            self._state.results.drop(joined.branch_path(index))
            self._state.scopes.pop(joined.branch_path(index), None)
        joined.forget()
        scope, name = joined.home, joined.node.name
        self._taken_back(scope, applied.record.path)
        scope.running -= 1
        scope.outputs[name] = applied.value
        self._after_end(scope, name, applied.record, failure)

    def _apply_round(self, loop: Opened, base: str, mark: str, applied: Applied, failure: Failure | None) -> None:
        """The end of a round that the driver hands out, or the beginning of the next one."""
        state, record = self._state, applied.record
        if mark == "!output" and base == loop.branch_path(0):
            state.out.pop(f"{base}!output", None)
            state.scopes.pop(base, None)
            if failure is not None:
                state.results.forget_under(base)
                loop.end(0, output=None, size=0, slot=0, arm=bytes(ARM), failure=failure)
            else:
                loop.round_ended(RoundEnd(applied.value, record.core_hash, record.envelope.get("workspace")))
                state.offers.push(loop.home, "round", loop.node.name)
            self._then.settle_opened(loop)
        elif mark == "!open" and loop.last is not None and record.path == self._then.round_key(loop):
            self._taken_back(loop.home, record.path)
            unpark(loop.home)
            loop.open_round(applied.value, record.core_hash, record.envelope.get("workspace"))
            state.offers.offer(loop)
            self._then.settle_opened(loop)
        else:
            raise LogCorrupt(record.path, "it is not the turn of this round")

    def _loop_ended(self, loop: Opened, failure: Failure | None) -> None:
        state = self._state
        state.out.pop(loop.path, None)
        state.histories.forget(loop.path)
        if loop.joining:
            self._taken_back(loop.home, self._then.round_key(loop))
        state.scopes.pop(loop.branch_path(0), None)
        if failure is not None:
            state.results.forget_rounds(loop.path)

    def _after_end(self, scope: ScopeState, name: str, record: Record, failure: Failure | None) -> None:
        """What opened scopes has its output, or its failure: its `writes` come next, or the node ends."""
        if failure is None:
            note_files(scope, name, record)
        scope.cores[name] = (record.path, record.core_hash)
        if failure is None and scope.scope.by_name[name].writes:
            self._state.offers.push(scope, "writes", name)
            self._then.settle(scope)
        else:
            self._ended(scope, name, record, failure)


def _hold(held: dict[str, Record], inner: str, record: Record) -> None:
    """Keep a record by its path from what it is inside of."""
    mark = record.path[len(base_of(record.path)) :]
    held[inner + mark] = record
    if mark == "!open" and loop_of(inner) is not None:
        forget_rounds(held, inner, best=record.envelope.get("best"))

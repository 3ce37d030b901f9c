"""Taking in what people are asked, and what follows from their answers."""

from __future__ import annotations

from decurion_ledger import Record
from decurion_worker.engine.actions import Applied, Decide
from decurion_worker.engine.approvals import MAX_MESSAGE, Asked
from decurion_worker.engine.consequences import Consequences
from decurion_worker.engine.scopes import NodeStatus, ScopeState
from decurion_worker.engine.state import EngineState


class Asking:
    """Takes the records of requests and answers into the state of one run."""

    def __init__(self, state: EngineState, then: Consequences) -> None:
        self._state = state
        self._then = then

    def ask(self, scope: ScopeState, name: str, applied: Applied) -> None:
        """A node asks people. Nobody is asked in a scope that failed meanwhile."""
        record, path = applied.record, f"{scope.path}/{name}"
        scope.status[name] = NodeStatus.OPEN
        scope.cores[name] = (record.path, record.core_hash)
        if not scope.halts(name) and not self._then.ending.is_over(scope.path):
            asked = Asked(
                path=path,
                home=scope,
                node=scope.scope.by_name[name],
                core=record.core_hash,
                request=record.envelope["request"],
                digest=record.core["delta"] if record.core else "",
                message=applied.value["message"][:MAX_MESSAGE],
            )
            scope.asked[name] = asked
            self._state.approvals.ask(asked)
        self._then.settle(scope)
        self._then.ending.settle()

    def give(self, record: Record) -> None:
        """Somebody answered."""
        self._decided(self._state.approvals.give(record))

    def expire(self, path: str) -> None:
        """The time of what is at `path` is over."""
        self._decided(self._state.approvals.expire(path))

    def end(self, scope: ScopeState, name: str) -> None:
        """The node has its result."""
        asked = scope.asked.pop(name, None)
        if asked is not None:
            self._state.approvals.drop(asked.path)

    def _decided(self, asked: Asked | None) -> None:
        """A request is decided: its node fails or has its output, and a runner works out what it writes."""
        if asked is None or asked.outcome is None:
            return
        scope, name = asked.home, asked.node.name
        scope.outputs[name] = asked.outcome.output
        if asked.outcome.failure is None and asked.node.writes:
            self.end(scope, name)
            self._state.offers.push(scope, "writes", name)
        else:
            self._state.decisions[asked.path] = Decide(asked)

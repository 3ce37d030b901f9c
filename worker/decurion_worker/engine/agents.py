"""Graphs that are tools of agents and that are handed out node by node: those with a map, an approval or a race.

A runner that works on an agent opens the graph of a call by the record `/find#turn-0003.02!open`, whose core names the
tool, and gives the agent back when nothing else of the turn is left to do. The agent is *away* then: its status is
`OPEN`, no task of it is out, and it is offered again when no call of it is open. So it holds no place, on a runner or
anywhere, while its tools work, and nothing that they wait for can wait for it. A replay finds it as it was: whatever
the record of an open call is followed by, the agent goes on when that call has ended.

What a call did is held for the agent as its two records, the opening and the end.
"""

from __future__ import annotations

from decurion_crds.compiled import Node
from decurion_ledger import Record
from decurion_worker.engine.actions import Applied
from decurion_worker.engine.consequences import Consequences
from decurion_worker.engine.opened import Opened
from decurion_worker.engine.parking import unpark
from decurion_worker.engine.scopes import NodeStatus, ScopeState
from decurion_worker.engine.state import EngineState, base_of
from decurion_worker.errors import LogCorrupt
from decurion_worker.failure import Failure


class AgentCalls:
    """Works on the state of one run."""

    def __init__(self, state: EngineState, then: Consequences) -> None:
        self._state = state
        self._then = then

    def place(self, base: str) -> str:
        """The node to which a path belongs that is below calls of agents: `/find` of `/find#turn-0003.02/read`, where
        that graph runs on the runner of the agent; the path itself where every graph around it is handed out.
        """
        at = base.find("#")
        while at >= 0:
            end = base.find("/", at)
            if (base if end < 0 else base[:end]) not in self._state.opened:
                return base[:at]
            at = base.find("#", end) if end >= 0 else -1
        return base

    def hands_out(self, record: Record) -> bool:
        """Whether a record opens a call whose graph is handed out. Raises `LogCorrupt` for a tool that there is not."""
        base = base_of(record.path)
        agent, _, call = base.rpartition("#")
        if record.type != "scope_opened" or not agent or "/" in call or self.place(base) != agent:
            return False
        scope_path, _, name = agent.rpartition("/")
        scope = self._state.scopes.get(scope_path)
        if scope is None or name not in scope.status:
            return False
        return not self._state.graph.templates[_template(scope.scope.by_name[name], record)].leaf

    def open(self, scope: ScopeState, name: str, applied: Applied) -> None:
        """A call of the agent `name` was opened."""
        state, record, path = self._state, applied.record, base_of(applied.record.path)
        template = _template(scope.scope.by_name[name], record)
        unpark(scope)
        opened = Opened(
            path=path,
            home=scope,
            node=scope.scope.by_name[name],
            body=state.plans[template],
            items=[None],
            base=applied.value,
            keys=None,
            core=record.core_hash,
            depth=scope.depth + 1,
            tool=template,
        )
        scope.calling.setdefault(name, {})[path] = opened
        scope.running += 1
        if f"{scope.path}/{name}" not in state.out:
            scope.status[name] = NodeStatus.OPEN
        state.opened[path] = opened
        state.offers.offer(opened)
        self._then.settle_opened(opened)

    def end(self, call: Opened, record: Record, failure: Failure | None) -> None:
        """The graph of a call has ended: the agent is told, and goes on when that was the last."""
        state, scope, name = self._state, call.home, call.node.name
        if failure is not None:
            state.results.forget_under(call.path)
        del state.opened[call.path]
        state.offers.withdraw(call)
        call.end(0, output=None, size=0, slot=0, arm=b"", failure=failure)
        call.forget()
        scope.running -= 1
        scope.calls.setdefault(name, {})[record.path[len(f"{scope.path}/{name}") :]] = record
        open_calls = scope.calling[name]
        del open_calls[call.path]
        if not open_calls:
            del scope.calling[name]
            if scope.status[name] is NodeStatus.OPEN:
                scope.status[name] = NodeStatus.READY
                state.offers.push(scope, "node", name)
        self._then.settle(scope)
        self._then.ending.settle()

    def stop(self, scope: ScopeState, name: str, record: Record) -> None:
        """An agent has ended, as `record` says: what calls are open goes on no more, and does not count."""
        if name not in scope.calling and name not in scope.stopped:
            return
        self._then.races.stop(scope, name)
        self._then.races.given_up(record.path)
        self._state.results.forget_opened(record.path, but=record.path)


def _template(agent: Node, record: Record) -> str:
    """The scope of the tool that a call's opening names."""
    named = (record.core or {}).get("tool")
    tools = agent.agent.tools if agent.agent is not None else ()
    for tool in tools:
        if tool.name == named and tool.graph is not None:
            return tool.graph
    raise LogCorrupt(record.path, f"the agent has no graph as a tool that is named {named}")

"""Limits of runs, of scopes inside them, and of nodes that run scopes: what is used of them, and how they stop these.

Each record says what its work used, and counts for all that have limits around it, as it comes: nothing is ever summed
again. When more is used than a limit allows, or nothing is left of it and work is due that would use it, the driver
records that (`budget`): when that comes depends on time, so replay follows the record.

    record with usage ──▶ accounts around it ──▶ above the limit ──▶ budget ──▶ what is limited is broken off, and fails
                                       └─▶ nothing left, and more is due ──┘

What a `finally` uses counts for what is around its scope, and not for the scope, which has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from decurion_crds.compiled import FINALLY, WORKSPACE, CompiledGraph, Limits, Node, Scope
from decurion_ledger import LedgerPath, Record
from decurion_worker.engine.actions import Overspent, Spent
from decurion_worker.engine.finals import above as around
from decurion_worker.engine.finals import in_finally
from decurion_worker.engine.opened import Opened
from decurion_worker.engine.scopes import RunTime, ScopeState
from decurion_worker.engine.state import EngineState, base_of
from decurion_worker.errors import TimedOut
from decurion_worker.failure import Failure
from decurion_worker.spending import above, add, counted, error_of, used_up

if TYPE_CHECKING:
    from decurion_worker.engine.consequences import Consequences

Owner = Literal["run", "scope", "node"]
_MODEL = frozenset({"tokens", "nanoUSD", "steps"})
_TOOL = frozenset({"toolCalls"})


@dataclass(slots=True, eq=False)
class Account:
    """What is used of the limits of the run, of one instance of a scope, or of a node, which is at `path`."""

    path: str
    of: Owner
    limits: Limits
    used: dict[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A graph's node and its scope have the same path."""
        return self.path if self.of == "node" else f"{self.path.rstrip('/')}/"


class Budgets:
    """Works on the state of one run; what follows is for `then`."""

    def __init__(self, state: EngineState, then: Consequences) -> None:
        self._state = state
        self._then = then
        self._accounts: dict[str, Account] = {}
        self._nested = _has_nested(state.graph)
        self._run = Account("/", "run", state.graph.limits) if state.graph.limits.amounts else None
        self._uses: dict[int, frozenset[str]] = {}
        scopes = state.graph.templates.values()
        self.times = any(scope.limits is not None and scope.limits.seconds is not None for scope in scopes)

    @property
    def used(self) -> dict[str, int]:
        """What is used of the limits of the run."""
        return dict(self._run.used) if self._run is not None else {}

    # ------------------------------------------------------------------ what is used

    def charge(self, record: Record) -> None:
        """Take what a record used into account. What has ended is forgotten."""
        if usage := record.envelope.get("usage"):
            amounts = counted(usage)
            for account in self._around(record.path):
                add(account.used, amounts)
                name = above(account.limits, account.used)
                if name is not None and self._is_told(account, record.path):
                    self._tell(account, name)
        if self._nested and record.core is not None:
            base = base_of(record.path)
            if base != "/" and not record.path.endswith(("!open", "!result", "!otherwise")):
                self._accounts.pop(base, None)
                self._accounts.pop(f"{base}/", None)

    def _is_told(self, account: Account, path: str) -> bool:
        """Whether what is at `path` may stop what has the account: an agent sees to its own turns itself."""
        node = account.of == "node" and self._state.opened.get(account.path) is None
        return not node or "/" in path[len(account.path) :]

    def _tell(self, account: Account, name: str) -> None:
        self._state.decisions.setdefault(f"{account.key}!budget", Spent(account, name))

    def _around(self, path: str) -> list[Account]:
        """The accounts that count what is used at `path`, from the outside in."""
        found: list[Account] = []
        if self._run is not None and not path.startswith(f"/{FINALLY}/"):
            found.append(self._run)
        if self._nested:
            found += self._inside(path)
        return found

    def _inside(self, path: str) -> Iterator[Account]:
        """Those inside the run. That of a scope is left out where the path goes on in its `finally`."""
        graph, scope, at = self._state.graph, self._state.graph.root, ""
        steps = LedgerPath.parse(base_of(path)).steps
        for i, step in enumerate(steps):
            at = f"{at}/{step}"
            if step.name == FINALLY:
                scope = graph.templates[scope.final or FINALLY]
                continue
            node = scope.by_name[step.name]
            if node.limits is not None and node.inner:
                yield self._account(at[: len(at) - len(str(step)) + len(step.name)], "node", node.limits)
            last = i == len(steps) - 1
            template = self._entered(node, at, whole=step.whole and last, call=step.call is not None)
            if template is None:
                return
            scope = graph.templates[template]
            if scope.limits is not None and (last or steps[i + 1].name != FINALLY):
                yield self._account(at, "scope", scope.limits)

    def _entered(self, node: Node, at: str, *, whole: bool, call: bool) -> str | None:
        """The template of the scope that a path goes on in. A call that a runner runs whole has no limits inside."""
        if call:
            opened = self._state.opened.get(at)
            return opened.tool if opened is not None else None
        return None if whole else node.template

    def _account(self, path: str, of: Owner, limits: Limits) -> Account:
        made = Account(path, of, limits)
        return self._accounts.setdefault(made.key, made)

    # ------------------------------------------------------------------ what is due

    def refuses(self, scope: ScopeState, node: Node) -> bool:
        """Whether a node may not begin, since nothing is left of what it would use. That is due to be told then."""
        return self._refuses(f"{scope.path}/{node.name}", self._uses_of([node]))

    def refuses_branch(self, opened: Opened) -> bool:
        """The same for a branch that a runner runs whole."""
        return self._refuses(opened.path, self._uses_of(opened.body.scope.nodes))

    def _refuses(self, path: str, uses: frozenset[str]) -> bool:
        if not uses or not (self._run is not None or self._nested):
            return False
        for account in self._around(path):
            own = account.path == path and path not in self._state.opened
            name = used_up(account.limits, account.used, uses)
            if name is not None and not own:
                self._tell(account, name)
                return True
        return False

    def _uses_of(self, nodes: tuple[Node, ...] | list[Node]) -> frozenset[str]:
        """The limits that count what nodes and all below them use."""
        return frozenset().union(*(self._uses_of_node(node) for node in nodes))

    def _uses_of_node(self, node: Node) -> frozenset[str]:
        if id(node) not in self._uses:
            own = _MODEL if node.model is not None else frozenset()
            calls = node.tool is not None and node.tool.server != WORKSPACE
            below = self._uses_of(self._state.graph.templates[node.template].nodes) if node.template else frozenset()
            self._uses[id(node)] = own | (_TOOL if calls else frozenset()) | below
        return self._uses[id(node)]

    def due(self) -> list[Spent]:
        """What is to be broken off, but for what lies inside something else that is: that goes with it. What does not
        hold any more is taken back.
        """
        decisions = self._state.decisions
        found = {key: one for key, one in decisions.items() if isinstance(one, Spent)}
        for key in [key for key, one in found.items() if not self._stands(one.account)]:
            del decisions[key], found[key]
        keys = {one.account.key for one in found.values()}
        first = {key: one for key, one in found.items() if keys.isdisjoint(_outside(one.account))}
        for key in first:
            del decisions[key]
        return list(first.values())

    def _stands(self, account: Account) -> bool:
        """Whether what has an account goes on still."""
        state, ending = self._state, self._then.ending
        if account.of == "run":
            return not ending.is_over("") and not state.root.ended
        if ending.is_over(account.path):
            return False
        if account.of == "scope":
            scope = state.scopes.get(account.path)
            return scope is not None and not (scope.ended or scope.finishes or scope.spent is not None)
        opened = state.opened.get(account.path)
        if opened is not None:
            return not (opened.joined or opened.spent is not None or opened.timed_out)
        return self._agent(account.path) is not None

    def _agent(self, path: str) -> tuple[ScopeState, str] | None:
        """The agent at `path` that goes on, with its scope."""
        place, _, name = path.rpartition("/")
        scope = self._state.scopes.get(place)
        if scope is None or name not in scope.status or scope.status[name].terminal or name in scope.stopped:
            return None
        return None if scope.halts(name) or name in scope.lost or scope.ended else (scope, name)

    def timed(self) -> Iterator[RunTime]:
        """The times of scopes that go on."""
        for scope in self._state.scopes.values() if self.times else ():
            over = scope.ended or scope.finishes or scope.spent is not None or self._then.ending.is_over(scope.path)
            if scope.time is not None and not over:
                yield scope.time

    # ------------------------------------------------------------------ what follows

    def stop(self, record: Record) -> None:
        """What the record names is broken off, since its limit is used up."""
        path, told = record.path, record.envelope
        key = path if told["of"] == "node" else f"{path.rstrip('/')}/"
        self._state.decisions.pop(f"{key}!budget", None)
        error = error_of(path, told["limit"], told["used"], told["most"])
        failure = Failure(path, error.klass, error.code, str(error))
        if told["of"] == "run":
            self._then.ending.break_off(failure)
        elif told["of"] == "scope":
            self._end(self._state.scopes.get(path), failure)
        elif (opened := self._state.opened.get(path)) is not None:
            opened.spent = failure
            if opened.joined:
                # A replay knows nothing of what was still in work, and thought that it had ended.
                opened.joined = False
                self._state.decisions.pop(f"{path}!{'output' if opened.single else 'join'}", None)
            self._then.halt_opened(opened)
            self._then.abandon(opened)
        elif (found := self._agent(path)) is not None:
            scope, name = found
            scope.stopped.add(name)
            self._then.races.stop(scope, name)
            self._state.decisions[path] = Overspent(scope, name, failure)

    def time_out(self, path: str) -> None:
        """The time of a scope is up."""
        scope = self._state.scopes.get(path)
        if scope is not None and scope.time is not None:
            error = TimedOut(path, scope.time.seconds or 0.0, field="limits.seconds")
            self._end(scope, Failure(path, error.klass, error.code, str(error)))

    def _end(self, scope: ScopeState | None, failure: Failure) -> None:
        """A scope is broken off: what is in work is nobody's any more, and it ends when that is given back."""
        if scope is None or scope.ended or scope.finishes or scope.spent is not None:
            return
        scope.spent = failure
        under = (f"{scope.path}/", f"{scope.path}!")
        self._state.abandoned += [
            key for key in self._state.out if key.startswith(under) and not in_finally(key[len(scope.path) :])
        ]
        self._then.halt(scope)


def _outside(account: Account) -> Iterator[str]:
    """The keys of accounts that may be around one."""
    if account.of == "run":
        return
    if account.of == "scope":
        yield account.path
    for path in around(account.path):
        yield path
        yield f"{path}/"


def _has_nested(graph: CompiledGraph) -> bool:
    """Whether anything inside the run has limits that the driver watches."""
    scopes: tuple[Scope, ...] = (graph.root, *graph.templates.values())
    return any(
        scope.limits is not None or any(node.limits is not None and node.inner for node in scope.nodes)
        for scope in scopes
    )

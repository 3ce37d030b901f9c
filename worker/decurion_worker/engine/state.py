"""What an engine knows of one run, with the look-ups that all its parts need."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_crds.compiled import CompiledGraph
from decurion_worker.engine.actions import Decision, Outcome, Task
from decurion_worker.engine.approvals import Approvals
from decurion_worker.engine.causes import asking_nodes
from decurion_worker.engine.history import Histories
from decurion_worker.engine.offers import Offers
from decurion_worker.engine.opened import BranchStatus, Opened
from decurion_worker.engine.results import Results
from decurion_worker.engine.scopes import RunTime, ScopePlan, ScopeState
from decurion_worker.errors import LogCorrupt
from decurion_worker.failure import Failure


class EngineState:
    """The state of one run. `input` is normalised; `facts` are `run.*` for expressions."""

    def __init__(self, graph: CompiledGraph, *, input: Json, facts: Mapping[str, Json]) -> None:
        self.graph = graph
        self.facts = dict(facts)
        self.results = Results(self.has_ended)
        self.cancelled: str | None = None
        self.suspended = False
        """Nothing new is handed out; what is out may end."""
        self.form: str | None = None
        """How somebody ends the run: `Cancel`, `CancelAndFinally` or `Stop`."""
        self.cut: tuple[Outcome, Failure] | None = None
        """How the nodes ended, where they were broken off."""
        self.final: ScopeState | None = None
        """The scope of `finally`, once that has begun."""
        self.time = RunTime(graph.limits.seconds)
        self.closed: Outcome | None = None
        self.approvals = Approvals()
        self.histories = Histories()
        self.output: Json = None
        self.output_hash: str | None = None
        self.out: dict[str, Task] = {}
        """Tasks that were taken, by key."""
        self.abandoned: list[str] = []
        """Keys of tasks that nobody needs any more: whoever holds them is told, and they are given back."""
        asking = asking_nodes(graph)
        self.plans = {name: ScopePlan(scope, name=name, asking=asking[name]) for name, scope in graph.templates.items()}
        self.offers = Offers()
        self.decisions: dict[str, Decision] = {}
        self.root = ScopeState(path="", plan=ScopePlan(graph.root), input=input, depth=0)
        self.scopes: dict[str, ScopeState] = {"": self.root}
        """The scopes that the driver hands out node by node and that have not ended, by path."""
        self.opened: dict[str, Opened] = {}
        """What opened scopes and has not ended, by path."""
        self.given_up: dict[str, list[Opened]] = {}
        """What was open in a node that was given up, by the path of that, until the record of it."""
        self.finals = any(scope.final is not None for scope in graph.templates.values())
        """Whether scopes inside the run have a `finally`."""

    @property
    def quiet(self) -> bool:
        """Whether no task is handed out now, whatever there is."""
        if self.closed is not None or self.form == "Stop" or (self.cut and not self.final and not self.finals):
            return True
        return self.suspended and self.form is None

    def has_ended(self, branch: str) -> bool:
        """Of a branch that is not open: whether it, or what it is in, has ended."""
        home_path, _, token = branch.rpartition("[")
        home = self.opened.get(home_path)
        if home is None or home.joined:
            return True
        index = home.index_of(token[:-1])
        return index is None or home.status[index] >= BranchStatus.OK

    def branch(self, unit: str) -> tuple[Opened, int]:
        """What opened a branch or a graph, and which of its branches it is. Raises `LogCorrupt` for one not open."""
        found = self.opened.get(loop_of(unit) or unit)
        if found is not None and found.single:
            return found, 0
        home_path, _, token = unit.rpartition("[")
        home = self.opened.get(home_path)
        index = home.index_of(token[:-1]) if home is not None else None
        if home is None or index is None:
            raise LogCorrupt(unit, "no open map has this branch")
        return home, index

    def round_of(self, base: str) -> Opened | None:
        """The loop one of whose rounds has this path, where that loop is open itself."""
        loop = loop_of(base)
        return self.opened.get(loop) if loop is not None else None

    def node_at(self, base: str) -> tuple[ScopeState, str]:
        """The scope and the name of a node. Raises `LogCorrupt` for one that is not there."""
        scope_path, _, name = base.rpartition("/")
        scope = self.scopes.get(scope_path)
        if scope is None or name not in scope.status:
            raise LogCorrupt(base, "no node of this name is in the graph")
        return scope, name


def loop_of(path: str) -> str | None:
    """The loop of which this path is a round: `/refine` of `/refine@002`; None for another path."""
    cut = path.rfind("@")
    return path[:cut] if cut > path.rfind("/") else None


def base_of(path: str) -> str:
    """A path without its mark: `/extract` of `/extract!open`."""
    mark = path.rfind("!")
    return path if mark < 0 else path[:mark]

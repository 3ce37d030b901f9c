"""What is known when a node runs: the cases that switches have chosen, and the nodes that ran too.

A node runs when its switch chose its case, one of its own `after` was not skipped (or has `otherwise`), and its `when`
holds. So its being run says something of the nodes before it: this page works out what, from what the author declared.
Of a node that races for another nobody knows: it may be given up, and its failure is no failure of the scope.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from decurion_crds.compile.draft import NodeDraft, ScopeDraft
from decurion_crds.compile.joins import certain


@dataclass(frozen=True, slots=True)
class Known:
    """Facts: switch → number of the case that it chose (`default` is the last), and names of nodes that ran."""

    arms: Mapping[str, int] = field(default_factory=dict)
    ran: frozenset[str] = frozenset()

    def contradicts(self, other: Known) -> bool:
        """Whether both cannot hold: a switch would have chosen two cases."""
        return any(other.arms.get(switch, arm) != arm for switch, arm in self.arms.items())


NOTHING = Known()


class Conditions:
    """Of one scope. `impossible` names nodes that cannot run: they come only after nodes of other cases."""

    def __init__(self, scope: ScopeDraft) -> None:
        self._scope = scope
        self._nodes = scope.nodes
        self._races = {name: node.race for name, node in scope.nodes.items() if node.race is not None}
        self._racing = {racer: name for name, race in self._races.items() for racer in race.racers}
        self._known: dict[str, Known] = {}
        self.impossible: set[str] = set()
        for name in scope.nodes:
            self.known(name)

    def known(self, name: str) -> Known:
        """What holds whenever the node runs. Of a circle, which is told elsewhere, nothing."""
        if name not in self._known:
            self._known[name] = NOTHING
            found = self._work_out(self._nodes[name])
            # Whoever reads what the nodes that raced wrote has to know that this race was won.
            self._known[name] = Known(found.arms, found.ran | {name}) if name in self._races else found
        return self._known[name]

    def _work_out(self, node: NodeDraft) -> Known:
        own = self._by_choice(node)
        # A node with `otherwise` lets what follows run even where it is skipped itself, so it says nothing.
        after = {name: NOTHING if self._replaced(name) else self.known(name) for name in node.after}
        possible = {name: known for name, known in after.items() if not known.contradicts(own)}
        if after and not possible:
            self.impossible.add(node.name)
        if not possible:
            return own
        # One of these ran, and it is not known which: what all of them say holds.
        arms = [set(known.arms.items()) for known in possible.values()]
        ran = [self._ran(name, known) for name, known in possible.items()]
        return Known({**dict(set.intersection(*arms)), **own.arms}, own.ran | frozenset.intersection(*ran))

    def _ran(self, name: str, known: Known) -> frozenset[str]:
        if self._replaced(name):
            return frozenset()
        return known.ran if name in self._racing else known.ran | {name}

    def _by_choice(self, node: NodeDraft) -> Known:
        if node.choice is None:
            return NOTHING
        above = self.known(node.choice)
        return Known({**above.arms, node.choice: node.arm}, above.ran | {node.choice})

    def _replaced(self, name: str) -> bool:
        return self._nodes[name].model.otherwise is not None

    def exclude(self, name: str, other: str) -> bool:
        """Whether of at most one of two nodes there is a result."""
        return self._rivals(name, other) or self.known(name).contradicts(self.known(other))

    def _rivals(self, name: str, other: str) -> bool:
        race = self._races.get(self._racing.get(name, ""))
        return race is not None and race.count == 1 and other in race.racers and name != other

    def may_be_none(self, name: str, known: Known) -> bool:
        """Whether the node's output can be None because it was skipped, for a reader of whom `known` holds."""
        return not self._scope.doubtful and not self._present(name, known, {})

    def _present(self, name: str, known: Known, seen: dict[str, bool]) -> bool:
        return name not in self._racing and (self._replaced(name) or self._runs(name, known, seen))

    def _runs(self, name: str, known: Known, seen: dict[str, bool]) -> bool:
        """Whether the node is surely not skipped when it is its turn. Should it fail, nothing follows."""
        return name not in self._racing and self._begins(name, known, seen)

    def _begins(self, name: str, known: Known, seen: dict[str, bool]) -> bool:
        """Whether the node is surely not skipped unless it is given up."""
        if name not in seen:
            seen[name] = False
            seen[name] = name in known.ran or self._follows(self._nodes[name], known, seen)
        return seen[name]

    def _follows(self, node: NodeDraft, known: Known, seen: dict[str, bool]) -> bool:
        if node.model.when is not None or node.model.on_failure in ("skip", "otherwise"):
            return False
        if node.choice is not None and known.arms.get(node.choice) != node.arm:
            return False
        if node.race is not None:
            # With fewer left than it takes, of nodes that begin one has failed: then so does this.
            return sum(self._begins(name, known, seen) for name in node.race.racers) >= node.race.count
        return not node.after or any(self._present(name, known, seen) for name in node.after)

    def one_runs(self, names: Collection[str], known: Known, *, exhausted: Collection[str]) -> bool:
        """Whether one of these nodes surely runs, when `known` holds.

        A switch with such a node in every case makes it sure; `exhausted` are the switches whose cases name every
        value, so that their `default` is never due.
        """
        if self._scope.doubtful:
            return True
        sure = {name for name in names if self._sure_in_case(name)}
        grown = True
        while grown:
            grown = False
            for name, node in self._nodes.items():
                if name in sure or node.model.switch is None or not self._sure_in_case(name):
                    continue
                due = range(len(node.model.switch.cases) + (name not in exhausted))
                covered = {self._nodes[other].arm for other in sure if self._nodes[other].choice == name}
                if covered.issuperset(due):
                    sure.add(name)
                    grown = True
        if any(name in known.ran for name in names) or any(self._holds(self._nodes[name], known) for name in sure):
            return True
        writing = [name for name in names if self._nodes[name].model.on_failure != "otherwise"]
        return any(
            certain(race, writing) and (name in known.ran or self._runs(name, known, {}))
            for name, race in self._races.items()
        )

    def _sure_in_case(self, name: str) -> bool:
        """Whether the node surely runs once its switch has chosen it, or at all where it has none."""
        return self._runs(name, self._by_choice(self._nodes[name]), {})

    @staticmethod
    def _holds(node: NodeDraft, known: Known) -> bool:
        return node.choice is None or known.arms.get(node.choice) == node.arm

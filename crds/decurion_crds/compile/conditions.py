"""What is known when a node runs: the cases that switches have chosen, and the nodes that ran too.

A node runs when its switch chose its case, one of its own `after` was not skipped (or has `otherwise`), and its `when`
holds. So its being run says something of the nodes before it: this page works out what, from what the author declared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from decurion_crds.compile.draft import NodeDraft, ScopeDraft


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
        self._known: dict[str, Known] = {}
        self.impossible: set[str] = set()
        for name in scope.nodes:
            self.known(name)

    def known(self, name: str) -> Known:
        """What holds whenever the node runs. Of a circle, which is told elsewhere, nothing."""
        if name not in self._known:
            self._known[name] = NOTHING
            self._known[name] = self._work_out(self._nodes[name])
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
        ran = [frozenset() if self._replaced(name) else known.ran | {name} for name, known in possible.items()]
        return Known({**dict(set.intersection(*arms)), **own.arms}, own.ran | frozenset.intersection(*ran))

    def _by_choice(self, node: NodeDraft) -> Known:
        if node.choice is None:
            return NOTHING
        above = self.known(node.choice)
        return Known({**above.arms, node.choice: node.arm}, above.ran | {node.choice})

    def _replaced(self, name: str) -> bool:
        return self._nodes[name].model.otherwise is not None

    def exclude(self, name: str, other: str) -> bool:
        """Whether at most one of two nodes runs."""
        return self.known(name).contradicts(self.known(other))

    def may_be_none(self, name: str, known: Known) -> bool:
        """Whether the node's output can be None because it was skipped, for a reader of whom `known` holds."""
        return not self._scope.doubtful and not self._present(name, known, {})

    def _present(self, name: str, known: Known, seen: dict[str, bool]) -> bool:
        return self._replaced(name) or self._runs(name, known, seen)

    def _runs(self, name: str, known: Known, seen: dict[str, bool]) -> bool:
        """Whether the node is surely not skipped when it is its turn. Should it fail, nothing follows."""
        if name not in seen:
            seen[name] = False
            seen[name] = name in known.ran or self._follows(self._nodes[name], known, seen)
        return seen[name]

    def _follows(self, node: NodeDraft, known: Known, seen: dict[str, bool]) -> bool:
        if node.model.when is not None or node.model.on_failure in ("skip", "otherwise"):
            return False
        if node.choice is not None and known.arms.get(node.choice) != node.arm:
            return False
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
        return any(name in known.ran for name in names) or any(self._holds(self._nodes[name], known) for name in sure)

    def _sure_in_case(self, name: str) -> bool:
        """Whether the node surely runs once its switch has chosen it, or at all where it has none."""
        return self._runs(name, self._by_choice(self._nodes[name]), {})

    @staticmethod
    def _holds(node: NodeDraft, known: Known) -> bool:
        return node.choice is None or known.arms.get(node.choice) == node.arm

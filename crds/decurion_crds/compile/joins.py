"""Joins: the nodes that race for a node which does not wait for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from decurion_crds.compile.draft import NodeDraft, Race, ScopeDraft
from decurion_crds.compile.report import Report
from decurion_crds.findings import listed


def assign_races(scope: ScopeDraft, report: Report) -> None:
    """Gives every node with `any` or `quorum` its race. What cannot be one is in the report and left out."""
    taken: dict[str, str] = {}
    for node in scope.nodes.values():
        join = node.model.join
        if join is None or join.mode == "all":
            continue
        racers = tuple(_racers(scope, node))
        count = join.count if join.mode == "quorum" else 1
        problem = _problem(node, racers, count or 1, taken)
        if problem is None:
            node.race = Race(racers, count or 1)
            taken |= dict.fromkeys(racers, node.name)
        else:
            scope.doubtful = True
            report.add("FIELD-VALUE", node.spot.below("join"), problem)


def _racers(scope: ScopeDraft, node: NodeDraft) -> Iterator[str]:
    """The nodes of the own `after`, or where there is none those whose output it reads, in file order."""
    named = set(node.after) or {name for site in node.scope_sites() for name in site.reads("nodes")}
    return (name for name in scope.nodes if name in named and name not in (node.choice, node.name))


def _problem(node: NodeDraft, racers: Collection[str], count: int, taken: Mapping[str, str]) -> str | None:
    if len(racers) < 2:
        found = f"only {listed(racers)} does" if racers else "no node does"
        return f"at least two nodes race for a node with join, and {found}; name them in after, or remove join"
    if count > len(racers):
        return f"{count} of {len(racers)} nodes never end well; {listed(racers)} race here: lower count"
    twice = next((name for name in racers if name in taken), None)
    if twice is not None:
        return (
            f"{twice} races for {taken[twice]} already, and may be given up for that; read {taken[twice]} here, or "
            "remove one join"
        )
    return None


def certain(race: Race, names: Collection[str]) -> bool:
    """Whether one of these nodes is sure to be among the winners."""
    return sum(name in names for name in race.racers) > len(race.racers) - race.count


def ended_before(above: Collection[str], race: Race | None, ancestors: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The nodes that have ended, or were given up, when a node begins that comes right after `above`.

    Of what comes before the nodes that race, some may still be at work: that before too few of them to be left out.
    """
    racers = race.racers if race is not None else ()
    waited = [name for name in above if name not in racers]
    found = frozenset(above).union(*(ancestors[name] for name in waited))
    if race is None:
        return found
    behind = frozenset().union(*(ancestors[name] for name in racers if name in above))
    sure = {one for one in behind if certain(race, [name for name in racers if one in ancestors[name]])}
    return found | sure

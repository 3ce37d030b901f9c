"""Which ended runs of a graph are beyond what its `spec.history` keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from decurion_operator.cache import Resource
from decurion_operator.conditions import seconds_of

KEPT: Final[Mapping[str, tuple[str, ...]]] = {"succeeded": ("Succeeded",), "failed": ("Failed", "Cancelled")}
"""The phases that each field counts."""


def limits_of(spec: Mapping[str, Any]) -> dict[str, int]:
    """The limits of a graph as they are written; what is none is for the compiler to complain about."""
    written = spec.get("history")
    found = written.items() if isinstance(written, Mapping) else ()
    return {name: most for name, most in found if name in KEPT and type(most) is int and most >= 0}


def named_by(run: Resource) -> tuple[str, ...]:
    """Name and uid of the earlier run that a run begins with, where it says them."""
    specs = (run.spec.get(field) or {} for field in ("retryFrom", "forkFrom"))
    return tuple(str(spec[part]) for spec in specs for part in ("run", "uid") if spec.get(part))


def surplus(runs: Iterable[Resource], limits: Mapping[str, int], *, needed: frozenset[str]) -> list[Resource]:
    """The runs of one graph to delete, oldest end first.

    Runs that a GitOps tool tracks would be created and executed again; those, and runs that are `needed` by name or
    uid, are neither deleted nor counted.
    """
    ended = [run for run in runs if run.finished and not run.deleting]
    ours = [run for run in ended if not run.managed and not needed & {run.key.name, run.uid}]
    found: list[Resource] = []
    for name, most in limits.items():
        group = sorted((run for run in ours if run.phase in KEPT[name]), key=_age)
        found += group[: max(0, len(group) - most)]
    return sorted(found, key=_age)


def _age(run: Resource) -> tuple[float, float, str]:
    finished = seconds_of((run.status or {}).get("finishedAt"))
    return (run.created if finished is None else finished, run.created, run.key.name)

"""What the simulated run has to do: branches of three nodes, the middle one an effect, and a join of all.

Results depend on nothing but the path, so that every history that ends must end in the same cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decurion_ledger import Record, RecordType, Values, make_core, vhash

RUN = "0198c7d2-3f00-7000-8000-00000000d0e1"
STEPS = ("first", "tool", "last")
LARGE = 5_000
"""Characters of what the first node of a branch gives: a blob of its own."""


def path(branch: int, step: str) -> str:
    return f"/b{branch}/{step}"


def output(branch: int, step: str) -> Any:
    return f"{branch}" * LARGE if step == "first" else f"{step} of {branch}"


async def result(values: Values, branch: int, step: str, before: Mapping[str, str], envelope: dict[str, Any]) -> Record:
    """The result of one node; `before` has the core hashes of what it depends on."""
    value = output(branch, step)
    core = make_core(
        type=RecordType.COMMIT,
        path=path(branch, step),
        node="1" * 64,
        parents=before.items(),
        input=vhash({}),
        outcome="ok",
        delta=vhash(value),
        schema=None,
    )
    return Record.result(core, {**envelope, "values": await values.pack([value])})


def join(before: Mapping[str, str], envelope: dict[str, Any]) -> Record:
    """The result of the join: its parents are the ends of all branches."""
    value = sorted(before)
    core = make_core(
        type=RecordType.COMMIT,
        path="/joined",
        node="2" * 64,
        parents=before.items(),
        input=None,
        outcome="ok",
        delta=vhash(value),
        schema=None,
    )
    return Record.result(core, {**envelope, "values": {vhash(value): {"inline": value}}})


def event(type: str, where: str, envelope: dict[str, Any]) -> Record:
    return Record.event(type, where, {"run": RUN, **envelope})

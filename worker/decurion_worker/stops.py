"""Records of limits that are used up: of the decision, and of an agent that ends by it."""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_ledger import Record, RecordType, Values
from decurion_worker.engine.actions import Overspent, Spent
from decurion_worker.records import node_failed


def limit_used_up(run: str, spent: Spent, *, envelope: Mapping[str, Json]) -> Record:
    """A limit is used up, and what has it is broken off. When that came depends on time, so replay follows it."""
    account, name = spent.account, spent.limit
    said: dict[str, Json] = {
        "of": account.of,
        "limit": name,
        "used": account.used.get(name, 0),
        "most": account.limits.amounts[name],
    }
    return Record.event(RecordType.BUDGET, account.path, {"run": run, **envelope, **said})


async def agent_overspent(values: Values, run: str, spent: Overspent, *, envelope: Mapping[str, Json]) -> Record:
    """The failure of an agent whose tools used up a limit of it. How far it came depends on time."""
    return await node_failed(values, run, spent.scope, spent.name, spent.failure, envelope=envelope)

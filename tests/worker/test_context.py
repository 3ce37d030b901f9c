"""What a runner keeps of one run: validators and hashes are those of the schema that is asked about."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from decurion_crds.errors import OutputMismatch
from decurion_crds.expressions import Evaluator
from decurion_ledger import open_store
from decurion_worker.context import RunContext, schema_hash
from decurion_worker.slots import ModelSlots
from decurion_worker.sources import Sources
from decurion_worker.tools import ToolServers
from graphs import map_reduce


@pytest_asyncio.fixture
async def context() -> AsyncIterator[RunContext]:
    async with Evaluator(1) as evaluator:
        yield RunContext(
            run="r",
            graph=map_reduce(),
            seed="s",
            clock="2026-01-01T00:00:00+00:00",
            facts={},
            store=open_store("memory://context"),
            sources=Sources(open_store, files=False),
            evaluator=evaluator,
            slots=ModelSlots(),
            tools=ToolServers(),
        )


async def test_a_schema_that_is_gone_says_nothing_about_the_next_one_at_its_address(context: RunContext) -> None:
    order = random.Random(1)
    for _ in range(2_000):
        kind, value = order.choice([("integer", 1), ("string", "a"), ("null", None)])
        schema = {"type": "array", "items": {"type": kind}}
        assert context.schema_hash(schema) == schema_hash(schema)
        assert await context.checked(schema, [value]) == [value]
        del schema


async def test_the_items_of_every_map_are_checked_by_their_own_schema(context: RunContext) -> None:
    numbers, words = {"type": "integer"}, {"type": "string"}
    assert await context.checked(context.list_of(numbers), [1]) == [1]
    assert await context.checked(context.list_of(words), ["a"]) == ["a"]
    with pytest.raises(OutputMismatch):
        await context.checked(context.list_of(numbers), ["a"])
    assert context.list_of(numbers) is context.list_of(numbers)

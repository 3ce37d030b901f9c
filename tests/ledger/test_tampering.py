"""Single changes of what is stored, of every kind: the verifier reports each; `hack/soak mutations` draws 10,000."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tampering import KINDS, RUNS, World, codes, draw, world

SEEDS = range(200)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[World]:
    yield await world()


@pytest.mark.asyncio(loop_scope="module")
async def test_every_change_is_reported_and_the_unchanged_ledger_is_clean(made: World) -> None:
    assert {run: await made.reported(run) for run in RUNS} == {run: set() for run in RUNS}
    met: Counter[str] = Counter()
    for seed in SEEDS:
        mutation = draw(made, seed)
        met[mutation.kind] += 1
        assert await codes(made, mutation), f"seed {seed}: {mutation.kind} of {mutation.run}"
    assert len(met) >= len(KINDS) - 2
    assert {run: await made.reported(run) for run in RUNS} == {run: set() for run in RUNS}


@pytest.mark.parametrize("kind", ["truncate", "forge"])
@pytest.mark.asyncio(loop_scope="module")
async def test_without_keys_and_anchors_what_a_thorough_forger_did_is_not_found(made: World, kind: str) -> None:
    """What signatures and anchors are for: each of these is found with them, above, and not without."""
    drawn = [mutation for seed in range(120) if (mutation := draw(made, seed)).kind == kind][:12]
    blind = [mutation for mutation in drawn if not await codes(made, mutation, roots=False, anchors=False)]
    assert blind
    for mutation in blind:
        assert await codes(made, mutation)

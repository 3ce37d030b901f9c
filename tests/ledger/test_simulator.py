"""The log protocol under every fault of a network and of processes, in a simulated world: what `hack/soak ledger` does.

That the simulation finds what is wrong is shown by the product with one known fault each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.network import FATES
from simulator.simulation import simulate
from simulator.variants import VARIANTS

SOAK = Path(__file__).parents[2] / "hack" / "soak"
SEEDS = 2000 if os.environ.get("CI") else 100
HISTORY = """
import sys
sys.path.insert(0, sys.argv[1])
from simulator.simulation import simulate
print(*(simulate(int(seed)).trace for seed in sys.argv[2:]))
"""

FOUND = {
    "412 read as lost": (5, (0, 3, 4, 5, 8)),
    "next slot after a time-out": (1, (0, 4, 6)),
    "epoch not bumped": (3, (12, 20, 100, 128, 142)),
    "If-None-Match omitted": (1, (0, 1, 3, 4, 5)),
    "acknowledgement before the PUT returned": (5, (0, 1, 2, 3, 4)),
    "batch rebuilt on retry": (5, (3, 8)),
    "collection without a boundary": (12, (1, 6, 8, 60, 84)),
    "leader epoch not in the fence": (3, (18, 124, 181, 294)),
    "acknowledgement after a stall without a probe": (6, (1, 6, 12, 60, 83)),
    "permit without a term": (16, (48, 64, 68, 130)),
    "doubt without waiting": (16, (225, 599)),
    "open refuses a closed run": (13, (13, 76, 77, 87)),
    "certificate of an earlier leader": (15, (9, 18, 20)),
    "a replay forgets": (8, (0, 1, 5, 6, 8)),
    "a view that changes": (9, (41, 79, 92)),
    "branches see one another": (10, (0, 1, 3, 4, 5)),
}
"""Of each known fault the invariant that it breaks, and seeds that showed it. What is asked of the store, and in which
order, decides what a seed does: after a change of that, others do.
"""
ENOUGH = 5000


def test_no_seed_violates_what_is_promised() -> None:
    command = [sys.executable, str(SOAK), "ledger", "--seeds", str(SEEDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr + done.stdout
    met = json.loads(done.stdout.splitlines()[-1])
    assert met["seeds"] == SEEDS
    wanted = {*FATES, "Fenced", "StaleLeader", "StoreUnknown", "closed"} - {"gone"}
    assert {name for name in wanted if not met.get(name)} == set(), "these never happened"
    assert met["drivers"] > 2 * SEEDS


def test_a_seed_gives_one_history_in_every_process() -> None:
    seeds = [str(seed) for seed in (1, 12, 26, 30)]

    def traces(hash_seed: str) -> str:
        command = [sys.executable, "-c", HISTORY, str(SOAK.parent), *seeds]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=env).stdout

    first = traces("1")
    assert first == traces("2")
    assert len(set(first.split())) == len(seeds)


def test_a_history_that_is_told_is_the_same_one() -> None:
    silent, told = simulate(12), simulate(12, told=True)
    assert silent.trace == told.trace
    assert told.lines


def test_every_known_fault_is_tried() -> None:
    assert FOUND.keys() == VARIANTS.keys()


@pytest.mark.parametrize("name", FOUND)
def test_a_known_fault_is_found(name: str) -> None:
    invariant, recorded = FOUND[name]
    others = (seed for seed in range(ENOUGH) if seed not in recorded)
    for seed in (*recorded, *others):
        violations = simulate(seed, VARIANTS[name]).violations
        if any(violation.startswith(f"{invariant}: ") for violation in violations):
            assert simulate(seed).violations == [], "without the fault the same seed shows nothing"
            return
    pytest.fail(f"no seed below {ENOUGH} shows it")

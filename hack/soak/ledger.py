"""What `python hack/soak ledger` does with every seed: one history of the log protocol under faults, judged.

`--variant` puts one known fault into the product's place; `--told` prints the history of a seed that is violated.
"""

from __future__ import annotations

from collections import Counter

from simulator.simulation import Variant, simulate
from simulator.variants import VARIANTS


def check(seed: int, variant: str, *, told: bool) -> tuple[list[str], Counter[str]]:
    """What is violated by a seed, and a count of what it met."""
    outcome = simulate(seed, VARIANTS[variant] if variant else Variant(), told=told)
    said = [f"seed {seed}: {sentence}" for sentence in outcome.violations]
    if told and said:
        said += outcome.lines or []
    return said, Counter({**outcome.met, "slots": outcome.slots, "steps": outcome.steps})

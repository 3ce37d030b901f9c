"""The final state hash says that results are the same, whatever order they came in."""

import random

import pytest

from decurion_ledger import final_state_hash
from decurion_ledger.errors import DuplicatePath

CORES = [(f"/extract[{i:05d}]!output", f"{i:064x}") for i in range(9)]
CHANNELS = {"rows": "a" * 64, "notes": "b" * 64}


def test_it_is_pinned() -> None:
    assert (
        final_state_hash(CORES, CHANNELS, "c" * 64)
        == "8ee255043702ba23c06b3a27352373dd5490555ba0fd764847b971991fe1bd3a"
    )
    assert final_state_hash([], {}, None) == "a6ddfbd43e0c695e8b5a4b7c55de4feeecd8d2a89bcc38b73319ad8aca4d298b"


def test_order_does_not_matter() -> None:
    shuffled = list(CORES)
    random.Random(3).shuffle(shuffled)
    channels = dict(reversed(CHANNELS.items()))
    assert final_state_hash(iter(shuffled), channels, "c" * 64) == final_state_hash(CORES, CHANNELS, "c" * 64)


def test_everything_in_it_matters() -> None:
    hashes = {
        final_state_hash(CORES, CHANNELS, "c" * 64),
        final_state_hash(CORES, CHANNELS, None),
        final_state_hash(CORES, {}, "c" * 64),
        final_state_hash(CORES, {**CHANNELS, "rows": "0" * 64}, "c" * 64),
        final_state_hash(CORES[1:], CHANNELS, "c" * 64),
        final_state_hash([*CORES[1:], (CORES[0][0], "f" * 64)], CHANNELS, "c" * 64),
        final_state_hash([*CORES[1:], ("/x", CORES[0][1])], CHANNELS, "c" * 64),
    }
    assert len(hashes) == 7


def test_two_results_at_one_path_are_refused() -> None:
    with pytest.raises(DuplicatePath, match="/a"):
        final_state_hash([("/b", "1"), ("/a", "1"), ("/a", "2")], {}, None)

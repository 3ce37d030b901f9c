"""Random graphs of every kind of node, cut off anywhere and resumed: a short form of `make soak`."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from decurion_crds.compiled import CompiledGraph
from manifests import compiled
from soak.ending import until_told
from soak.graphs import whole_run
from soak.judges import Violated, check_writers

ROOT = Path(__file__).parents[2]
SEEDS = 2000 if os.environ.get("CI") else 200


def test_no_seed_violates_what_is_promised() -> None:
    command = [sys.executable, str(ROOT / "hack" / "soak"), "graphs", "--seeds", str(SEEDS), "--sweep-every", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["seeds"] == SEEDS
    assert found["sweeps"] == SEEDS // 10, "these were cut off at each of their records"


def test_a_soak_that_is_told_to_end_says_what_it_has_seen() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), list[int]()
    for seed in until_told(range(10)):
        seen.append(seed)
        if seed == 3:
            os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [0, 1, 2, 3]
    assert signal.getsignal(signal.SIGTERM) is before


def _with_rule(graph: CompiledGraph, rule: str) -> CompiledGraph:
    channels = tuple(channel.model_copy(update={"merge": rule}) for channel in graph.root.channels)
    return graph.model_copy(update={"root": graph.root.model_copy(update={"channels": channels})})


@pytest.mark.parametrize(("after", "told"), [("", True), ("after: [a], ", False)], ids=["in no order", "in an order"])
def test_two_that_write_one_channel_which_keeps_the_last_value_stand_in_an_order(after: str, told: bool) -> None:
    graph = compiled(
        "  state: [{name: sum, schema: {type: integer}, merge: sum}]\n"
        "  nodes:\n"
        "  - {name: a, transform: {v: '1'}, writes: {sum: output.v}}\n"
        f"  - {{name: b, {after}transform: {{v: '2'}}, writes: {{sum: output.v}}}}\n"
        "  output: {v: state.sum}\n"
    )
    log = whole_run(graph, {}, random.Random(0)).log
    check_writers(graph, log)
    # The compiler refuses this graph; so that the judge is seen to judge, it gets it all the same.
    last = _with_rule(graph, "replace")
    if told:
        with pytest.raises(Violated, match="b and a wrote sum in no order"):
            check_writers(last, log)
    else:
        check_writers(last, log)

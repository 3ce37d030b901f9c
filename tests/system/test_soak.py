"""Random graphs of every kind of node, cut off anywhere and resumed: a short form of `make soak`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from soak.ending import until_told

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

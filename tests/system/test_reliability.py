"""What the retries promise: fifty steps of which each attempt fails with one per cent still end correct."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNS = 500


def test_fifty_steps_end_correct_with_the_default_retries_and_not_without() -> None:
    command = [sys.executable, str(ROOT / "hack" / "bench"), "reliability", "--runs", str(RUNS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    tried, untried = map(json.loads, done.stdout.splitlines())
    assert tried["failures"] > 0.8 * RUNS * 50 * 0.01, "the failures were not drawn"
    assert tried["correct"] == RUNS, tried["wrong"]
    assert 0.5 < untried["correct"] / RUNS < 0.7

"""A short form of `make chaos`: it strikes, checks, and would say so if something were wrong."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_seconds_of_chaos_violate_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    command = [
        sys.executable, str(ROOT / "hack" / "chaos"), "--minutes", "0.1", "--seed", "11", "--executor", "local",
        "--lease", "3", "--stop-seconds", "4", "--width", "16", "--runs", "2", "--delay", "0.1",
        "--report", str(report),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr + report.read_text()
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    summary = lines[-1]["summary"]
    assert summary["runs"] == len(lines) - 1 >= 2
    assert sum(summary["blows"].values()) >= 1
    assert all(line["violations"] == [] for line in lines[:-1])

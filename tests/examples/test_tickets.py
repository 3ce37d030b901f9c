"""The first example of the README: checked, run on this machine, and looked into."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tickets"


def decurion(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("decurion")
    return subprocess.run(
        [program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_example_is_right_as_it_stands(tmp_path: Path) -> None:
    done = decurion("validate", "--strict", EXAMPLE, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_example_runs_and_its_ledger_holds(tmp_path: Path) -> None:
    done = decurion("run", EXAMPLE, "--run-id", "tickets-1", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["summary"] == {"outages": 2, "tickets": 4}
    assert [one["topic"] for one in output["triaged"]] == ["outage", "bill", "other", "outage"]
    verified = decurion("ledger", "verify", "tickets-1", folder=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr

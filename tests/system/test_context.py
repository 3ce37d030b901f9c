"""What a run over many documents holds in a context window."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_model_call_over_500_documents_sees_a_fiftieth_of_them() -> None:
    command = [sys.executable, str(ROOT / "hack" / "bench"), "context"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "501 model calls" in done.stdout

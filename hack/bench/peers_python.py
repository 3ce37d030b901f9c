"""The Python of the peers' environment: what is compared with is installed apart from the project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
PEERS = REPOSITORY / ".bench"


def peers_python() -> str:
    """Its path; the environment is made as locked the first time, and brought up to the lock after."""
    python = PEERS / "bin" / "python"
    uv = str(REPOSITORY / ".venv" / "bin" / "uv")
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(PEERS)], check=True)
    lock = str(REPOSITORY / "requirements" / "bench.lock")
    subprocess.run([uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", lock], check=True)
    return str(python)

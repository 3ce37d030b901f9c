"""A PostgreSQL of the distribution, in a folder of its own, on a socket there; durable as it comes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`; Debian keeps them apart from those that are in the path."""
    found = [Path(p).parent for p in [shutil.which("initdb")] if p]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists()), None)


@contextmanager
def postgres(folder: Path) -> Iterator[str | None]:
    """The address of a server that runs meanwhile; None where PostgreSQL is not installed."""
    programs = _programs()
    if programs is None:
        yield None
        return
    folder.mkdir()
    prefix: list[str] = []
    if os.geteuid() == 0:  # it refuses to be run by root
        shutil.chown(folder, "postgres", "postgres")
        prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
    data, log = folder / "data", folder / "log"

    def call(program: str, *arguments: str) -> None:
        command = [*prefix, str(programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120, cwd="/")

    call("initdb", "-D", str(data), "-A", "trust", "-U", "bench", "--no-instructions")
    call("pg_ctl", "-D", str(data), "-l", str(log), "-w", "-o", f"-k {folder} -c listen_addresses=''", "start")
    try:
        yield f"host={folder} user=bench dbname=postgres"
    finally:
        call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")

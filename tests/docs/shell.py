"""A folder and a shell in which the commands of a page run one after the other, as they would for a reader.

Four things differ from what a reader does: the operator and the worker take free ports, the namespace `default` is
one of the test's own, `/tmp/decurion` is a folder of the page, and what goes to the background writes into files,
so that it does not stand between other output.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from pages import ROOT

SECONDS = 120.0
_MARK = "--- end of a command of the page:"
_BACKGROUND = re.compile(r"(?<!&)&\s*(#.*)?$")
_DECURION = """\
case "$1 $2" in
  "operator run") set -- "${@/#default/$DOCS_NAMESPACE}" --health-port 0 ;;
  "worker serve") set -- "$@" --port 0 ;;
esac
exec %s -m decurion_cli "$@"
"""


class CommandFailed(Exception):
    """A command of a page did not end, or not as the page says."""


class Shell:
    """A bash in `folder`, which holds a copy of the examples and `.venv/bin`. Ends with all that it started."""

    def __init__(self, folder: Path, *, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True)
        shutil.copytree(ROOT / "examples", folder / "examples")
        tools = folder / ".venv" / "bin"
        tools.mkdir(parents=True)
        (tools / "python").symlink_to(sys.executable)
        self.command("decurion", _DECURION % sys.executable)
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(("DECURION_", "AWS_", "KUBE", "CI"))}
        self._env |= {"PATH": f"{tools}:{os.environ['PATH']}", "USER": os.environ.get("USER", "docs"), "COLUMNS": "200"}
        self._env |= env or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs = 0

    def __enter__(self) -> Shell:
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and output, both streams as they come. Raises `CommandFailed` when it does not end."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        command = self.here(command)
        if _BACKGROUND.search(command):
            self._jobs += 1
            command = _BACKGROUND.sub(f"> {self._logs}/{self._jobs}.log 2>&1 &", command)
        script = f"{{ {command}\n}} </dev/null\ns=$?; printf '\\n{_MARK} %s\\n' $s; (exit $s)\n"
        process.stdin.write(script.encode())
        process.stdin.flush()
        said = b""
        deadline = time.monotonic() + SECONDS
        while (ended := re.search(rf"\n{_MARK} (\d+)\n".encode(), said)) is None:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not more:
                text = said.decode(errors="replace")
                raise CommandFailed(f"`{command}` did not end within {SECONDS:g} s; it said: {text}{self.told()}")
            said += more
        return int(ended[1]), said[: ended.start()].decode(errors="replace")

    def command(self, name: str, script: str) -> None:
        """A command of the page: what bash makes of `script`."""
        path = self.folder / ".venv" / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(stat.S_IRWXU)

    def here(self, text: str) -> str:
        """A command, or a manifest, with the folder for ledgers that the page has."""
        return text.replace("/tmp/decurion", str(self.folder / "ledgers"))

    def write(self, name: str, text: str) -> None:
        """A file of the page."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.here(text))

    def told(self) -> str:
        """The ends of what the jobs in the background said."""
        logs = [log for log in sorted(self._logs.iterdir()) if log.stat().st_size]
        return "".join(f"\n{log.name}: …{log.read_text(errors='replace')[-2000:]}" for log in logs)


def fits(shown: str, said: str) -> bool:
    """Whether output is as shown: … stands for anything, and white space does not count."""
    parts = [re.escape(re.sub(r"\s+", "", part)) for part in shown.split("…")]
    return re.fullmatch(".*?".join(parts), re.sub(r"\s+", "", said), re.DOTALL) is not None

"""Server processes on loopback that never outlive the process that started them."""

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster.errors import ServerDied

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_LOG_LINES_SHOWN = 8


def free_ports(count: int) -> list[int]:
    """Distinct loopback TCP ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def wait_until(ready: Callable[[], bool], *, seconds: float, what: str, every: float = 0.05) -> None:
    """Return as soon as `ready()` is true; raise `ServerDied` naming `what` when `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ServerDied(f"{what} was not ready after {seconds:g} s.")
        time.sleep(every)


class Server:
    """One server process with a log file.

    The kernel kills it when the thread that started it ends, however that happens: start servers in a thread
    that lives as long as they shall.
    """

    def __init__(self, name: str, command: Sequence[str | Path], *, folder: Path, env: Mapping[str, str]) -> None:
        """Start `command` in `folder` with exactly the environment `env`, writing to `folder/NAME.log`."""
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check_alive(self) -> None:
        """Raise `ServerDied` with the last lines of the log if the process has ended."""
        status = self._process.poll()
        if status is not None:
            raise ServerDied(f"{self.name} ended with status {status}; see {self.log}, which ends:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])

    def pause(self) -> None:
        """Stop the process as a frozen machine would; `resume` lets it go on."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once: what it kept goes with its folder, no graceful stop is waited for."""
        self._process.kill()
        self._process.wait()


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

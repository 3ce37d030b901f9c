"""The operator as a process, for tests and benches: started, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


class OperatorProcess:
    """`decurion operator run` for one namespace, with `more` options; its log goes to `folder`/operator.log."""

    def __init__(self, folder: Path, *, kubeconfig: Path, namespace: str, more: tuple[str, ...] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "operator.log"
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._args = [
            sys.executable, "-m", "decurion_cli", "operator", "run", "--namespace", namespace, "--health-port", "0",
            *more,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the operator was not started")
        return self._process.pid

    def start(self) -> OperatorProcess:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._args, stdout=log, stderr=log, env=self._env, start_new_session=True)
        return self

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)

    def stop(self) -> None:
        """SIGTERM; SIGKILL when it does not end in time."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()

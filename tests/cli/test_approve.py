"""`decurion run` of a graph that asks, and `decurion approve` on a ledger of this machine."""

from __future__ import annotations

import getpass
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: pay}
spec:
  input: {amount: {type: integer}}
  nodes:
    - name: review
      with: {amount: input.amount}
      approval:
        message: "Pay {{ amount }}?"
        form: {account: {type: string}, "part?": {type: integer}}
        timeoutSeconds: 3600
    - name: pay
      with: {found: nodes.review.output.form}
      code: |
        {"to": found["account"] if found is not None else "nobody"}
      output: {to: {type: string}}
  output: {to: nodes.pay.output.to}
"""
BIN = Path(sys.executable).parent / "decurion"
START = ("run", "graph.yaml", "--input", '{"amount": 7}', "--run-id", "one", "--ledger", "led", "--quiet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "graph.yaml").write_text(GRAPH)
    return tmp_path


def decurion(folder: Path, *arguments: str, command: Path = BIN) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("DECURION_LEDGER", "KUBECONFIG")}
    return subprocess.run(
        [str(command), *arguments],
        cwd=folder,
        env=env | {"KUBECONFIG": str(folder / "none")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_a_terminal_a_run_ends_with_the_lines_that_go_on_and_nothing_is_lost(folder: Path) -> None:
    waits = decurion(folder, *START)
    assert waits.returncode == 4
    assert waits.stderr == (
        "decurion: run one waits for people at /review: Pay 7?\n"
        "decide with: decurion approve one /review --ledger led\n"
        "then go on with: decurion run --resume one --ledger led\n"
    )
    refused = decurion(folder, "approve", "one", "--ledger", "led", "--form", "account:=5")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == 'decurion: run one: /review: form.account: 5 is not of type "string"\n'
    elsewhere = decurion(folder, "approve", "one", "/other", "--ledger", "led")
    assert (elsewhere.returncode, "waits for nobody at /other" in elsewhere.stderr) == (2, True)
    done = decurion(folder, "approve", "one", "--ledger", "led", "--form", "account=A1", "--form", "part:=2")
    assert done.returncode == 0, done.stderr
    line = "go on with: decurion run --resume one --ledger led\n"
    assert done.stdout == f"approved by {getpass.getuser()}\n{line}"
    again = decurion(folder, "run", "--resume", "one", "--ledger", "led", "--quiet")
    assert again.returncode == 0, again.stderr
    assert '"to": "A1"' in again.stdout
    closed = decurion(folder, "approve", "one", "--ledger", "led")
    assert (closed.returncode, "waits for nobody" in closed.stderr) == (2, True)
    listed = decurion(folder, "ledger", "ls", "one", "--ledger", "led").stdout
    assert listed.count("timer_set") == listed.count("approval_given") == 1


def test_a_rejection_is_given_with_its_reason(folder: Path) -> None:
    assert decurion(folder, *START).returncode == 4
    assert decurion(folder, "approve", "one", "--reject", "--comment", "too much", "--ledger", "led").returncode == 0
    failed = decurion(folder, "run", "--resume", "one", "--ledger", "led")
    assert failed.returncode == 1
    assert f"/review: {getpass.getuser()} has rejected it (too much)" in failed.stderr.replace("\n", " ")


@pytest.mark.parametrize(("answer", "code"), [("review=no", 1), ("/review=no", 1), ("*=no", 1), ("other=no", 2)])
def test_answers_may_come_with_the_command(folder: Path, answer: str, code: int) -> None:
    assert decurion(folder, *START, "--approve", answer).returncode == code


def test_an_answer_that_is_none_or_that_lacks_the_form_is_told_at_once(folder: Path) -> None:
    assert "write NODE=yes or NODE=no" in decurion(folder, *START, "--approve", "review").stderr
    short = decurion(folder, *START, "--approve", "review=yes")
    assert short.returncode == 2
    assert 'form: "account" is a required property' in short.stderr


def test_an_answer_that_nobody_asked_for_is_told_when_a_run_goes_on(folder: Path) -> None:
    decurion(folder, *START)
    again = decurion(folder, "run", "--resume", "one", "--ledger", "led", "--quiet", "--approve", "reviw=yes")
    assert again.returncode == 4
    assert "--approve reviw: nothing that it asks now has this name" in again.stderr
    assert "review" in again.stderr


def test_an_answer_that_is_refused_leaves_a_run_and_the_line_that_goes_on_with_it(folder: Path) -> None:
    refused = decurion(folder, *START, "--approve", "review=yes")
    assert refused.returncode == 2
    assert refused.stderr.endswith("\ngo on with: decurion run --resume one --ledger led\n")


def test_without_a_cluster_the_command_says_what_to_name(folder: Path) -> None:
    nowhere = decurion(folder, "approve", "one")
    assert nowhere.returncode == 3
    assert "name --kubeconfig, or --ledger" in nowhere.stderr


def test_the_plugin_of_kubectl_is_the_same_command(folder: Path) -> None:
    plugin = decurion(folder, "approve", "--help", command=BIN.with_name("kubectl-decurion"))
    assert plugin.returncode == 0
    assert "--reject" in plugin.stdout


def test_at_a_terminal_it_asks_until_the_answer_is_one(folder: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [str(BIN), *START], cwd=folder, stdin=follower, stderr=follower, stdout=subprocess.PIPE, text=True
    )
    os.close(follower)
    try:
        seen = ""
        for prompt, typed in [
            ("approve? [yes/no] ", "perhaps\n"),
            ("approve? [yes/no] ", "yes\n"),
            ("account: ", "A1\n"),
            ("part (optional): ", "three\n"),
            ("approve? [yes/no] ", "y\n"),
            ("account: ", "A1\n"),
            ("part (optional): ", "\n"),
        ]:
            seen = _until(leader, prompt)
            os.write(leader, typed.encode())
        assert "form.part" in seen or seen
        assert process.wait(timeout=60) == 0
        assert process.stdout is not None
        assert '"to": "A1"' in process.stdout.read()
    finally:
        process.kill()
        os.close(leader)


def _until(terminal: int, text: str, seconds: float = 60.0) -> str:
    """What the terminal shows up to `text`."""
    seen, end = "", time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096).decode()
    return seen

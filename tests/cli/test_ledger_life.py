"""`decurion ledger copy` and `gc` as somebody types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: tiny}
spec:
  nodes:
    - name: say
      transform: {text: "'x' * 9000"}
  output: {text: nodes.say.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: tiny-1}
spec: {graph: tiny, retentionSeconds: 0}
"""


def decurion(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "decurion_cli", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a run that has ended and is over at once, and its copy."""
    folder = tmp_path_factory.mktemp("life")
    (folder / "graph.yaml").write_text(GRAPH)
    ran = decurion(folder, "run", "graph.yaml", "--run-id", "one", "--ledger", "from", "-q", "-o", "none")
    assert ran.returncode == 0, ran.stderr
    return folder


def test_a_run_is_copied_once_and_verified(folder: Path) -> None:
    first = decurion(folder, "ledger", "copy", "from", "one", "to", "-o", "json")
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert (told["problems"], told["present"], told["blobs"] > 0) == ([], 0, True)
    again = decurion(folder, "ledger", "copy", "from", "one", "to")
    assert "0 objects and 0 blobs copied" in again.stdout
    assert "the copy is verified" in again.stdout
    assert decurion(folder, "ledger", "verify", "to", "one").stdout == "one: ok (unsigned)\n"


def test_a_copy_with_damage_is_told(folder: Path) -> None:
    assert decurion(folder, "ledger", "copy", "from", "one", "damaged").returncode == 0
    blob = next(path for path in (folder / "damaged" / "blobs").rglob("*") if path.is_file())
    blob.write_bytes(b'"y' + blob.read_bytes()[2:])
    copied = decurion(folder, "ledger", "copy", "from", "one", "damaged")
    assert copied.returncode == 1
    assert "[BLOB" in copied.stdout


def test_what_is_over_is_condemned_then_deleted(folder: Path) -> None:
    assert decurion(folder, "ledger", "copy", "from", "one", "old").returncode == 0
    dry = decurion(folder, "ledger", "gc", "old", "--dry-run", "-o", "json")
    assert [one["fate"] for one in json.loads(dry.stdout)["runs"]] == ["condemned"]
    first = decurion(folder, "ledger", "gc", "old")
    assert first.stdout.startswith("condemned  one  its retention is over, deleted after ")
    for path in (folder / "old").rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    second = decurion(folder, "ledger", "gc", "old")
    assert second.stdout.startswith("deleted    one"), second.stdout + second.stderr
    assert sorted(p.name for p in (folder / "old").rglob("*") if p.is_file()) == ["FORMAT", "one"]
    read = decurion(folder, "ledger", "show", "one", "/say", "--ledger", "old")
    assert (read.returncode, "was deleted from" in read.stderr) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("copy", "nowhere", "one", "to"), 2, "there is no ledger"),
        (("copy", "from", "two", "to"), 3, "run two has no log"),
        (("gc", "from", "--older-than", "soon"), 2, "write a number and s, m, h, d or w"),
        (("gc", "nowhere"), 2, "there is no ledger"),
    ],
)
def test_mistakes_are_told_in_one_sentence(folder: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    told = decurion(folder, "ledger", *arguments)
    assert told.returncode == code
    assert said in told.stderr
    assert told.stderr.count("\n") == 1


HALVES = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: halves}
spec:
  nodes:
    - name: first
      transform: {text: "'x' * 9000"}
    - name: ask
      after: [first]
      retry: {transient: 0}
      llm: {ref: reader, prompt: Say something}
  output: {size: len(nodes.first.output.text), said: nodes.ask.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: reader}
spec: {protocol: scripted, scripted: {SCRIPT}}
"""


@pytest.mark.parametrize("mode", ["--retry-from", "--fork-from"])
def test_a_run_of_another_ledger_is_copied_and_then_taken_up(tmp_path: Path, mode: str) -> None:
    graph = tmp_path / "halves.yaml"
    graph.write_text(HALVES.replace("SCRIPT", "replies: [{error: ModelUnavailable}]"))
    ran = decurion(tmp_path, "run", "halves.yaml", "--run-id", "one", "--ledger", "elsewhere", "-q")
    assert ran.returncode == 1, ran.stderr
    earlier = (mode, "one", *(("/ask",) if mode == "--fork-from" else ()))
    missing = decurion(tmp_path, "run", "halves.yaml", *earlier, "--ledger", "here", "-q")
    assert missing.returncode == 2
    assert "does not hold it" in missing.stderr
    assert decurion(tmp_path, "ledger", "copy", "elsewhere", "one", "here").returncode == 0
    if mode == "--fork-from":
        graph.write_text(HALVES.replace("SCRIPT", "default: hello"))
    again = decurion(tmp_path, "run", "halves.yaml", *earlier, "--run-id", "two", "--ledger", "here", "-q")
    assert again.returncode == (0 if mode == "--fork-from" else 1), again.stderr
    shown = json.loads(decurion(tmp_path, "ledger", "show", "two", "/first", "--ledger", "here", "-o", "json").stdout)
    assert shown["records"][0]["from"]["run"] == "one"
    verified = decurion(tmp_path, "ledger", "verify", "here", "two")
    assert verified.returncode == 0, verified.stdout

"""Sensitive values on a laptop, as somebody types it: the seal key, what is shown, copies and erasure."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decurion_cli.main import app

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: letter}
spec:
  sensitive: [who]
  input: {who: {type: string}}
  nodes:
    - name: write
      with: {who: input.who}
      code: |
        if len(who) > 12:
            raise ValueError("too long: " + who)
        {"text": "Dear " + who}
      output: {text: {type: string}}
  output: {text: nodes.write.output.text}
"""
NAME = "Ada Quill"


@dataclass(frozen=True, slots=True)
class Said:
    returncode: int
    stdout: str
    stderr: str


def decurion(folder: Path, *arguments: str, stdin: str = "") -> Said:
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, arguments, input=stdin)
    return Said(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sensitive")
    (folder / "graph.yaml").write_text(GRAPH)
    return folder


def run(folder: Path, name: str, *more: str) -> Said:
    given = json.dumps({"who": name})
    return decurion(folder, "run", "graph.yaml", "--ledger", "ledger", "-q", "--input", given, *more)


def test_a_run_shows_its_output_to_who_asks_for_it_and_leaves_nothing_in_clear(folder: Path) -> None:
    ran = run(folder, NAME, "--run-id", "one")
    assert (ran.returncode, ran.stdout) == (0, '"(sensitive)"\n'), ran.stderr
    again = run(folder, NAME, "--run-id", "two", "--reveal")
    assert json.loads(again.stdout) == {"text": f"Dear {NAME}"}
    key = folder / "ledger.key"
    assert key.stat().st_mode & 0o777 == 0o600
    files = [path for path in (folder / "ledger").rglob("*") if path.is_file()]
    assert files
    assert all(NAME.encode() not in path.read_bytes() for path in files)

    hidden = decurion(folder, "ledger", "show", "one", "/write", "--ledger", "ledger").stdout
    assert "output: (sensitive)" in hidden
    shown = decurion(folder, "ledger", "show", "one", "/write", "--ledger", "ledger", "--reveal").stdout
    assert f'"text": "Dear {NAME}"' in shown


def test_a_failure_says_what_it_quotes_only_to_who_asks_for_it(folder: Path) -> None:
    failed = run(folder, "Quillfeather the Elder", "--run-id", "three")
    assert failed.returncode == 1
    assert "Quillfeather" not in failed.stdout + failed.stderr
    hidden = decurion(folder, "ledger", "show", "three", "/write", "--ledger", "ledger").stdout
    assert "Quillfeather" not in hidden
    assert "--reveal" in hidden
    shown = decurion(folder, "ledger", "show", "three", "/write", "--ledger", "ledger", "--reveal").stdout
    assert "too long: Quillfeather" in shown


def test_another_seal_key_is_refused_and_none_is_made_for_a_run_that_is_there(folder: Path) -> None:
    other = decurion(folder, "run", "--resume", "one", "--ledger", "ledger", "--seal-key", "other.key")
    assert other.returncode == 3
    assert "there is no seal key" in other.stderr
    assert not (folder / "other.key").exists()


def test_a_copy_has_the_key_where_it_is_wanted_and_what_is_erased_is_gone(folder: Path) -> None:
    assert decurion(folder, "ledger", "copy", "ledger", "two", "plain").returncode == 0
    assert not (folder / "plain" / "keys").exists()
    assert decurion(folder, "ledger", "copy", "ledger", "two", "keyed", "--with-keys").returncode == 0
    assert (folder / "keyed" / "keys").is_dir()
    archive = decurion(folder, "ledger", "copy", "ledger", "two", "two.tar", "--with-keys")
    assert archive.returncode == 2
    assert "an archive holds no keys" in archive.stderr

    asked = decurion(folder, "ledger", "erase", "ledger", "two", stdin="n\n")
    assert asked.returncode == 2
    assert "nothing was erased" in asked.stderr
    erased = decurion(folder, "ledger", "erase", "ledger", "two", "--yes")
    assert erased.stdout == "two: what is sensitive in it is erased.\n"
    again = decurion(folder, "ledger", "erase", "ledger", "two", "--yes")
    assert again.stdout == "two: what is sensitive in it was erased before.\n"
    assert decurion(folder, "ledger", "verify", "ledger", "two").stdout == "two: ok (unsigned)\n"
    assert "(erased)" in decurion(folder, "ledger", "show", "two", "/write", "--ledger", "ledger").stdout
    fork = decurion(folder, "run", "--fork-from", "two", "/write", "--ledger", "ledger")
    assert fork.returncode == 3
    assert "was erased" in fork.stderr
    still = decurion(folder, "ledger", "show", "one", "/write", "--ledger", "ledger", "--reveal")
    assert NAME in still.stdout


def test_a_sensitive_input_in_a_resource_is_warned_of(folder: Path) -> None:
    run = "---\napiVersion: decurion.dev/v1alpha1\nkind: TaskGraphRun\nmetadata: {name: r}\n"
    (folder / "in.yaml").write_text(GRAPH + run + f"spec: {{graph: letter, input: {{who: {NAME}}}}}\n")
    said = decurion(folder, "validate", "in.yaml")
    assert said.returncode == 0
    assert "warning: in.yaml:21:36 input.who [SENSITIVE] who is sensitive" in said.stderr
    assert NAME not in said.stderr


def test_a_run_that_is_not_there_is_told_apart_from_one_without_a_key(folder: Path) -> None:
    missing = decurion(folder, "ledger", "erase", "ledger", "nobody", "--yes")
    assert missing.returncode == 3
    assert "run nobody has no log in" in missing.stderr


def test_without_an_answer_nothing_is_erased(folder: Path) -> None:
    assert run(folder, NAME, "--run-id", "asked").returncode == 0
    asked = decurion(folder, "ledger", "erase", "ledger", "asked")
    assert asked.returncode == 2
    assert "decurion: nothing was erased, since nobody answered; say --yes" in asked.stderr


def test_a_run_that_is_refused_leaves_no_key(folder: Path) -> None:
    assert run(folder, NAME, "--run-id", "went-well").returncode == 0
    keys = sorted((folder / "ledger" / "keys").rglob("*"))
    retry = decurion(folder, "run", "--retry-from", "went-well", "--ledger", "ledger", "--run-id", "never")
    assert retry.returncode == 2
    assert retry.stderr.startswith("decurion: run went-well: it succeeded")
    other = decurion(
        folder, "run", "--fork-from", "went-well", "/write", "--input", "{}", "--ledger", "ledger", "--run-id", "never"
    )
    assert other.returncode == 2
    assert [path for path in sorted((folder / "ledger" / "keys").rglob("*")) if path.is_file()] == [
        path for path in keys if path.is_file()
    ]

"""`decurion run` with `--cancel`, `--retry-from` and `--fork-from`: what people and scripts get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HALVES = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: halves}
spec:
  input: {uri: {type: string}}
  nodes:
    - name: begin
      with: {uri: input.uri}
      transform: {uri: uri}
    - name: rows
      map: {itemsFrom: {jsonl: nodes.begin.output.uri, schema: {type: integer}}, as: row, template: one}
    - name: sum
      with: {rows: nodes.rows.output.items}
      transform: {total: "sum([row.k for row in rows])"}
  output: {total: nodes.sum.output.total}
  finally:
    - name: told
      with: {how: run.outcome}
      transform: {how: how}
  templates:
    - name: one
      input: {row: {type: integer}}
      nodes:
        - name: half
          with: {row: input.row}
          transform: {k: row + 1}
      output: {k: nodes.half.output.k}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "halves.yaml").write_text(HALVES)
    return tmp_path


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "decurion_cli", *args],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip


def test_a_run_that_failed_is_retried_once_its_cause_is_mended(folder: Path) -> None:
    given = json.dumps({"uri": (folder / "rows.jsonl").as_uri()})
    first = run(folder, "run", "halves.yaml", "--input", given, "--run-id", "first", "-q")
    assert first.returncode == 1, first.stderr
    (folder / "rows.jsonl").write_text("1\n2\n")
    again = run(folder, "run", "--retry-from", "first", "--run-id", "second", "-q")
    assert (again.returncode, json.loads(again.stdout)) == (0, {"total": 5}), again.stderr
    assert run(folder, "ledger", "verify", "second").returncode == 0
    forked = run(folder, "run", "--fork-from", "second", "/rows[00001]", "-q")
    assert (forked.returncode, json.loads(forked.stdout)) == (0, {"total": 5}), forked.stderr


def test_what_makes_no_sense_is_one_sentence_and_exit_2(folder: Path) -> None:
    for args, words in (
        (("--retry-from", "nobody"), "does not hold it"),
        (("--retry-from", "a", "--resume", "b"), "exclude one another"),
        (("--retry-from", "a", "--graph", "g"), "the graph is taken from the ledger"),
        (("halves.yaml", "--cancel", "Stop"), "--cancel ends a run that is there"),
    ):
        done = run(folder, "run", *args)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert done.stderr.strip().count("\n") == 0, done.stderr


def test_a_path_that_nothing_ran_at_is_told_with_one_that_may_be_meant(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("1\n2\n")
    given = json.dumps({"uri": (folder / "rows.jsonl").as_uri()})
    assert run(folder, "run", "halves.yaml", "--input", given, "--run-id", "first", "-q").returncode == 0

    def refused(path: str) -> str:
        done = run(folder, "run", "--fork-from", "first", path)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    assert refused("rowz").endswith("there is nothing at '/rowz' that could run again; did you mean /rows?\n")
    assert "did you mean /rows[0000" in refused("/rows[7]")
    assert "what finally did is never taken" in refused("/finally/told")
    assert refused("sums").startswith("decurion: run first:")
    assert run(folder, "run", "--fork-from", "first", "rows[1]", "-q").returncode == 0

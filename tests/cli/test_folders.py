"""`decurion run` and `decurion node test` over a folder of files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LETTERS = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: letters}
spec:
  input: {folder: {type: string}}
  nodes:
    - name: each
      map:
        itemsFrom: {prefix: input.folder, glob: "*.txt"}
        as: file
        body:
          nodes:
            - name: count
              load: {text: {from: input.file}}
              transform: {words: len(text.split())}
          output: {key: input.file.key, words: nodes.count.output.words}
    - name: rates
      load: {rates: {from: "input.folder + '/rates.json'", as: json, schema: {eur: {type: integer}}}}
      transform: {eur: rates.eur}
  output: {found: nodes.each.output.items, eur: nodes.rates.output.eur}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: letters-1}
spec: {graph: letters, input: {folder: post}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    post = tmp_path / "graphs" / "post"
    post.mkdir(parents=True)
    (tmp_path / "graphs" / "letters.yaml").write_text(LETTERS)
    (post / "a.txt").write_text("dear all")
    (post / "b c.txt").write_text("bye")
    (post / "rates.json").write_text('{"eur": 3}')
    return tmp_path


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "decurion_cli", *args],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip


def test_a_folder_is_read_from_the_file_that_names_it_and_the_list_is_kept(folder: Path) -> None:
    done = run(folder, "run", "graphs", "--run-id", "first", "-q")
    assert done.returncode == 0, done.stderr
    found = [{"key": "a.txt", "words": 2}, {"key": "b c.txt", "words": 1}]
    assert json.loads(done.stdout) == {"found": found, "eur": 3}
    shown = run(folder, "ledger", "show", "first", "/each!open")
    assert '"uri": "post/b c.txt"' in shown.stdout
    assert run(folder, "ledger", "verify", "first").returncode == 0
    drawn = run(folder, "graph", "show", "graphs")
    assert "for each file below input.folder" in drawn.stdout


def test_a_folder_that_is_not_there_is_one_sentence(folder: Path) -> None:
    done = run(folder, "run", "graphs", "--input", '{"folder": "nothing"}')
    assert done.returncode == 1
    assert "nothing: there is no such file or object; put it there, or correct the address" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_node_is_tested_with_a_text_instead_of_its_file_or_with_the_file(folder: Path) -> None:
    given = folder / "given.yaml"
    for snapshot, words in (
        ("{text: one two three}", {"words": 3}),
        ("{input: {file: {key: a.txt, uri: post/a.txt, size: 8, etag: ''}}}", {"words": 2}),
    ):
        given.write_text(snapshot)
        done = run(folder, "node", "test", "graphs", "each.count", "--snapshot", str(given))
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.dumps(words["words"]) in done.stdout
    given.write_text("{}")
    done = run(folder, "node", "test", "graphs", "each.count", "--snapshot", str(given))
    assert done.returncode == 2
    assert "the snapshot has neither text nor input.file, which says its file; add one of them" in done.stderr

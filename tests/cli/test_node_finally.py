"""Nodes of `finally` alone: run with a snapshot, and given another kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from decurion_cli.main import app
from decurion_cli.node import try_node
from decurion_crds.errors import InputError

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  input: {texts: {type: array, items: {type: string}}}
  nodes:
    - name: each
      map: {items: input.texts, as: text, template: one}
  output: {sizes: "[one.size for one in nodes.each.output.items]"}
  finally:
    - name: tell
      with: {how: run.outcome, why: "run.failure.message if run.failure else ''", all: "nodes.each.output"}
      transform: {line: "how + ' ' + why", done: "len(all.items) if all else -1"}
      output: {line: {type: string}, done: {type: integer}}
    - name: after
      with: {line: "nodes.tell.output.line if nodes.tell.output else ''"}
      transform: {line: line.upper()}
      output: {line: {type: string}}
  templates:
    - name: one
      input: {text: {type: string}}
      nodes:
        - {name: count, with: {text: input.text}, transform: {size: len(text)}}
      output: {size: nodes.count.output.size}
      finally:
        - name: note
          with: {size: "nodes.count.output.size if nodes.count.output else 0", how: run.outcome}
          transform: {note: "how + str(size)"}
          output: {note: {type: string}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "graph.yaml").write_text(GRAPH)
    return tmp_path / "graph.yaml"


MAPPED = {"output": {"items": [{"size": 1}], "failures": [], "total": 1}}
FAILED = {"outcome": "Failed", "failure": {"path": "/each", "class": "Terminal", "code": "X", "message": "lost"}}


@pytest.mark.parametrize(
    ("node", "snapshot", "output"),
    [
        ("finally.tell", {"run": {"outcome": "Succeeded", "failure": None}, "nodes": {"each": MAPPED}},
         {"line": "Succeeded ", "done": 1}),
        ("finally.tell", {"run": FAILED, "nodes": {"each": None}}, {"line": "Failed lost", "done": -1}),
        ("finally.after", {"nodes": {"tell": {"output": {"line": "a", "done": 0}}}}, {"line": "A"}),
        ("one.finally.note", {"run": {"outcome": "Failed"}, "nodes": {"count": {"output": {"size": 3}}}},
         {"note": "Failed3"}),
        ("each.finally.note", {"size": 2, "how": "Succeeded"}, {"note": "Succeeded2"}),
    ],
)  # fmt: skip
def test_a_node_of_finally_sees_what_the_snapshot_says_of_the_nodes_and_of_the_end(
    file: Path, node: str, snapshot: Any, output: Any
) -> None:
    outcome = try_node(file, node, snapshot)
    assert (outcome.status, outcome.output) == ("ok", output), outcome


@pytest.mark.parametrize(
    ("node", "snapshot", "words"),
    [
        ("finally.tell", {"nodes": {"each": MAPPED}}, "has neither how nor run.outcome, from which it comes"),
        ("finally.tel", {}, 'there is no node "finally.tel"; did you mean "finally.tell"?'),
        ("one.finally.not", {}, 'there is no node "one.finally.not"; did you mean "one.finally.note"?'),
    ],
)
def test_what_cannot_be_right_is_refused(file: Path, node: str, snapshot: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        try_node(file, node, snapshot)
    assert words in str(refused.value)


@pytest.mark.parametrize("node", ["finally.tell", "one.finally.note"])
def test_a_node_of_finally_is_given_another_kind(file: Path, node: str) -> None:
    done = CliRunner().invoke(app, ["node", "set-kind", str(file), node, "code"])
    assert done.exit_code == 0, done.stderr
    before, after = GRAPH.splitlines(), file.read_text().splitlines()
    gone = [line for line in before if line not in after]
    assert [line.split(":")[0].strip() for line in gone] == ["transform"]
    assert next(line.strip() for line in after if line not in before) == "code: |"

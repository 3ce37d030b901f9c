"""`decurion diff`: what differs between two versions, by nodes and contracts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.main import app

GRAPH = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  input: {text: {type: string}, limit: {type: integer}}
  state: [{name: seen, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: read
      with: {text: input.text}
      transform: {words: text.split()}
      output: {words: {type: array, items: {type: string}}}
    - name: count
      with: {words: nodes.read.output.words, limit: input.limit}
      transform: {many: 'min(len(words), limit)'}
      writes: {seen: "['x']"}
    - name: side
      transform: {v: "1"}
    - name: inner
      with: {text: input.text}
      graph: {template: one}
  output: {many: nodes.count.output.many, v: nodes.side.output.v, s: state.seen, i: nodes.inner.output.t}
  templates:
    - name: one
      input: {text: {type: string}}
      nodes:
        - {name: same, with: {t: input.text}, transform: {t: t}}
      output: {t: nodes.same.output.t}
"""


def told(tmp_path: Path, changed: str, *more: str) -> Result:
    for name, text in (("a.yaml", GRAPH), ("b.yaml", changed)):
        (tmp_path / name).write_text(text)
    return CliRunner().invoke(app, ["diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"), *more])


def test_another_spelling_is_no_difference(tmp_path: Path) -> None:
    spelled = GRAPH.replace("{text: input.text}\n      transform", "\n        text:   input.text\n      transform")
    done = told(tmp_path, f"# a comment\n{spelled}")
    assert (done.exit_code, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("text.split()", "text.split(' ')", ["~ nodes.read: its transform changed"]),
        (
            "      transform: {words: text.split()}\n",
            "      code: text.split()\n".replace("text.split()", "'{\"words\": text.split()}'"),
            ["~ nodes.read: it became code, and was transform"],
        ),
        (
            "    - name: side\n",
            "    - name: side\n      after: [read]\n",
            ["~ nodes.side: it now runs after read"],
        ),
        (
            "with: {words: nodes.read.output.words, limit: input.limit}",
            "with: {words: nodes.read.output.words, limit: '3'}",
            ["~ nodes.count: its with changed (contract)"],
        ),
        ("limit: {type: integer}}", "limit: {type: number}}", None),
        ("merge: append", "merge: union", ["~ state.seen: the channel was changed"]),
        (
            "{text: {type: string}, limit",
            "{text: {type: string}, 'more?': {type: string}, limit",
            ["~ input.more: the field was added"],
        ),
        (
            "        - {name: same,",
            "        - {name: new, transform: {v: '1'}}\n        - {name: same,",
            ["+ templates.one.nodes.new: transform node added"],
        ),
        (
            "{t: nodes.same.output.t}",
            "{t: nodes.same.output.t + '!'}",
            ["~ templates.one.output: what it is made of changed"],
        ),
    ],
)
def test_what_differs_is_told(tmp_path: Path, old: str, new: str, lines: list[str] | None) -> None:
    assert old in GRAPH
    done = told(tmp_path, GRAPH.replace(old, new, 1))
    assert done.exit_code == 1, done.output
    if lines is not None:
        assert done.stdout.splitlines() == lines
    else:
        assert "~ input.limit: its type changed" in done.stdout.splitlines()


def test_a_node_that_went_elsewhere_was_moved(tmp_path: Path) -> None:
    moved = GRAPH.replace('    - name: side\n      transform: {v: "1"}\n', "").replace(
        "        - {name: same,", '        - {name: side, transform: {v: "1"}}\n        - {name: same,'
    )
    moved = moved.replace("v: nodes.side.output.v, ", "")
    found = json.loads(told(tmp_path, moved, "-o", "json").stdout)
    assert {"sort": "moved", "path": "templates.one.nodes.side", "message": "it was nodes.side"} in found
    assert [one for one in found if one["sort"] in ("added", "removed")] == []

"""`decurion node set-kind`: the block changes, the contract and the rest of the file do not."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.main import app

BLOCKS = {
    "transform": "      transform:\n        topic: \"'other'\"\n",
    "code": '      code: |\n        {"topic": "other"}\n',
    "llm": '      llm: {ref: fast, prompt: "What is {{ text }}?"}\n',
}
GRAPH = """\
# the graph of the tests
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  input: {texts: {type: array, items: {type: string}}}
  nodes:
    - name: each
      map: {items: input.texts, as: text, template: one}
  output: {topics: "[one.topic for one in nodes.each.output.items]"}
  templates:
    - name: one
      input: {text: {type: string}}
      nodes:
        - {name: first, with: {t: input.text}, transform: {up: t.upper()}, output: {up: {type: string}}}
        - name: read
          with: {text: nodes.first.output.up}   # what is read
BLOCK
          # its contract
          output: {topic: {enum: [outage, other]}}
      output: {topic: nodes.read.output.topic}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {topic: other}}}
"""


def graph(kind: str) -> str:
    return GRAPH.replace("BLOCK\n", BLOCKS[kind].replace("\n  ", "\n      ").replace("      ", "          ", 1))


def told(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["node", "set-kind", *map(str, arguments)])


@pytest.mark.parametrize(("old", "new"), list(permutations(BLOCKS, 2)))
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["unix", "windows"])
def test_only_the_block_changes(tmp_path: Path, old: str, new: str, end: str) -> None:
    file = tmp_path / "g.yaml"
    text = graph(old).replace("\n", end)
    file.write_bytes(text.encode())
    done = told(file, "one.read", new)
    assert done.exit_code == 0, done.output
    before, after = text.split(end), file.read_bytes().decode().split(end)
    start, stop = (
        before.index("          with: {text: nodes.first.output.up}   # what is read"),
        "          # its contract",
    )
    assert after[: start + 1] == before[: start + 1]
    assert after[after.index(stop) :] == before[before.index(stop) :]
    assert after[start + 1].strip().startswith(f"{new}:")
    checked = CliRunner().invoke(app, ["validate", str(file)])
    assert checked.exit_code == 0, checked.output


def test_a_block_between_braces(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(graph("llm"))
    assert told(file, "one.first", "code").exit_code == 0
    assert """with: {t: input.text}, code: "{\\"up\\": ''}", output:""" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("each", "code"), "each: it is map, which has a structure of its own"),
        (("one.read", "llm"), "one.read: it is llm already"),
        (("one.read", "loop"), "loop is no kind that a node can move to"),
        (("one.raed", "code"), 'did you mean "one.read"?'),
        (("one.first", "llm", "--ref", "none"), 'there is no LLM "none"'),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(graph("llm"))
    done = told(file, *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert file.read_text() == graph("llm")


def test_an_output_that_is_not_declared_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(graph("llm").replace(", output: {up: {type: string}}}", "}"))
    done = told(file, "one.first", "code")
    assert (done.exit_code, "its output is not declared" in done.stderr) == (2, True)

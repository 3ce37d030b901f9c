"""Operators of other languages, and values of other types: what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from decurion_cli.checking import every_finding
from decurion_cli.main import app

GRAPH = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  input: {a: {type: boolean}, b: {type: boolean}, num: {type: integer}}
  nodes:
    - name: x
      when: "WHEN"
      with: {num: input.num}
      code: |
        {"v": CODE}
      output: {v: {type: string}}
      otherwise: {v: "''"}
  output: {v: nodes.x.output.v}
"""


@pytest.mark.parametrize(
    ("written", "column", "words", "instead"),
    [
        ("input.a AND input.b", 22, "write `and` for AND", "input.a and input.b"),
        ("input.a OR input.b", 22, "write `or` for OR", "input.a or input.b"),
        ("NOT input.a", 14, "write `not` for NOT", "not input.a"),
        ("input.a && input.b", 22, "write `and` for &&", "input.a and input.b"),
        ("input.a||input.b", 21, "write `or` for ||", "input.a or input.b"),
    ],
)
def test_a_logical_operator_of_another_language(
    tmp_path: Path, written: str, column: int, words: str, instead: str
) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(GRAPH.replace("WHEN", written).replace("CODE", "str(num)"))
    (found,) = [one for one in every_finding({file: file.read_text()}) if one.severity == "error"]
    assert (found.line, found.column, found.code) == (8, column, "EXPR-SYNTAX")
    assert found.message.endswith(f"; {words}")
    assert CliRunner().invoke(app, ["fix", str(file)]).exit_code == 0
    assert file.read_text() == GRAPH.replace("WHEN", instead).replace("CODE", "str(num)")


def test_a_field_of_another_type_says_how_to_convert() -> None:
    text = GRAPH.replace("WHEN", "input.a").replace("CODE", "num")
    (found,) = [one for one in every_finding({Path("g.yaml"): text}) if one.severity == "error"]
    assert found.message.endswith("; write str(…) around it")

"""Faults of a run's input carry the place where it was written; several resources of one name are one fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.main import app

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: user}
spec:
  input: {row: {$ref: "graph:types#/schemas/Row"}, num: {type: integer}}
  nodes:
    - name: one
      with: {num: input.num, row: input.row}
      llm: {ref: fast, prompt: "{{ num }} {{ row }}"}
  output: {text: nodes.one.output.text}
"""
TYPES = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: types}
spec:
  schemas:
    Row: {type: object, required: [id], properties: {id: {type: string}}}
    Lone: {type: string}
  nodes: [{name: one, transform: {ok: "True"}}]
  output: {ok: nodes.one.output.ok}
"""
LLM = """
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {replies: [{reply: done}]}}
"""
RUN = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: first}
spec:
  graph: user
  input:
    row: {id: 5}
    num: many
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"graph": GRAPH, "types": TYPES, "llm": LLM}.items():
        Path(f"{name}.yaml").write_text(text)
    return tmp_path


def decurion(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run(*more: str) -> Result:
    return decurion("run", "graph.yaml", "types.yaml", "llm.yaml", "--graph", "user", "--quiet", *more)


def test_faults_of_a_manifests_input_are_at_their_places(folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN)
    done = run("run.yaml")
    assert done.exit_code == 2
    assert [line for line in done.stderr.splitlines() if "[INPUT]" in line] == [
        'run.yaml:9:10 input.num [INPUT] "many" is not of type "integer"; correct the input of the run',
        'run.yaml:8:15 input.row.id [INPUT] 5 is not of type "string"; correct the input of the run',
    ]


def test_faults_of_a_file_are_at_their_places(folder: Path) -> None:
    (folder / "in.json").write_text('{\n  "row": {"id": "a"},\n\t"num": "many"\n}\n')
    done = run("--input", "@in.json")
    assert done.exit_code == 2
    assert 'in.json:3:9 input.num [INPUT] "many" is not of type "integer"' in done.stderr
    (folder / "in.json").write_text('{"num": 5}')
    assert "in.json:1:1 input [INPUT] " in run("--input", "@in.json").stderr
    (folder / "in.json").write_text("[5]")
    assert "in.json:1:1 input [INPUT] [5] is not of type" in run("--input", "@in.json").stderr
    (folder / "in.json").write_text('{"num": "many", "row": {"id": "' + "x" * 2**20 + '"}}')
    assert "in.json:1:1 input.num [INPUT] " in run("--input", "@in.json").stderr


def test_an_input_of_the_command_line_has_no_file(folder: Path) -> None:
    done = run("--input", '{"num": "many", "row": {"id": "a"}}')
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        2,
        'decurion: input.num: "many" is not of type "integer"',
    )


def test_several_resources_of_one_name_are_one_finding(folder: Path) -> None:
    (folder / "llm.yaml").write_text("---".join([LLM] * 3))
    found = [line for line in run().stderr.splitlines() if "DUPLICATE-NAME" in line]
    assert found == [
        'llm.yaml:9:18 metadata.name [DUPLICATE-NAME] there is already an LLM "fast" at llm.yaml:4, and at '
        "llm.yaml:14; give each a name of its own"
    ]


def test_a_schema_that_another_graph_uses_is_used(folder: Path) -> None:
    done = decurion("validate", "graph.yaml", "types.yaml", "llm.yaml")
    assert done.exit_code == 0, done.output
    assert [line for line in done.output.splitlines() if "UNUSED" in line] == [
        "warning: types.yaml:8:11 schemas.Lone [UNUSED] no schema uses Lone; use it, or remove it"
    ]

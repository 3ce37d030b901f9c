"""`decurion artefact`: what a run leaves is listed and taken out, and what is not there is said."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decurion_cli.main import app

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: report}
spec:
  workspace: {artefacts: [{name: report, path: "out/*.md", type: text/markdown}, {name: data, path: out/a.csv}]}
  nodes:
    - name: data
      workspace: {write: [out/a.csv]}
      tool: {server: workspace, name: write, arguments: {path: out/a.csv, text: "1,2"}}
    - name: report
      workspace: {write: ["out/*.md"]}
      tool: {server: workspace, name: write_files, arguments: {files: FILES}}
  output: {count: nodes.report.output.count}
"""
TWO = "[{path: out/a.md, text: one}, {path: out/b.md, text: two}]"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.stderr


def run(folder: Path, files: str, *, status: int = 0) -> str:
    (folder / "graph.yaml").write_text(GRAPH.replace("FILES", files))
    return call("run", "graph.yaml", "--run-id=r1", "--quiet", status=status)


def test_artefacts_are_listed_by_name_and_taken_out(folder: Path) -> None:
    run(folder, TWO)
    rows = json.loads(call("artefact", "ls", "r1", "-o", "json"))
    assert [(row["name"], row["type"], row["size"], row["path"]) for row in rows] == [
        ("report", "text/markdown", 3, "out/a.md"),
        ("report", "text/markdown", 3, "out/b.md"),
        ("data", "text/csv", 3, "out/a.csv"),
    ]
    assert call("artefact", "get", "r1", "data") == "1,2"
    assert call("artefact", "get", "r1", "out/b.md") == "two"
    assert "name a folder for them by --to" in call("artefact", "get", "r1", "report", status=2)
    call("artefact", "get", "r1", "report", "--to", "there")
    assert sorted(path.name for path in (folder / "there" / "out").iterdir()) == ["a.md", "b.md"]
    call("artefact", "get", "r1", "--all", "--to", "all")
    assert (folder / "all" / "out" / "a.csv").read_text() == "1,2"
    assert [row["path"] for row in json.loads(call("artefact", "ls", "r1", "--all", "--at=/data", "-o", "json"))] == [
        "out/a.csv"
    ]


def test_what_is_not_there_is_said(folder: Path) -> None:
    run(folder, TWO)
    assert 'no artefact or file "raport"; did you mean "report"?' in call("artefact", "get", "r1", "raport", status=2)
    assert "has no record at /nowhere" in call("artefact", "ls", "r1", "--at=/nowhere", status=2)
    assert "has no log in" in call("artefact", "ls", "other", status=3)


def test_a_run_that_leaves_no_file_for_an_artefact_fails_and_its_steps_can_be_looked_at(folder: Path) -> None:
    assert "ArtefactMissing" in run(folder, "[]", status=1)
    assert "it has not ended well" in call("artefact", "ls", "r1", status=2)
    assert "out/a.csv" in call("artefact", "ls", "r1", "--at=/data")


def test_artefacts_of_a_graph_without_files_are_refused(folder: Path) -> None:
    (folder / "graph.yaml").write_text(
        GRAPH.partition("  nodes:")[0] + '  nodes: [{name: a, transform: {v: "1"}}]\n  output: {v: nodes.a.output.v}\n'
    )
    assert "no node of the graph has anything to do with files" in call("validate", "graph.yaml", status=2)


def test_a_place_that_cannot_be_written_is_told(folder: Path) -> None:
    run(folder, "[{path: out/b.md, text: b}]")
    told = call("artefact", "get", "r1", "data", "--to", "nowhere/data", status=3)
    assert told.startswith("decurion: nowhere/data: No such file or directory; name another place")

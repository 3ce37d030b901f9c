"""What somebody does who is new to the command: each answer says what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.main import app

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: notes}
spec:
  input: {notes: {type: array, items: {type: object, required: [id], properties: {id: {type: string}}}}}
  nodes:
    - name: each
      map: {items: input.notes, as: note, key: note.id, template: one}
    - {name: ask, after: [each], approval: {message: Go on, onReject: continue}}
  output: {ids: "[one.id for one in nodes.each.output.items]", ok: nodes.ask.output.approved}
  templates:
    - name: one
      input: {note: {type: object, required: [id], properties: {id: {type: string}}}}
      nodes: [{name: read, with: {id: input.note.id}, transform: {id: id}}]
      output: {id: nodes.read.output.id}
"""
RUN = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: first}
spec: {graph: nodes, input: {notes: []}}
"""
INPUT = '{"notes": [{"id": "a"}, {"id": "b c"}]}'


def decurion(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the graph, and a ledger with its run `r1`."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "graph.yaml").write_text(GRAPH)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = decurion("run", "graph.yaml", "--input", INPUT, "--run-id", "r1", "--approve", "ask=yes", "-q")
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def test_an_item_is_named_by_its_key() -> None:
    shown = decurion("ledger", "show", "r1", "/each[a]/read")
    assert shown.exit_code == 0, shown.stderr
    assert '"id": "a"' in shown.stdout
    assert decurion("ledger", "prove", "r1", "/each[b c]/read").exit_code == 0
    forked = decurion("run", "--fork-from", "r1", "/each[a]", "--approve", "ask=yes", "--run-id", "r2", "-q")
    assert forked.exit_code == 0, forked.stderr
    assert decurion("ledger", "show", "r1", "/each[d]/read").exit_code == 2


def test_a_run_without_an_input_says_how_to_give_one() -> None:
    done = decurion("run", "graph.yaml")
    assert done.exit_code == 2
    assert "give the input by --input, or by a TaskGraphRun of notes among the files" in done.stderr


def test_a_run_of_another_graph_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    done = decurion("run", "graph.yaml", str(tmp_path / "run.yaml"))
    assert done.exit_code == 2
    assert "[REF-MISSING] there is no graph nodes among these files; did you mean notes?" in done.stderr


def test_an_answer_for_a_node_that_does_not_ask_is_refused() -> None:
    done = decurion("run", "graph.yaml", "--input", INPUT, "--approve", "/asks=yes")
    assert done.exit_code == 2
    assert '--approve /asks: no node "asks" of the graph asks people; did you mean "ask"?' in done.stderr


def test_a_ledger_is_not_taken_for_a_run(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    for command in ("ls", "verify"):
        done = decurion("ledger", command, gone)
        assert (done.exit_code, "there is no ledger" in done.stderr) == (2, True)


def test_an_archive_is_told_from_a_ledger(tmp_path: Path) -> None:
    file = str(tmp_path / "r1.tar")
    assert decurion("ledger", "copy", ".decurion/ledger", "r1", file).exit_code == 0
    done = decurion("ledger", "ls", file)
    assert (done.exit_code, f"by `decurion ledger copy {file} RUN LEDGER`" in done.stderr) == (2, True)
    done = decurion("ledger", "copy", file, "r9", str(tmp_path / "other"))
    assert (done.exit_code, f"{file}: it holds r1, and not r9" in done.stderr) == (2, True)


def test_a_run_without_artefacts_says_so() -> None:
    done = decurion("artefact", "ls", "r1", "--all")
    assert "run r1" in done.stderr
    assert done.stdout == ""


def test_a_condemned_run_is_not_one_that_the_ledger_does_not_hold(tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert decurion("ledger", "copy", ".decurion/ledger", "r1", other).exit_code == 0
    assert decurion("ledger", "gc", other, "--older-than", "0d").exit_code == 0
    done = decurion("run", "--fork-from", "r1", "/ask", "--ledger", other)
    assert done.exit_code == 2
    assert "run r1: its retention is over, so nothing can be taken from it" in done.stderr

"""The JSON Schema for editors takes what the compiler takes, and refuses misspelt fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from typer.testing import CliRunner

from decurion_cli.main import app
from decurion_crds.editor import FILE, editor_schema, main
from decurion_crds.loader import load
from decurion_crds.v1alpha1 import BLOCKS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())


def problems(schema: dict[str, Any], resource: Any) -> list[str]:
    return [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(resource)]


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: str(path.name))
def test_the_examples_are_right(folder: Path) -> None:
    schema = editor_schema()
    ours = [document for document in load([folder]).documents if document.ours]
    assert ours
    for document in ours:
        assert problems(schema, document.raw) == [], document.name


GRAPH: dict[str, Any] = {
    "apiVersion": "decurion.dev/v1alpha1",
    "kind": "TaskGraph",
    "metadata": {"name": "g"},
    "spec": {"nodes": [{"name": "a", "llm": {"ref": "fast", "prompt": "x"}}], "output": {"x": "nodes.a.output.text"}},
}


def changed(**node: Any) -> dict[str, Any]:
    return {**GRAPH, "spec": {"nodes": [{**GRAPH["spec"]["nodes"][0], **node}]}}


@pytest.mark.parametrize(
    "node",
    [
        {"whn": "True"},
        {"code": "1"},
        {"timeoutSeconds": 0},
        {"onFailure": "skipp"},
        {"llm": {"ref": "fast"}},
        {"llm": {"ref": "fast", "prompt": "x", "modell": 1}},
    ],
)
def test_a_mistake_in_a_field_is_seen(node: dict[str, Any]) -> None:
    assert problems(editor_schema(), GRAPH) == []
    assert problems(editor_schema(), changed(**node)) != []


def test_a_body_in_place_is_right() -> None:
    body = {"nodes": [{"name": "b", "transform": {"v": "1"}}], "output": {"v": "nodes.b.output.v"}}
    node = {"name": "a", "map": {"items": "[1]", "body": body}}
    assert problems(editor_schema(), {**GRAPH, "spec": {"nodes": [node]}}) == []


def test_known_names_are_the_only_ones(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(
        "apiVersion: decurion.dev/v1alpha1\nkind: LLM\nmetadata: {name: fast}\n"
        "spec: {protocol: scripted, scripted: {default: hi}}\n"
    )
    done = CliRunner().invoke(app, ["schema", "--graph", str(tmp_path)])
    schema = json.loads(done.stdout)
    assert problems(schema, GRAPH) == []
    assert problems(schema, changed(llm={"ref": "fsat", "prompt": "x"})) != []


def test_files_in_the_middle_of_being_written_hold_the_names_that_they_have(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(
        "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\n"
        "spec: {templates: 5, nodes: [{name: first, transform: }]}\n"
    )
    done = CliRunner().invoke(app, ["schema", "--graph", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert '"first"' in done.stdout


NOT_SEEN = {
    "names/artefact-twice": "two items of one name",
    "names/node-twice": "two items of one name",
    "order/join-any": "a field that goes with one value of another",
    "pools/runners": "one number above another",
    "tools/agent-template": "what may be inside of another kind",
    "tools/header": "words in capitals or small letters",
    "workspaces/collect": "a field that goes with one value of another",
}
"""What the API server refuses and a JSON Schema cannot say."""
SERVER = sorted(
    file for file in (ROOT / "tests" / "crds" / "refused").rglob("*.yaml") if "\n# first: server" in file.read_text()
)


@pytest.mark.parametrize("file", SERVER, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_the_api_server_refuses_an_editor_underlines(file: Path) -> None:
    schema = editor_schema()
    seen = any(problems(schema, document.raw) for document in load([file]).documents)
    assert seen == (f"{file.parent.name}/{file.stem}" not in NOT_SEEN)


def test_the_inside_of_a_body_is_looked_at() -> None:
    inner = {"nodes": [{"name": "c", "graph": {"body": {"nodes": [{"name": "d", "transfrom": {"v": "1"}}]}}}]}
    node = {"name": "a", "map": {"items": "[1]", "body": inner}}
    assert problems(editor_schema(), {**GRAPH, "spec": {"nodes": [node]}}) != []


def test_names_inside_expressions_have_their_form() -> None:
    assert problems(editor_schema(), changed(**{"with": {"text": "input.text"}})) == []
    assert problems(editor_schema(), changed(**{"with": {"the-text": "input.text"}})) != []


def test_nodes_that_are_known_are_the_only_ones_to_wait_for() -> None:
    schema = editor_schema({"node": ["a", "b"]})
    assert problems(schema, changed(after=["b"])) == []
    assert problems(schema, changed(after=["c"])) != []


def test_one_kind_alone() -> None:
    done = CliRunner().invoke(app, ["schema", "--kind", "TaskGraph"])
    schema = json.loads(done.stdout)
    assert schema["properties"]["kind"]["enum"] == ["TaskGraph"]
    assert problems(schema, GRAPH) == []
    assert problems(schema, {**GRAPH, "kind": "LLM"}) != []
    unknown = CliRunner().invoke(app, ["schema", "--kind", "Graph"])
    assert (unknown.exit_code, "TaskGraph" in unknown.stderr) == (2, True)


def test_every_block_is_described_and_has_an_example_that_is_right() -> None:
    [spec] = [one["then"]["properties"]["spec"] for one in editor_schema(kind="TaskGraph")["allOf"]]
    fields = spec["properties"]["nodes"]["items"]["properties"]
    for name in (*BLOCKS, "with", "output", "writes", "when"):
        assert fields[name]["description"], name
        [example] = fields[name]["examples"]
        assert problems({**fields[name], "definitions": editor_schema()["definitions"]}, example) == [], name


def test_the_committed_schema_is_that_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err
    assert problems(json.loads(FILE.read_text()), GRAPH) == []


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*/*.yaml")), ids=lambda path: str(path.name))
def test_the_examples_name_the_schema(file: Path) -> None:
    first, *_ = file.read_text().splitlines()
    named = first.removeprefix("# yaml-language-server: $schema=")
    shown = file == ROOT / "examples" / "tickets" / "graph.yaml"  # stands in the README as it is
    assert shown or (file.parent / named).resolve() == FILE

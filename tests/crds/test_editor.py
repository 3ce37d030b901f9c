"""The JSON Schema for editors takes what the compiler takes, and refuses misspelt fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from typer.testing import CliRunner

from decurion_cli.main import app
from decurion_crds.editor import editor_schema
from decurion_crds.loader import load

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

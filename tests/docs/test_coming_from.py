"""The tables of constructs from elsewhere: every snippet of ours stands in a graph or run that is compiled."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from decurion_cli.main import app
from decurion_crds.v1alpha1 import BLOCKS, Node, TaskGraphRunSpec, TaskGraphSpec
from pages import ROOT
from specs import AROUND

PAGE = ROOT / "docs" / "coming-from.md"
ROW = re.compile(r"^\| (?P<there>.+) \| (?P<here>.+) \| (?P<more>\[.+\)) \|$", re.MULTILINE)
ROWS = [found for found in ROW.finditer(PAGE.read_text()) if found["there"] != "there"]
NODE, GRAPH, RUN = (
    {field.alias for field in model.model_fields.values()} for model in (Node, TaskGraphSpec, TaskGraphRunSpec)
)

SPEC: dict[str, Any] = yaml.safe_load("""
schemas: {Item: {type: object, required: [id], properties: {id: {type: string}, size: {type: integer}}}}
input: {number: {type: integer}, text: {type: string}, file: {type: string}, items: {type: array, items: Item}}
nodes:
  - {name: first, with: {items: input.items}, transform: {size: len(items)}}
  - {name: second, with: {text: input.text}, llm: {ref: fast, prompt: "Say {{ text }}"}}
output: {text: input.text}
templates:
  - name: one
    input: {item: Item}
    nodes: [{name: size, with: {item: input.item}, transform: {size: item.size or 0}}]
    output: {size: nodes.size.output.size}
  - name: step
    input: {number: {type: integer}}
    nodes: [{name: add, with: {number: input.number}, transform: {number: number + 1}}]
    output: {number: nodes.add.output.number}
""")
NEEDED: dict[str, dict[str, Any]] = {
    "graph template": {"with": {"item": "input.items[0]"}},
    "graph ref": {"with": {"text": "input.text"}},
    "loop template": {"with": {"number": "input.number"}},
    "tool server": {"with": {"text": "input.text"}},
    "code": {"with": {"input_text": "input.text"}, "output": {"type": "integer"}},
    "transform": {"with": {"input_text": "input.text"}},
}
"""What a node with a block needs beside it."""


def snippets(cell: str) -> list[dict[str, Any]]:
    """The parts of a cell that are parts of manifests."""
    found = [yaml.safe_load(code) for code in re.findall(r"`([a-zA-Z]+: [^`]+)`", cell)]
    return [snippet for snippet in found if isinstance(snippet, dict)]


def node(snippet: dict[str, Any]) -> dict[str, Any]:
    """A node around a part of one."""
    it = {"name": "it", **snippet}
    if "join" in it:
        it["after"] = ["first", "second"]
    if not any(name in it for name in BLOCKS):
        it |= {"llm": {"ref": "fast", "prompt": "Say it."}} if "output" in it else {"transform": {"size": 1}}
    [block] = [name for name in BLOCKS if name in it]
    inner = next(iter(it[block])) if isinstance(it[block], dict) else ""
    extra = NEEDED.get(f"{block} {inner}") or (NEEDED.get(block) if block in snippet else None) or {}
    it = extra | it
    if it.get("onFailure") == "otherwise":
        it.setdefault("otherwise", {"size": 0})
    return it


def manifests(snippet: dict[str, Any]) -> list[dict[str, Any]]:
    """The graph, and the run, that a snippet is put into."""
    spec = copy.deepcopy(SPEC)
    run: dict[str, Any] | None = None
    [key, *rest] = snippet
    assert not rest, f"one field a snippet: {snippet}"
    if key in NODE:
        spec["nodes"].append(node(snippet))
    elif key in GRAPH:
        spec |= snippet
        if key == "state":
            value = {"string": "'a'", "array": "input.items" if snippet[key][0]["name"] == "rows" else "['a']"}
            spec["nodes"][0]["writes"] = {snippet[key][0]["name"]: value[snippet[key][0]["schema"]["type"]]}
    else:
        assert key in RUN, f"{key} is a field of no node, graph or run"
        run = {"graph": "it", **snippet}
        if key not in ("retryFrom", "forkFrom"):
            run["input"] = {"number": 1, "text": "a", "file": "a.jsonl", "items": []}
    head = {"apiVersion": "decurion.dev/v1alpha1", "metadata": {"name": "it"}}
    found = [{**head, "kind": "TaskGraph", "spec": spec}]
    return found if run is None else [*found, {**head, "kind": "TaskGraphRun", "spec": run}]


def test_the_tables_are_there() -> None:
    titles = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert titles == ["Argo Workflows", "LangGraph", "Temporal"]
    assert len(ROWS) >= 50


def test_each_row_shows_code_or_says_that_there_is_nothing() -> None:
    for row in ROWS:
        told = re.search(
            r"\bnot here\b|\bnothing to write\b|\bcompiled\b|`decurion |`maxRunning`|`limits\.", row["here"]
        )
        assert snippets(row["here"]) or told, row["there"]


@pytest.mark.parametrize(
    "snippet",
    [
        pytest.param(snippet, id=f"{row['there'][:24]}-{next(iter(snippet))}")
        for row in ROWS
        for snippet in snippets(row["here"])
    ],
)
def test_a_snippet_is_compiled(snippet: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_text(yaml.safe_dump_all(manifests(snippet), sort_keys=False))
    done = CliRunner().invoke(app, ["validate", str(file), str(AROUND)])
    assert done.exit_code == 0, f"{snippet}: {done.stderr}"


@pytest.mark.parametrize(
    "snippet",
    [
        {"when": "nodes.first.output.sise > 1"},
        {"cancel": "Now"},
        {"state": [{"name": "notes", "schema": {"type": "string"}, "merge": "apend"}]},
    ],
)
def test_a_wrong_snippet_would_be_seen(snippet: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_text(yaml.safe_dump_all(manifests(snippet), sort_keys=False))
    assert CliRunner().invoke(app, ["validate", str(file), str(AROUND)]).exit_code == 2

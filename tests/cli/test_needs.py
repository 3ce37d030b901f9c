"""Graphs whose needs have no resource of their name, as a person checks and runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from decurion_cli.main import app
from decurion_cli.manifests import compiled
from decurion_crds.findings import CompileFailed

LOOKUP = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: lookup}
spec:
  needs: {searcher: MCPServer, model: LLM}
  nodes:
    - name: find
      tool: {server: searcher, name: find}
    - name: ask
      with: {hits: nodes.find.output.hits}
      llm: {ref: model, prompt: "{{ hits }}"}
  output: {text: nodes.ask.output.text}
"""
MAIN = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: main}
spec:
  nodes:
    - {name: one, graph: {ref: lookup, bind: {searcher: web, model: fast}}}
  output: {text: nodes.one.output.text}
"""
RESOURCES = """
apiVersion: decurion.dev/v1alpha1
kind: MCPServer
metadata: {name: web}
spec: {url: "http://localhost:1/mcp", tools: [{name: find, output: {hits: {type: integer}}}]}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {text: x}}}
"""
RUN = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: one}
spec: {graph: lookup, overrides: {servers: {searcher: web}, llms: {model: fast}}}
"""


def validated(folder: Path, *texts: str) -> tuple[str, list[str]]:
    (folder / "all.yaml").write_text("---".join(texts))
    done = CliRunner().invoke(app, ["validate", str(folder / "all.yaml")])
    return done.stdout, [line.split(" ", 1)[1] for line in done.stderr.splitlines()]


def test_a_graph_whose_uses_bind_all_of_its_needs_is_right_and_validate_says_as_what(tmp_path: Path) -> None:
    said, findings = validated(tmp_path, LOOKUP, MAIN, RESOURCES)
    assert findings == []
    assert [line.partition("digest ")[2][16:] for line in said.splitlines()] == [" with model=fast, searcher=web", ""]


def test_alone_it_is_told_what_to_do(tmp_path: Path) -> None:
    _, findings = validated(tmp_path, LOOKUP, RESOURCES)
    assert [finding.partition(", or apply")[0] for finding in findings] == [
        'needs.searcher [REF-MISSING] there is no MCPServer "searcher"; bind it where the graph is used',
        'needs.model [REF-MISSING] there is no LLM "model"; bind it where the graph is used',
    ]


def test_a_use_that_leaves_a_need_open_is_told_once(tmp_path: Path) -> None:
    _, findings = validated(tmp_path, LOOKUP, MAIN.replace("searcher: web, ", ""), RESOURCES)
    assert [finding.partition(";")[0] for finding in findings] == [
        "nodes.one.graph.ref [REF-MISSING] the graph lookup needs an MCPServer searcher, and there is none of that name"
    ]


def test_a_run_binds_what_the_graph_needs_or_is_told_that_it_does_not(tmp_path: Path) -> None:
    assert validated(tmp_path, LOOKUP, RUN, RESOURCES)[1] == []
    bare = RUN.partition(", overrides")[0] + "}\n"
    _, findings = validated(tmp_path, LOOKUP, MAIN, bare, RESOURCES)
    assert findings == [
        "graph [REF-MISSING] the graph lookup needs the LLM model, and there is none of that name; bind one, as in "
        "overrides: {llms: {model: NAME}}",
        "graph [REF-MISSING] the graph lookup needs the MCPServer searcher, and there is none of that name; bind one, "
        "as in overrides: {servers: {searcher: NAME}}",
    ]


def test_the_command_line_binds_a_need_by_its_kind(tmp_path: Path) -> None:
    """Also where the name of what it binds is that of a resource of another kind."""
    twin = RESOURCES.replace("name: fast", "name: web")
    (tmp_path / "all.yaml").write_text("---".join((LOOKUP, twin)))
    _, graph = compiled([tmp_path], "", bind={"searcher": "web", "model": "web"})
    assert (sorted(graph.servers), sorted(graph.llms)) == (["searcher"], ["model"])
    with pytest.raises(CompileFailed):
        compiled([tmp_path], "", bind={"searcher": "web"})

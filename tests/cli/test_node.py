"""`decurion node test`, and the fixture for tests of users."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.main import app
from decurion_cli.node import try_node
from decurion_crds.errors import InputError

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: facts}
spec:
  schemas: {Fact: {type: object, required: [field, value], properties: {field: {type: string}, value: {type: number}}}}
  input: {texts: {type: array, items: {type: string}}, limit: {type: integer}}
  state: [{name: seen, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: each
      map: {items: input.texts, as: text, template: one}
    - name: check
      when: input.limit > 1
      with: {facts: nodes.each.output.items}
      transform: {many: len(facts)}
      writes: {seen: "[str(output.many), str(len(state.seen))]"}
    - name: route
      switch: {value: input.limit, cases: [{equals: 1, nodes: [small]}], default: []}
    - {name: small, transform: {v: "1"}}
    - name: sub
      with: {text: "input.texts[0]"}
      graph: {template: one}
  output: {many: "nodes.check.output.many if nodes.check.output else 0", seen: state.seen, s: nodes.small.output, t: nodes.sub.output}
  templates:
    - name: one
      input: {text: {type: string}}
      nodes:
        - name: read
          with: {text: input.text}
          llm: {ref: fast, prompt: "Facts of {{ text }}"}
          output: Fact
        - name: risky
          with: {value: nodes.read.output.value}
          code: |
            if value > 100:
                raise ValueError("too much")
            {"double": 2 * value}
          output: {double: {type: number}}
      output: {double: nodes.risky.output.double}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec:
  protocol: scripted
  scripted:
    replies: [{match: broken, reply: {feild: x}, times: 1}]
    default: {field: revenue, value: 5}
"""  # noqa: E501


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "graph.yaml"
    file.write_text(GRAPH)
    return file


def told(graph: Path, node: str, snapshot: str = "", *more: str, expect: str = "") -> Result:
    (graph.parent / "snapshot.yaml").write_text(snapshot or "{}")
    given = ["--snapshot", str(graph.parent / "snapshot.yaml")]
    if expect:
        (graph.parent / "expect.yaml").write_text(expect)
        given += ["--expect", str(graph.parent / "expect.yaml")]
    return CliRunner().invoke(app, ["node", "test", str(graph), node, *given, *more])


def test_a_model_node_of_a_template_runs_with_the_values_of_its_with(graph: Path) -> None:
    done = told(graph, "one.read", "text: Revenue was 5.", "-o", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "node": "one.read",
        "kind": "llm",
        "status": "ok",
        "output": {"field": "revenue", "value": 5},
        "usage": {"calls": 1, "inputTokens": 6, "outputTokens": 8},
    }


def test_what_was_tried_before_is_shown(graph: Path) -> None:
    done = told(graph, "each.read", "text: this is broken")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("each.read (llm): ok\n  failed try 1 at /read: ")
    assert '"field"' in done.stdout


def test_the_scope_may_be_given_instead(graph: Path) -> None:
    scope: dict[str, Any] = {
        "input": {"limit": 2},
        "nodes": {"each": {"output": {"items": [{"double": 1}, {"double": 2}], "failures": [], "total": 2}}},
        "state": {"seen": ["before"]},
    }
    outcome = try_node(graph, "check", scope)
    assert (outcome.status, outcome.output, outcome.writes) == ("ok", {"many": 2}, {"seen": ["2", "1"]})
    skipped = try_node(graph, "check", scope | {"input": {"limit": 1}})
    assert (skipped.status, skipped.output, skipped.writes) == ("skipped", None, {})


def test_what_the_snapshot_does_not_allow_is_left_out_and_said(graph: Path) -> None:
    outcome = try_node(graph, "check", {"facts": [{"double": 1}]})
    assert (outcome.output, outcome.left_out) == ({"many": 1}, ["when"])
    assert "when: left out" in told(graph, "check", "facts: [{double: 1}]").stdout


def test_maps_graphs_and_switches_run_with_all_that_is_inside_them(graph: Path) -> None:
    mapped = try_node(graph, "each", {"input": {"texts": ["a", "b"]}})
    assert mapped.output == {"items": [{"double": 10.0}] * 2, "failures": [], "total": 2}
    assert try_node(graph, "sub", {"text": "a"}).output == {"double": 10.0}
    assert try_node(graph, "route", {"input": {"limit": 1}}).output == {"value": 1, "chosen": ["small"]}


def test_a_failure_is_an_outcome(graph: Path) -> None:
    done = told(graph, "one.risky", "value: 101")
    assert done.exit_code == 1
    assert "one.risky (code): failed" in done.stdout
    assert "too much" in done.stdout
    assert told(graph, "one.risky", "value: 101", expect="status: failed").exit_code == 0


def test_what_is_other_than_expected_is_shown_as_a_diff(graph: Path) -> None:
    assert told(graph, "one.risky", "value: 4", expect="output: {double: 8}").exit_code == 0
    done = told(graph, "one.risky", "value: 4", expect="output: {double: 9}")
    assert done.exit_code == 1
    assert done.stderr.startswith("--- expected\n+++ one.risky\n")
    assert [line for line in done.stderr.splitlines() if line[:2] in ("- ", "+ ")] == [
        '-    "double": 9',
        '+    "double": 8',
    ]


@pytest.mark.parametrize(
    ("node", "snapshot", "words"),
    [
        ("one.raed", {}, 'there is no node "one.raed"; did you mean "one.read"?'),
        ("one.read", {"txt": "a"}, 'the snapshot has "txt", which one.read does not read; did you mean "text"?'),
        ("one.read", {}, "the snapshot has neither text nor input.text, from which it comes; add one of them"),
        ("each", {}, "the snapshot lacks input.texts, which the block of each reads; add it"),
        ("check", {"input": {"limt": 1}}, 'and where the node stands there is no such name; did you mean "limit"?'),
        ("check", {"nodes": {"each": 1}}, "nodes.each of the snapshot has its output alone; write each: {output: …}"),
        ("each", {"input": {"texts": [1]}}, "input.texts of the snapshot is not what the graph has there"),
    ],
)  # fmt: skip
def test_a_snapshot_that_cannot_be_right_is_refused(graph: Path, node: str, snapshot: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        try_node(graph, node, snapshot)
    assert words in str(refused.value)


def test_the_fixture_is_there_for_tests_of_users(graph: Path) -> None:
    (graph.parent / "test_facts.py").write_text(
        "def test_double(decurion_node):\n"
        "    outcome = decurion_node('graph.yaml', 'one.risky', {'value': 4})\n"
        "    assert outcome.output == {'double': 8}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(graph.parent)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=graph.parent, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr

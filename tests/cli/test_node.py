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
from decurion_worker.snapshot import SnapshotRefused

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


EACH = {"output": {"items": [{"double": 1.0}], "failures": [], "total": 1}}


@pytest.mark.parametrize(
    ("node", "snapshot", "words"),
    [
        ("one.read", {"txt": "a"}, ['txt [SNAPSHOT] one.read reads no "txt"; did you mean "text"?']),
        ("one.read", {}, ["the snapshot has neither text nor input.text, from which it comes; add one of them"]),
        ("each", {}, ["the snapshot lacks input.texts, which the block of each reads; add it"]),
        ("one.read", {"text": 5}, ['text [SNAPSHOT] 5 is not of type "string"; input.text gives string']),
        ("one.read", {"text": None}, ['text [SNAPSHOT] null is not of type "string"; input.text gives string']),
        (
            "check",
            {"facts": [{"double": 1}, {"doubel": 2}, {"double": "3"}]},
            [
                'facts[1] [SNAPSHOT] "double" is a required property; nodes.each.output.items gives list of object',
                "facts[1] [SNAPSHOT] Additional properties are not allowed ('doubel' was unexpected)",
                'facts[2].double [SNAPSHOT] "3" is not of type "number"',
            ],
        ),
        ("sub", {"text": ["a"]}, ['text [SNAPSHOT] ["a"] is not of type "string"']),
        (
            "check",
            {"facts": [], "input": {"limt": 1}},
            ['input.limt [SNAPSHOT] where the node stands there is no input.limt; did you mean "limit"?'],
        ),
        ("check", {"nodes": {"each": 1}}, ["nodes.each [SNAPSHOT] it has its output alone; write each: {output: …}"]),
        ("check", {"nodes": {"each": None}}, ["nodes.each [SNAPSHOT] each has an output whenever check runs: object"]),
        (
            "check",
            {"nodes": {"each": {"output": {"items": [{"double": "x"}]}}}},
            [
                'nodes.each.output.items[0].double [SNAPSHOT] "x" is not of type "number"; each gives object {items,',
                '"failures" is a required property',
                '"total" is a required property',
            ],
        ),
        ("one.risky", {"value": 1.0, "nodes": {"risky": None}}, ["nodes.risky [SNAPSHOT] where the node stands"]),
        ("each", {"input": {"texts": [1]}}, ['input.texts[0] [SNAPSHOT] 1 is not of type "string"; the graph']),
        ("each", {"input": 5}, ["input [SNAPSHOT] an object of names is due; write input: {NAME: …}"]),
        (
            "check",
            {"facts": [], "state": {"seen": "a"}},
            ['state.seen [SNAPSHOT] "a" is not of type "array"; the channel holds list of string'],
        ),
        (
            "check",
            {"facts": [], "run": {"outcome": "Failed", "scheduledAt": "soon"}},
            [
                "run.outcome [SNAPSHOT] where the node stands there is no run.outcome; there are id and scheduledAt",
                'run.scheduledAt [SNAPSHOT] "soon" is no time; write RFC 3339',
            ],
        ),
        (
            "one.risky",
            {"valeu": 4, "value": "x", "nodes": {"raed": None}, "input": {"text": 1}},
            [
                'valeu [SNAPSHOT] one.risky reads no "valeu"; did you mean "value"?',
                'value [SNAPSHOT] "x" is not of type "number"; nodes.read.output.value gives number',
                'input.text [SNAPSHOT] 1 is not of type "string"',
                'nodes.raed [SNAPSHOT] where the node stands there is no nodes.raed; did you mean "read"?',
            ],
        ),
    ],
)  # fmt: skip
def test_a_snapshot_that_could_not_occur_is_refused_with_all_that_is_wrong(
    graph: Path, node: str, snapshot: Any, words: list[str]
) -> None:
    with pytest.raises(SnapshotRefused) as refused:
        try_node(graph, node, snapshot)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(words), lines
    assert [word for word in words if not any(word in line for line in lines)] == [], lines


def test_a_node_that_is_not_there_is_told(graph: Path) -> None:
    with pytest.raises(InputError, match=r'there is no node "one.raed"; did you mean "one.read"\?'):
        try_node(graph, "one.raed", {})


def test_what_is_wrong_with_the_file_of_a_snapshot_is_told_at_its_place(graph: Path) -> None:
    done = told(graph, "check", "facts:\n  - double: 1\n  - double: much\nstate:\n  sene: [a]\n")
    assert done.exit_code == 2
    file = graph.parent / "snapshot.yaml"
    assert done.stderr.splitlines() == [
        f'{file}:3:13 facts[1].double [SNAPSHOT] "much" is not of type "number"; '
        "nodes.each.output.items gives list of object {double}",
        f'{file}:5:9 state.sene [SNAPSHOT] where the node stands there is no state.sene; did you mean "seen"?',
    ]


def test_a_word_that_yaml_reads_differently_is_told(graph: Path) -> None:
    done = told(graph, "one.read", "text: yes")
    assert done.exit_code == 2
    warning, error = done.stderr.splitlines()
    assert warning.startswith(f"warning: {graph.parent / 'snapshot.yaml'}:1:7 [YAML001] kubectl reads yes as true")
    assert 'text [SNAPSHOT] true is not of type "string"' in error


ABSENT = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: absent}
spec:
  input: {"n?": {type: integer}}
  state: [{name: last, schema: {type: string}}]
  nodes:
    - {name: maybe, when: input.n is not None, transform: {v: "1"}}
    - name: sure
      code: '{"a": None, "b": 1}'
      output: {a: {type: [integer, "null"]}, b: {type: integer}}
    - name: read
      with:
        v: "nodes.maybe.output.v if nodes.maybe.output else 0"
        row: nodes.sure.output
        last: "state.last or 'none'"
        id: run.id
        level: "'low' if input.n is None else 'high'"
        limit: "3"
      code: '{"v": v, "a": row["a"], "last": last, "id": id, "level": level, "limit": limit}'
      output:
        v: {type: integer}
        a: {type: [integer, "null"]}
        last: {type: string}
        id: {type: string}
        level: {type: string}
        limit: {type: integer}
      writes: {last: output.last}
  output: {v: nodes.read.output.v}
  finally:
    - {name: tell, with: {why: "run.failure.message if run.failure else ''"}, transform: {why: why}}
"""


@pytest.fixture
def absent(tmp_path: Path) -> Path:
    file = tmp_path / "absent.yaml"
    file.write_text(ABSENT)
    return file


def test_null_says_that_a_node_was_skipped_and_a_channel_not_written(absent: Path) -> None:
    snapshot = """
        input: {"n": null}
        nodes: {maybe: null, sure: {output: {a: null, b: 1}}}
        state: {last: null}
        run: {id: r-1}
    """
    expect = "output: {v: 0, a: null, last: none, id: r-1, level: low, limit: 3}\nwrites: {last: none}"
    done = told(absent, "read", snapshot, expect=expect)
    assert done.exit_code == 0, done.output
    assert '"a": null' in done.stdout
    assert told(absent, "maybe", 'input: {"n": null}', expect="{status: skipped, output: null}").exit_code == 0
    assert told(absent, "read", snapshot.replace("maybe: null", "maybe: {output: null}")).exit_code == 0
    never = told(absent, "read", snapshot.replace("sure: {output: {a: null, b: 1}}", "sure: null"))
    assert (never.exit_code, never.stderr.split("[SNAPSHOT] ")[1]) == (
        2,
        "sure has an output whenever read runs: object {a, b}; write sure: {output: …}\n",
    )


def test_a_value_is_one_of_those_that_its_expression_may_give(absent: Path) -> None:
    row = {"row": {"a": 1, "b": 1}, "v": 1, "last": "x", "limit": 3, "input": {}}
    assert try_node(absent, "read", row | {"level": "high"}).status == "ok"
    with pytest.raises(SnapshotRefused) as refused:
        try_node(absent, "read", row | {"level": "hihg"})
    assert str(refused.value).endswith("""; 'low' if input.n is None else 'high' gives "high" or "low\"""")


def test_how_a_run_ended_is_checked_too(absent: Path) -> None:
    failure = {"path": "/read", "class": "Expression", "code": "EXPR", "message": "broken"}
    ended = {"run": {"outcome": "Failed", "failure": failure}}
    assert try_node(absent, "finally.tell", ended).output == {"why": "broken"}
    assert (
        told(absent, "finally.tell", "run: {outcome: Succeeded, failure: null}", expect="output: {why: ''}").stderr
        == ""
    )
    with pytest.raises(SnapshotRefused) as refused:
        try_node(absent, "finally.tell", {"run": {"outcome": "Broken", "failure": {"path": "/read"}}})
    assert str(refused.value).splitlines()[0].startswith('run.outcome [SNAPSHOT] "Broken" is not one of')


def test_the_fixture_is_there_for_tests_of_users(graph: Path) -> None:
    (graph.parent / "test_facts.py").write_text(
        "def test_double(decurion_node):\n"
        "    outcome = decurion_node('graph.yaml', 'one.risky', {'value': 4})\n"
        "    assert outcome.output == {'double': 8}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(graph.parent)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=graph.parent, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_fixture_refuses_what_could_not_occur(graph: Path) -> None:
    (graph.parent / "test_facts.py").write_text(
        "def test_double(decurion_node):\n    decurion_node('graph.yaml', 'one.risky', {'value': '4', 'x': 1})\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(graph.parent)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=graph.parent, check=False)
    assert 'value [SNAPSHOT] "4" is not of type "number"; nodes.read.output.value gives number' in done.stdout
    assert 'x [SNAPSHOT] one.risky reads no "x"' in done.stdout

"""`decurion diff`: what changed between two versions of a graph, in terms of nodes and contracts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from decurion_cli.main import app

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: letters}
spec:
  schemas:
    Letter: {type: object, required: [id], properties: {id: {type: string}, text: {type: string}}}
  input: {letters: {type: array, items: Letter}}
  state: [{name: seen, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: each
      map: {items: input.letters, as: letter, template: one}
    - name: count
      with: {all: nodes.each.output.items}
      transform: {size: len(all)}
      writes: {seen: "['count']"}
    - name: tell
      with: {size: nodes.count.output.size}
      code: str(size)
      output: {type: string}
      writes: {seen: "['tell']"}
  output: {told: nodes.tell.output, seen: state.seen}
  templates:
    - name: one
      input: {letter: Letter}
      nodes:
        - name: read
          with: {id: input.letter.id}
          llm: {ref: fast, prompt: "Read {{ id }}"}
        - name: length
          with: {text: nodes.read.output.text}
          transform: {$value: len(text)}
      output: {$value: nodes.length.output}
"""
MODEL = """
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {text: hi}}}
"""
Ask = Callable[..., Result]


@pytest.fixture
def diff(tmp_path: Path) -> Ask:
    """Runs `decurion diff` on the graph and on the graph with replacements."""

    def ask(
        *changes: tuple[str, str], options: tuple[str, ...] = (), before: str = GRAPH, after: str = GRAPH
    ) -> Result:
        for old, new in changes:
            assert old in after
            after = after.replace(old, new)
        (tmp_path / "a.yaml").write_text(before)
        (tmp_path / "b.yaml").write_text(after)
        return CliRunner().invoke(app, ["diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"), *options])

    return ask


def changed(result: Result) -> dict[tuple[str, str], dict[str, Any]]:
    """The differences of an answer in JSON by scope and name."""
    [graph] = json.loads(result.stdout)["graphs"]
    return {(one["scope"], one["name"]): one for one in graph["differences"]}


def test_the_form_of_a_file_makes_no_difference(diff: Ask) -> None:
    done = diff(
        ("transform: {size: len(all)}", "transform:\n        # counted\n        size: len( all )"),
        ("code: str(size)", "code: |\n        # as a text\n        str(size)"),
        ("      output: {type: string}\n", "      output: {type: string}\n      timeoutSeconds: 30\n"),
        ("[id], properties", "['id'], properties"),
    )
    assert (done.exit_code, done.stdout) == (0, "no difference\n")


def test_json_says_whether_both_are_the_same(diff: Ask) -> None:
    assert json.loads(diff(options=("-o", "json")).stdout) == {"same": True, "graphs": []}


def test_a_change_of_the_block_alone_is_told_as_such(diff: Ask) -> None:
    done = diff(("transform: {size: len(all)}", "transform: {size: len(all) + 1}"), options=("-o", "json"))
    assert done.exit_code == 1
    found = changed(done)
    assert found.keys() == {("graph", "count")}
    assert found["graph", "count"]["parts"] == ["block"]
    assert found["graph", "count"]["edits"] == [
        {"field": "transform.size", "old": "len(all)", "new": "len(all) + 1", "part": "block"}
    ]


def test_another_kind_with_the_same_contract_is_a_change_of_the_block(diff: Ask) -> None:
    one = "code: str(size)\n      output: {type: string}"
    other = "llm: {ref: fast, prompt: 'Say {{ size }}'}\n      output: {type: string}"
    done = diff((one, other))
    assert done.exit_code == 1
    assert "~ node tell: block only\n" in done.stdout
    assert "block: code → llm\n" in done.stdout


def test_a_change_of_the_contract_names_the_field_and_the_order_that_follows(diff: Ask) -> None:
    done = diff(("with: {size: nodes.count.output.size}", "with: {size: len(input.letters)}"), options=("-o", "json"))
    node = changed(done)["graph", "tell"]
    assert node["parts"] == ["contract", "order"]
    due = {"field": "with.size", "old": "nodes.count.output.size", "new": "len(input.letters)", "part": "contract"}
    assert due in node["edits"]
    assert {"field": "after", "old": "count", "part": "order"} in node["edits"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("      code: str(size)", "      when: 1 > 0\n      code: str(size)", "+ when: 1 > 0"),
        ("{seen: \"['tell']\"}", "{seen: \"['told']\"}", "writes.seen: ['tell'] → ['told']"),
        ("    - name: tell\n", "    - name: tell\n      after: [each]\n", '+ after: ["each"]'),
        ("      code: str(size)", "      retry: {repair: 5}\n      code: str(size)", "retry.repair: 2 → 5"),
    ],
)
def test_every_part_of_a_contract_is_told(diff: Ask, old: str, new: str, said: str) -> None:
    done = diff((old, new))
    assert done.exit_code == 1, done.output
    assert "~ node tell: contract" in done.stdout
    assert f"        {said}\n" in done.stdout


def test_inputs_are_told_by_the_place_of_the_value(diff: Ask) -> None:
    done = diff(("id: {type: string}, text", "id: {type: string}, at: {type: integer}, text"), options=("-o", "json"))
    found = changed(done)
    assert found["graph", "input"]["edits"] == [{"field": "letters[].at?", "new": "integer"}]
    assert found["template one", "input"]["edits"] == [{"field": "letter.at?", "new": "integer"}]


def test_outputs_and_channels_are_told(diff: Ask) -> None:
    done = diff(
        ("told: nodes.tell.output", "said: nodes.tell.output"),
        ("merge: append}", "merge: append, initial: [x]}"),
        options=("-o", "json"),
    )
    found = changed(done)
    assert found["graph", "output"]["edits"] == [
        {"field": "told", "old": "nodes.tell.output"},
        {"field": "said", "new": "nodes.tell.output"},
    ]
    assert found["graph", "seen"]["what"] == "channel"
    assert found["graph", "seen"]["edits"] == [{"field": "initial", "old": "[]", "new": '["x"]'}]


def test_nodes_that_come_go_and_get_another_name(diff: Ask) -> None:
    done = diff(
        ("name: count\n", "name: amount\n"),
        ("nodes.count.", "nodes.amount."),
        ("  output: {told:", "    - {name: extra, transform: {x: '1'}}\n  output: {x: nodes.extra.output.x, told:"),
    )
    assert "> node amount: renamed from count\n" in done.stdout
    assert "+ node extra (transform)\n" in done.stdout
    back = diff(before=GRAPH.replace("  output: {told:", "    - {name: old, transform: {x: '1'}}\n  output: {told:"))
    assert "- node old (transform)\n" in back.stdout


def test_a_node_that_goes_into_a_template_was_moved(diff: Ask) -> None:
    node = "    - {name: extra, transform: {x: '1'}}\n"
    before = GRAPH.replace("  output: {told:", f"{node}  output: {{told:")
    done = diff(("      output: {$value: nodes.l", f"    {node}      output: {{$value: nodes.l"), before=before)
    assert "> node extra: moved from graph\n" in done.stdout
    assert "- node extra" not in done.stdout


def test_another_place_in_the_file_is_told_since_it_decides_merges(diff: Ask) -> None:
    start, end = GRAPH.index("    - name: each"), GRAPH.index("    - name: count")
    node = GRAPH[start:end]
    after = GRAPH.replace(node, "").replace("    - name: tell\n", node + "    - name: tell\n")
    done = diff(after=after)
    assert done.exit_code == 1
    assert [line for line in done.stdout.splitlines() if "node" in line] == [
        "    > node each: moved behind count, which decides the order of merging"
    ]


def test_long_texts_are_told_by_the_lines_that_differ(diff: Ask) -> None:
    done = diff(('"Read {{ id }}"', '"Read {{ id }}\\nslowly"'))
    assert "  template one\n    ~ node read: block only\n" in done.stdout
    assert "          +slowly\n" in done.stdout


def test_a_missing_model_is_compared_by_its_name_and_a_model_that_is_there_by_its_spec(
    diff: Ask, tmp_path: Path
) -> None:
    slow = MODEL.replace("hi}", "ho}")
    assert diff(before=GRAPH + "---" + MODEL, after=GRAPH).exit_code == 0
    done = diff(before=GRAPH + "---" + MODEL, after=GRAPH + "---" + slow)
    assert done.exit_code == 1
    assert "~ LLM fast\n" in done.stdout
    (tmp_path / "models.yaml").write_text(MODEL)
    assert diff(options=("--with", str(tmp_path / "models.yaml"))).exit_code == 0


def test_graphs_go_by_name_and_one_alone_may_have_another(diff: Ask) -> None:
    alone = diff(("{name: letters}", "{name: mail}"))
    assert (alone.exit_code, alone.stdout) == (1, "> TaskGraph mail, renamed from letters\n")
    second = GRAPH.replace("{name: letters}", "{name: mail}")
    assert diff(after=f"{GRAPH}---{second}").stdout == "+ TaskGraph mail\n"
    assert diff(before=f"{GRAPH}---{second}").stdout == "- TaskGraph mail\n"
    assert diff(before=f"{GRAPH}---{second}", options=("--graph", "letters")).exit_code == 0


def test_wrong_input_ends_with_2_and_the_findings(diff: Ask, tmp_path: Path) -> None:
    broken = diff(("nodes.count.output.size}", "nodes.count.output.m}"))
    assert broken.exit_code == 2
    assert "[EXPR-FIELD]" in broken.stderr
    nothing = diff(after=MODEL)
    assert nothing.exit_code == 2
    assert "no TaskGraph" in nothing.stderr
    absent = CliRunner().invoke(app, ["diff", str(tmp_path / "a.yaml"), str(tmp_path / "absent.yaml")])
    assert (absent.exit_code, "[FILE]" in absent.stderr) == (2, True)
    unknown = diff(options=("--graph", "nobody"))
    assert (unknown.exit_code, "letters" in unknown.stderr) == (2, True)

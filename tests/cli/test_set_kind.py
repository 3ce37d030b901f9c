"""`decurion node set-kind`: the block changes, the contract and the rest of the file do not."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.main import app

BLOCKS = {
    "transform": "      transform:\n        topic: \"'other'\"\n",
    "code": '      code: |\n        {"topic": "other"}\n',
    "llm": '      llm: {ref: fast, prompt: "What is {{ text }}?"}\n',
}
GRAPH = """\
# the graph of the tests
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  input: {texts: {type: array, items: {type: string}}}
  nodes:
    - name: each
      map: {items: input.texts, as: text, template: one}
  output: {topics: "[one.topic for one in nodes.each.output.items]"}
  templates:
    - name: one
      input: {text: {type: string}}
      nodes:
        - {name: first, with: {t: input.text}, transform: {up: t.upper()}, output: {up: {type: string}}}
        - name: read
          with: {text: nodes.first.output.up}   # what is read
BLOCK
          # its contract
          output: {topic: {enum: [outage, other]}}
      output: {topic: nodes.read.output.topic}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {topic: other}}}
"""


def graph(kind: str) -> str:
    return GRAPH.replace("BLOCK\n", BLOCKS[kind].replace("\n  ", "\n      ").replace("      ", "          ", 1))


def told(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["node", "set-kind", *map(str, arguments)])


@pytest.mark.parametrize(("old", "new"), list(permutations(BLOCKS, 2)))
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["unix", "windows"])
def test_only_the_block_changes(tmp_path: Path, old: str, new: str, end: str) -> None:
    file = tmp_path / "g.yaml"
    text = graph(old).replace("\n", end)
    file.write_bytes(text.encode())
    done = told(file, "one.read", new)
    assert done.exit_code == 0, done.output
    before, after = text.split(end), file.read_bytes().decode().split(end)
    start, stop = (
        before.index("          with: {text: nodes.first.output.up}   # what is read"),
        "          # its contract",
    )
    assert after[: start + 1] == before[: start + 1]
    assert after[after.index(stop) :] == before[before.index(stop) :]
    assert after[start + 1].strip().startswith(f"{new}:")
    checked = CliRunner().invoke(app, ["validate", str(file)])
    assert checked.exit_code == 0, checked.output


def test_a_block_between_braces(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(graph("llm"))
    assert told(file, "one.first", "code").exit_code == 0
    assert """with: {t: input.text}, code: "{\\"up\\": t.upper()}", output:""" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("each", "code"), "each: its output is not declared"),
        (("one.read", "llm"), "one.read: it is llm already"),
        (("one.read", "loop"), "loop is no kind that a node can move to"),
        (("one.raed", "code"), 'did you mean "one.read"?'),
        (("one.first", "llm", "--ref", "none"), 'there is no LLM "none"'),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(graph("llm"))
    done = told(file, *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert file.read_text() == graph("llm")


def test_an_output_that_is_not_declared_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(graph("llm").replace(", output: {up: {type: string}}}", "}"))
    done = told(file, "one.first", "code")
    assert (done.exit_code, "its output is not declared" in done.stderr) == (2, True)


PARTS = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: parts}
spec:
  schemas: {Row: {type: object, required: [id], properties: {id: {type: string}, size: {type: integer}}}}
  input: {rows: {type: array, items: Row}}
  nodes:
    - name: plain
      with: {rows: input.rows}
      transform:
        ids: "[row.id.upper() for row in rows]"
        many: len(rows)
      output: {ids: {type: array, items: {type: string}}, many: {type: integer}}
    - name: ask
      with: {rows: input.rows}
      llm: {ref: fast, prompt: "How many?", system: Count.}
      output: {many: {type: integer}}
  output: {ids: nodes.plain.output.ids, many: nodes.ask.output.many}
  templates:
    - name: count
      input: {rows: {type: array, items: Row}}
      nodes: [{name: n1, with: {rows: input.rows}, transform: {many: len(rows)}}]
      output: {many: nodes.n1.output.many}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {many: 1}}}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: counter}
spec: {model: fast, instructions: Count.}
---
apiVersion: decurion.dev/v1alpha1
kind: MCPServer
metadata: {name: tools}
spec:
  url: http://127.0.0.1:9/mcp
  tools:
    - {name: count, input: {rows: {type: array}}, output: {many: {type: integer}}}
    - {name: measure, input: {rows: {type: array}}, output: {many: {type: integer}}}
"""
MOST = (
    "{v: {type: array, minItems: 1000000000000, items: {type: integer}}, w: {type: string, minLength: 1000000000000}}"
)
ASK = """      llm: {ref: fast, prompt: "How many?", system: Count.}
"""


def notes(done: Result) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("note: ")]


def parts(tmp_path: Path, text: str = PARTS) -> Path:
    file = tmp_path / "g.yaml"
    file.write_text(text)
    return file


def test_expressions_become_code_and_code_of_one_expression_becomes_expressions(tmp_path: Path) -> None:
    file = parts(tmp_path)
    done = told(file, "plain", "code")
    assert (done.exit_code, notes(done)) == (0, [])
    code = """{"ids": [row['id'].upper() for row in rows], "many": len(rows)}"""
    assert f"      code: |\n        {code}\n" in file.read_text()
    done = told(file, "plain", "transform")
    assert (done.exit_code, notes(done)) == (0, [])
    assert """        ids: "[row['id'].upper() for row in rows]"\n        many: "len(rows)"\n""" in file.read_text()


def test_what_does_not_carry_over_is_said(tmp_path: Path) -> None:
    file = parts(tmp_path)
    done = told(file, "ask", "code")
    assert done.exit_code == 0
    assert notes(done) == [
        "note: the prompt of the llm is not carried over",
        "note: the new block gives a fixed value; write what computes it",
    ]
    fields = told(file, "ask", "transform")
    assert (fields.exit_code, notes(fields)) == (0, [])


def test_a_prompt_goes_to_an_agent_and_what_an_agent_has_not_is_said(tmp_path: Path) -> None:
    file = parts(tmp_path)
    done = told(file, "ask", "agent")
    assert (done.exit_code, notes(done)) == (0, ["note: system of the llm is not carried over"])
    assert '      agent:\n        ref: "counter"\n        prompt: "How many?"\n' in file.read_text()
    back = told(file, "ask", "llm")
    assert (back.exit_code, notes(back)) == (0, [])


def test_what_the_files_leave_open_is_asked_for(tmp_path: Path) -> None:
    file = parts(tmp_path)
    left = told(file, "ask", "tool")
    assert (left.exit_code, file.read_text()) == (2, PARTS)
    assert "--ref SERVER --tool NAME; the files have tools/count and tools/measure" in left.stderr
    assert told(file, "ask", "tool", "--tool", "count").exit_code == 0
    assert 'arguments: {"rows": "{{ rows }}"}' in file.read_text()


def test_a_node_goes_to_a_template_with_its_output_and_to_no_map_that_has_another(tmp_path: Path) -> None:
    file = parts(tmp_path)
    done = told(file, "ask", "graph")
    assert done.exit_code == 0, done.stderr
    assert '      graph:\n        template: "count"\n      output: {many: {type: integer}}\n' in file.read_text()
    other = told(file, "ask", "map", "--items", "input.rows")
    assert other.exit_code == 2
    assert 'graph:\n        template: "count"' in file.read_text()


def test_approvals_and_bodies_in_place_are_no_blocks_to_move(tmp_path: Path) -> None:
    wait = PARTS.replace(f"      with: {{rows: input.rows}}\n{ASK}", "      approval: {message: Shall we}\n")
    wait = wait.replace("Shall we}\n      output: {many: {type: integer}}", "Shall we}")
    file = parts(tmp_path, wait.replace("nodes.ask.output.many", "nodes.ask.output.approved"))
    done = told(file, "ask", "code")
    assert (done.exit_code, "no other kind fulfils the contract of approval" in done.stderr) == (2, True), done.stderr
    body = """      graph:
        body:
          nodes: [{name: n1, with: {rows: input.rows}, transform: {many: len(rows)}}]
          output: {many: nodes.n1.output.many}
"""
    file = parts(tmp_path, PARTS.replace(ASK, body))
    done = told(file, "ask", "code")
    assert (done.exit_code, "decurion graph fmt --flat" in done.stderr) == (2, True), done.stderr


def test_fields_of_any_name_and_bounds_beyond_reason_are_written(tmp_path: Path) -> None:
    text = GRAPH.replace("output: {topic: {enum: [outage, other]}}", 'output: {"a: b #c": {type: string}}')
    text = text.replace("{topic: nodes.read.output.topic}", "{topic: nodes.read.output}")
    file = tmp_path / "g.yaml"
    file.write_text(text.replace("BLOCK", '          code: |\n            v = "x"\n            {"a: b #c": v}'))
    done = told(file, "one.read", "transform")
    assert (done.exit_code, '"a: b #c": ' in file.read_text()) == (0, True), done.output


def test_an_example_of_bounds_beyond_reason_is_of_its_type(tmp_path: Path) -> None:
    file = parts(tmp_path, PARTS.replace("output: {many: {type: integer}}\n  output", f"output: {MOST}\n  output", 1))
    file.write_text(file.read_text().replace("many: nodes.ask.output.many", "many: nodes.ask.output.v"))
    done = told(file, "ask", "transform")
    assert done.exit_code == 0, done.output
    assert f'v: "{[0] * 100}"' in file.read_text()
    assert f"w: \"'{'x' * 100}'\"" in file.read_text()

"""Habits of other languages and tools: each is told with what to write instead, and the remedy mends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from decurion_cli.checking import every_finding
from decurion_crds.findings import Finding

GRAPH = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  input: {num: {type: integer}, text: {type: string}, list: {type: array, items: {type: string}}}
  nodes:
    - name: x
      with: {num: input.num, text: input.text, list: input.list}
      transform:
        v: "EXPRESSION"
  output: {v: nodes.x.output.v}
"""


def errors(text: str) -> list[Finding]:
    return [one for one in every_finding({Path("g.yaml"): text}) if one.severity == "error"]


@pytest.mark.parametrize(
    ("written", "remedy", "instead"),
    [
        ("$num", "write the name alone, as in input.rows", "num"),
        ("${num}", "write the name alone, as in input.rows", "num"),
        ("{{ num }}", "write num", "num"),
        ("text | length", "write len(text)", "len(text)"),
        ("text | upper", "write text.upper()", "text.upper()"),
        ("list.length", "write len(list)", "len(list)"),
        ("num === 1", "write == for ===", "num == 1"),
        ("num <> 1", "write != for <>", "num != 1"),
        ("num = 1", "write == to compare, or the value alone", "num == 1"),
        ("num++", "nothing is changed in place here; write … + 1", "num + 1"),
        ("`text`", "write a text in quotes, and a name without any", "text"),
        ("x -> x", "write `lambda x: …` for ->", "num"),
        ("list contains 'a'", "write `x in list` for list contains x", "'a' in list"),
        (".text", "a field is read of a name, as in input.rows", "text"),
        ("[x for x in list", "close it", "[x for x in list]"),
        ("'abc", "close the quotes", "'abc'"),
        ("'a' if num > 1", "write what holds otherwise, as in a if condition else b", "'a' if num > 1 else 'b'"),
        ("len text", "an expression is Python, such as len(input.rows) > 0", "len(text)"),
        ("text == 'why?' 1", "an expression is Python, such as len(input.rows) > 0", "text == 'why?'"),
        ("# num", "# begins a comment, so nothing is left of it; write a value", "num"),
        ("NaN", "JSON has no such number; write None", "None"),
        ("1e400", "write a smaller one, or a string", "1e40"),
        ("list[:text]", "write int(…) around what is none", "list[:int(text)]"),
        ("json.dumps(num)", "write json(…)", "json(num)"),
    ],
)
def test_an_expression(written: str, remedy: str, instead: str) -> None:
    (found,) = errors(GRAPH.replace("EXPRESSION", written))
    assert found.message.endswith(remedy)
    assert errors(GRAPH.replace("EXPRESSION", instead)) == []


def test_bits_are_still_put_together() -> None:
    assert errors(GRAPH.replace("EXPRESSION", "num | 1")) == errors(GRAPH.replace("EXPRESSION", "num | num")) == []


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("return {'v': num}", "return stands outside a function; the last line is the result, write the value there"),
        ("print(num)", "the last line is the result, and it gives nothing; write the value there"),
        ("{'v': num} && 1", "write `and`"),
        ("if num > 1", "put a : at the end of that line"),
    ],
)
def test_a_source(last: str, words: str) -> None:
    block = f"code: |\n        {last}\n      output: {{v: {{type: integer}}}}"
    (found,) = errors(GRAPH.replace('transform:\n        v: "EXPRESSION"', block))
    assert found.message.endswith(words)


def test_a_field_of_the_round_is_one_of_the_output() -> None:
    loop = """\
      loop:
        body: {nodes: [{name: why, transform: {grade: "1"}}], output: {grade: nodes.why.output.grade}}
        until: grade > 3
        maxIterations: 2
        onExhausted: succeed
  output: {v: nodes.x.output.grade}
"""
    (found,) = errors(GRAPH[: GRAPH.index("      with")] + loop)
    assert found.message == "grade is not known here; write output.grade for a field of the result"
    assert found.fix is not None
    assert found.fix.new == "output.grade"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: x", "name: x\n      dependsOn: []", 'there is no field "dependsOn" here; did you mean "after"?'),
        ("name: x", "name: x\n      if: input.num > 1", 'there is no field "if" here; did you mean "when"?'),
        ("transform:\n        v: EXPRESSION", "script: 1 + 1", 'there is no field "script" here; did you mean "code"?'),
        (
            "transform:\n        v: EXPRESSION",
            "llm: {model: fast, prompt: hi}",
            'there is no field "model" here; did you mean "ref"?',
        ),
        ("nodes:", "tasks:", 'there is no field "tasks" here; did you mean "nodes"?'),
        (
            "transform:\n        v: EXPRESSION",
            "loop: {template: t, maxIterations: 1}",
            "onExhausted is missing; add onExhausted: succeed or fail "
            "(What becomes of the node when that many rounds ran and until was never true)",
        ),
    ],
)
def test_a_field_of_another_tool(old: str, new: str, words: str) -> None:
    text = GRAPH.replace('"EXPRESSION"', "EXPRESSION")
    assert old in text
    assert words in [one.message for one in errors(text.replace(old, new, 1))]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  output: {v", "  name:value\n  output: {v", "a : after a name needs a space behind it; write name: …"),
        (
            "    - name: x",
            "    x:\n      when: 'True'\n    - name: x",
            "an item of a list stands among the fields of an object; indent it as its list, or remove the -",
        ),
    ],
)
def test_a_line_of_yaml(old: str, new: str, words: str) -> None:
    assert [one.message for one in errors(GRAPH.replace(old, new, 1))] == [words]

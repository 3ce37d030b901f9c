"""Bodies in place: hoisted to templates, typed by what they are given, told where they were written."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from decurion_crds.compile import Checker, Compilation, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.loader import Document, hoist, load_text, unhoist, with_inputs
from decurion_crds.v1alpha1 import TaskGraph, parse_resource

NESTED = """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: nested}
spec:
  schemas:
    Report:
      type: object
      required: [id, words]
      properties: {id: {type: string}, words: {type: array, items: {type: string}}}
  input: {reports: {type: array, items: Report}, least: {type: integer}}
  nodes:
    - name: each
      with: {least: input.least}
      map:
        items: input.reports
        as: report
        key: report.id
        body:
          nodes:
            - name: long
              with: {words: input.report.words, least: input.least}
              transform: {words: "[w for w in words if len(w) >= least]"}
            - name: count
              with: {words: nodes.long.output.words, place: input.index}
              graph:
                body:
                  nodes:
                    - name: sum
                      with: {words: input.words, place: input.place}
                      transform: {size: len(words) + place}
                  output: {size: nodes.sum.output.size}
          output: {id: input.report.id, size: nodes.count.output.size}
  output: {rows: nodes.each.output.items}
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def document(text: str) -> Document:
    [found] = load_text(text, "g.yaml").documents
    return found


def compilation(checker: Checker, text: str) -> Compilation:
    found = document(text)
    graph, findings = found.parse()
    assert isinstance(graph, TaskGraph), [finding.text() for finding in findings]
    return compile_graph(graph, llms={}, positions=found.locate, open=found.hoisted.open, checker=checker)


def told(checker: Checker, text: str) -> list[str]:
    found = document(text)
    return [found.as_written(finding).text() for finding in compilation(checker, text).findings]


def compiled(checker: Checker, text: str) -> CompiledGraph:
    assert told(checker, text) == []
    return compilation(checker, text).result()


def test_a_body_is_a_template_that_takes_what_its_node_gives(checker: Checker) -> None:
    graph = compiled(checker, NESTED)
    assert sorted(graph.templates) == ["countBody", "eachBody"]
    given = graph.templates["eachBody"].input_schema
    assert list(given["properties"]) == ["least", "report", "index"]
    assert given["properties"]["least"] == given["properties"]["index"] == {"type": "integer"}
    assert given["properties"]["report"]["title"] == "Report"
    assert graph.templates["countBody"].input_schema["properties"] == {
        "place": {"type": "integer"},
        "words": {"type": "array", "items": {"type": "string"}},
    }
    rows = graph.root.output_schema["properties"]["rows"]
    assert rows["items"]["properties"] == {"id": {"type": "string"}, "size": {"type": "integer"}}


def test_what_a_cluster_takes_compiles_to_the_same_digest(checker: Checker) -> None:
    graph = compiled(checker, NESTED)
    hoisted = document(NESTED).hoisted
    sent = with_inputs(hoisted.resource, {name: graph.templates[name].input_schema for name in hoisted.open})
    model, findings = parse_resource(sent)
    assert (findings, isinstance(model, TaskGraph)) == ([], True)
    assert isinstance(model, TaskGraph)
    again = compile_graph(model, llms={}, checker=checker)
    assert [finding.text() for finding in again.findings] == []
    assert again.result().digest == graph.digest


def test_hoisting_and_back_gives_what_was_written() -> None:
    written = yaml.safe_load(NESTED)
    kept = copy.deepcopy(written)
    hoisted = hoist(written).resource
    assert written == kept, "what was read stays as it is"
    assert [t["name"] for t in hoisted["spec"]["templates"]] == ["eachBody", "countBody"]
    assert hoisted["spec"]["nodes"][0]["map"]["template"] == "eachBody"
    assert unhoist(hoisted) == written
    assert hoist(hoisted).resource == hoisted


def test_templates_of_other_names_or_uses_stay_templates() -> None:
    spec = yaml.safe_load(
        """
        nodes:
          - {name: a, graph: {template: aBody}}
          - {name: b, graph: {template: aBody}}
          - {name: c, graph: {template: other}}
        templates:
          - {name: aBody, nodes: [{name: x, transform: {v: "1"}}]}
          - {name: other, nodes: [{name: x, graph: {template: xBody}}]}
          - {name: xBody, nodes: [{name: x, transform: {v: "1"}}]}
        """
    )
    found = unhoist({"kind": "TaskGraph", "spec": spec})["spec"]
    assert found["nodes"] == spec["nodes"]
    assert [t["name"] for t in found["templates"]] == ["aBody", "other"]
    assert found["templates"][1]["nodes"][0]["graph"] == {"body": {"nodes": [{"name": "x", "transform": {"v": "1"}}]}}


def test_a_name_that_is_taken_is_not_taken_again(checker: Checker) -> None:
    taken = NESTED + textwrap.indent(
        textwrap.dedent(
            """\
            templates:
              - name: eachBody
                nodes: [{name: a, transform: {v: "1"}}]
            """
        ),
        "  ",
    )
    found = compilation(checker, taken)
    assert sorted(document(taken).hoisted.open) == ["countBody", "eachBody2"]
    assert [finding.code for finding in found.findings] == ["UNUSED", "UNUSED"], (
        "the template of that name, and what is in it"
    )


@pytest.mark.parametrize(
    ("old", "new", "due"),
    [
        (
            "place: input.index}",
            "place: input.indx}",
            'g.yaml:24:67 nodes.each.map.body.nodes.count.with.place [EXPR-FIELD] input has no field "indx"; it has '
            "least and report",
        ),
        (
            "input.report.words, least",
            "input.report.wrds, least",
            'g.yaml:21:42 nodes.each.map.body.nodes.long.with.words [EXPR-FIELD] Report has no field "wrds"; did you '
            'mean "words"?',
        ),
        (
            "size: len(words) + place",
            "size: len(wrds) + place",
            "g.yaml:30:45 nodes.each.map.body.nodes.count.graph.body.nodes.sum.transform.size [EXPR-NAME] wrds is not "
            "known here; did you mean words?",
        ),
        (
            "                  output: {size: nodes.sum.output.size}",
            "                  outputs: {size: nodes.sum.output.size}",
            "g.yaml:31:19 nodes.each.map.body.nodes.count.graph.body.outputs [FIELD-UNKNOWN] there is no field "
            '"outputs" here; did you mean "output"?',
        ),
    ],
)
def test_what_is_wrong_in_a_body_is_told_where_it_was_written(checker: Checker, old: str, new: str, due: str) -> None:
    text = NESTED.replace(old, new)
    assert text != NESTED
    found = document(text)
    graph, findings = found.parse()
    lines = [finding.text() for finding in findings] if graph is None else told(checker, text)
    assert lines == [due]


def test_a_type_that_cannot_be_inferred_is_declared_in_the_body(checker: Checker) -> None:
    loose = NESTED.replace("with: {least: input.least}", "with: {least: \"{'a': 1, 'b': 'x'}\"}").replace(
        "len(w) >= least", "len(w) >= least.a"
    )
    assert told(checker, loose) == [
        "g.yaml:13:21 nodes.each.with.least [TYPE-DECLARE] its type cannot be relied on (it is inferred as "
        "dict[str, int | str]); declare the input of the body, as in body: {input: {least: …}, …}",
    ]
    declared = loose.replace(
        "        body:\n          nodes:\n            - name: long",
        "        body:\n          input: {least: Least, report: Report, index: {type: integer}}\n          nodes:\n"
        "            - name: long",
    ).replace("  schemas:\n", "  schemas:\n    Least: {a: {type: integer}, b: {type: string}}\n")
    assert told(checker, declared) == []


def test_a_cluster_refuses_a_body_and_says_what_to_write(checker: Checker) -> None:
    resource: dict[str, Any] = yaml.safe_load(NESTED)
    _, findings = parse_resource(resource)
    assert [finding.text() for finding in findings] == [
        "nodes.each.map [FIELD-VALUE] body is a form of files and stands alone there; on a cluster write template, as "
        "decurion graph fmt prints it, and remove body"
    ]


def test_a_body_beside_a_template_is_refused(checker: Checker) -> None:
    both = NESTED.replace("        key: report.id\n", "        key: report.id\n        template: one\n")
    _, findings = document(both).parse()
    assert [finding.code for finding in findings] == ["FIELD-VALUE"]


def test_a_constant_is_where_a_loop_begins_and_not_its_type(checker: Checker) -> None:
    graph = compiled(
        checker,
        """\
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: grow}
spec:
  nodes:
    - name: grow
      with: {text: "'x'"}
      loop:
        body:
          nodes: [{name: add, with: {text: input.text}, transform: {text: text + 'y'}}]
          output: {text: nodes.add.output.text}
        next: {text: output.text}
        maxIterations: 3
        onExhausted: succeed
  output: {one: nodes.grow.output.text}
""",
    )
    assert graph.templates["growBody"].input_schema["properties"] == {"text": {"type": "string"}}

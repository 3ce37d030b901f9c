"""What a graph becomes: order, types, digests, and everything that a runner needs."""

from __future__ import annotations

import copy
import json
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import pytest

from decurion_crds.compile import Checker, Compilation, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, TaskGraph

META = {"apiVersion": "decurion.dev/v1alpha1", "metadata": {"name": "g"}}


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def llm(**spec: Any) -> LLM:
    full = {"protocol": "openai", "model": "m", "endpoint": "http://127.0.0.1:1/v1", **spec}
    return LLM.model_validate({**META, "kind": "LLM", "spec": full})


def spec_of(text: str) -> dict[str, Any]:
    body = textwrap.indent(textwrap.dedent(text).strip("\n"), "  ")
    [document] = load_text(f"kind: TaskGraph\nspec:\n{body}", "g.yaml").documents
    found: dict[str, Any] = document.raw["spec"]
    return found


def compilation(checker: Checker, spec: str | dict[str, Any], **models: LLM) -> Compilation:
    parsed = spec_of(spec) if isinstance(spec, str) else spec
    graph = TaskGraph.model_validate({**META, "kind": "TaskGraph", "spec": parsed})
    return compile_graph(graph, llms=models or {"fast": llm()}, checker=checker)


def compiled(checker: Checker, spec: str | dict[str, Any], **models: LLM) -> CompiledGraph:
    result = compilation(checker, spec, **models)
    assert [finding.text() for finding in result.findings if finding.severity == "error"] == []
    return result.result()


def test_reads_order_nodes_and_after_only_adds_to_that(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        nodes:
          - {name: last, after: [free], with: {x: nodes.second.output.v}, transform: {v: x}}
          - {name: second, with: {x: nodes.first.output.v}, transform: {v: x}}
          - {name: free, transform: {v: "1"}}
          - {name: first, transform: {v: "1"}}
        output: {v: nodes.last.output.v, w: nodes.free.output.v}
        """,
    ).root
    assert root.order == ("free", "first", "second", "last")
    last = root.by_name["last"]
    assert (last.after, last.control, last.parents) == (("second", "free"), ("free",), ("second",))
    assert last.reads == ("nodes.second.output.v",)
    assert root.by_name["free"].after == ()


def test_a_reader_of_a_channel_follows_its_one_writer(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        state: [{name: total, schema: {type: integer}}]
        nodes:
          - {name: reader, with: {t: state.total + 1}, transform: {v: t}}
          - {name: writer, transform: {v: "1"}, writes: {total: output.v}}
        output: {v: nodes.reader.output.v}
        """,
    ).root
    assert root.order == ("writer", "reader")
    assert root.by_name["reader"].parents == ("writer",)
    assert root.by_name["writer"].writes["total"].reads == ("output.v",)


def test_a_reader_that_comes_before_the_writer_is_left_there(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        state: [{name: total, schema: {type: integer}, initial: 3}]
        nodes:
          - {name: writer, after: [reader], transform: {v: "1"}, writes: {total: output.v}}
          - {name: reader, with: {t: state.total}, transform: {v: t}}
        output: {v: nodes.reader.output.v, t: state.total}
        """,
    ).root
    assert root.order == ("reader", "writer")
    assert root.by_name["reader"].after == ()
    assert root.output_schema["properties"]["v"] == {"type": "integer"}


def test_all_writers_that_come_before_are_parents_of_a_reader(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        state: [{name: rows, schema: {type: array, items: {type: integer}}, merge: append}]
        nodes:
          - {name: a, transform: {v: "1"}, writes: {rows: "[output.v]"}}
          - {name: b, transform: {v: "2"}, writes: {rows: "[output.v, 3]"}}
          - {name: c, after: [a, b], with: {rows: state.rows}, transform: {total: sum(rows)}}
        output: {v: nodes.c.output.total}
        """,
    ).root
    assert root.by_name["c"].parents == ("a", "b")
    assert root.channels[0].initial == []


def test_types_flow_through_nodes_without_declarations(checker: Checker) -> None:
    graph = compiled(
        checker,
        """
        schemas:
          Row:
            type: object
            required: [id, score]
            properties: {id: {type: string}, score: {type: number}, note: {type: string}}
        input: {rows: {type: array, items: Row}, "least?": {type: integer}}
        nodes:
          - name: good
            with: {rows: input.rows, least: input.least or 0}
            transform:
              rows: "[r for r in rows if r.score > least]"
              best: "max(rows, key=lambda r: r.score, default=None)"
          - name: count
            with: {rows: nodes.good.output.rows, best: nodes.good.output.best}
            transform: {size: len(rows), name: "best.id if best else 'none'"}
        output:
          size: nodes.count.output.size
          name: nodes.count.output.name
          notes: "[r.note for r in nodes.good.output.rows]"
        """,
    )
    properties = graph.root.by_name["good"].output["properties"]
    assert properties["rows"]["items"]["title"] == "Row"
    assert {"type": "null"} in properties["best"]["anyOf"]
    assert graph.root.output_schema["properties"]["size"] == {"type": "integer"}
    assert graph.root.output_schema["properties"]["name"] == {"type": "string"}
    assert graph.root.output_schema["properties"]["notes"]["items"] == {"anyOf": [{"type": "null"}, {"type": "string"}]}


def test_maps_run_templates_whose_types_come_from_below(checker: Checker) -> None:
    graph = compiled(checker, NESTED)
    outer, inner = graph.root.by_name["companies"], graph.templates["company"].by_name["fields"]
    assert outer.map is not None
    assert inner.map is not None
    assert (outer.map.template, inner.map.template) == ("company", "field")
    assert outer.map.item_schema["title"] == "Company"
    assert inner.map.item_schema == {"type": "string"}
    assert (graph.root.leaf, graph.templates["company"].leaf, graph.templates["field"].leaf) == (False, False, True)
    value = outer.output["properties"]["items"]["items"]["properties"]["facts"]["items"]
    assert value == graph.templates["field"].output_schema
    assert outer.map.tolerate.percent == 5
    assert inner.map.tolerate.count == 0
    assert outer.map.key is not None
    assert outer.map.key.path == ("company", "name")
    assert outer.reads == ("input.companies", "input.prefix")
    assert outer.output["required"] == ["failures", "items", "total"]


NESTED = """
schemas:
  Company:
    type: object
    required: [name, fields]
    properties: {name: {type: string}, fields: {type: array, items: {type: string}}}
input: {companies: {type: array, items: Company}, prefix: {type: string}}
nodes:
  - name: companies
    with: {prefix: input.prefix}
    map: {items: input.companies, as: company, key: company.name, template: company, concurrency: 8,
          tolerate: {percent: 5}}
output:
  facts: "[f for one in nodes.companies.output.items for f in one.facts]"
  failed: len(nodes.companies.output.failures)
templates:
  - name: company
    input: {company: Company, prefix: {type: string}, "index?": {type: integer}}
    nodes:
      - name: fields
        with: {prefix: "input.prefix + input.company.name"}
        map: {items: input.company.fields, as: field, key: str(index), template: field}
      - {name: where, with: {i: input.index}, transform: {i: i or 0}}
    output: {facts: nodes.fields.output.items, place: nodes.where.output.i}
  - name: field
    input: {field: {type: string}, prefix: {type: string}}
    nodes:
      - name: ask
        with: {field: input.field, prefix: input.prefix}
        llm:
          ref: fast
          system: "You answer {{ prefix }}."
          prompt: "What is {{ field.upper() }}?"
          parameters: {temperature: 0}
        output: {value: {type: number}, "unit?": {type: string}}
        retry: {repair: 1}
        timeoutSeconds: 12
    output: {field: input.field, value: nodes.ask.output.value, unit: nodes.ask.output.unit or 'none'}
"""


def test_a_model_call_is_kept_with_its_model(checker: Checker) -> None:
    fast = llm(auth={"secretKeyRef": {"name": "s", "key": "k"}}, parameters={"top_p": 1})
    graph = compiled(checker, NESTED, fast=fast, unused=llm())
    ask = graph.templates["field"].by_name["ask"]
    assert ask.llm is not None
    assert [part if isinstance(part, str) else part.py for part in ask.llm.prompt.parts] == [
        "What is ",
        "field.upper()",
        "?",
    ]
    assert ask.llm.system is not None
    assert ask.llm.parameters == {"temperature": 0}
    assert (ask.retry.repair, ask.retry.transient, ask.timeout_seconds) == (1, 3, 12)
    assert list(graph.llms) == ["fast"]
    assert graph.llms["fast"]["auth"] == {"secretKeyRef": {"name": "s", "key": "k"}}


def test_defaults_are_those_of_the_kind(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        nodes:
          - {name: t, transform: {v: "1"}}
          - {name: c, code: "1", output: {type: integer}}
          - {name: l, llm: {ref: fast, prompt: hi}}
          - {name: m, map: {items: "['a']", template: one}}
        output: {t: nodes.t.output.v, c: nodes.c.output, l: nodes.l.output.text, m: nodes.m.output.total}
        templates: [{name: one, input: {item: {type: string}},
                     nodes: [{name: x, with: {i: input.item}, transform: {v: i}}], output: {$value: nodes.x.output.v}}]
        """,
    ).root
    assert {name: node.timeout_seconds for name, node in root.by_name.items()} == {
        "t": 1.0,
        "c": 30.0,
        "l": 600.0,
        "m": 604_800.0,
    }
    assert root.by_name["l"].output["properties"] == {"text": {"type": "string"}}
    assert root.by_name["m"].output["properties"]["items"]["items"] == {"type": "string"}
    assert root.by_name["c"].code is not None
    assert root.by_name["c"].code.py == "def main():\n    return 1"


def test_code_reads_optional_properties_of_its_inputs_as_none(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        schemas: {Row: {type: object, required: [id], properties: {id: {type: string}, unit: {type: string}}}}
        input: {rows: {type: array, items: Row}}
        nodes:
          - name: a
            with: {rows: input.rows}
            code: |
              mine = {"other": 1}
              [r["unit"] or mine["other"] for r in rows if r["id"]]
            output: {type: array, items: {type: [string, integer]}}
        output: {$value: nodes.a.output}
        """,
    ).root
    code = root.by_name["a"].code
    assert code is not None
    assert code.py.splitlines()[-1] == "    return [r.get('unit') or mine['other'] for r in rows if r['id']]"
    assert root.output_schema == {"type": "array", "items": {"type": ["string", "integer"]}}


def test_a_skipped_node_with_otherwise_is_read_without_a_guard(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        input: {m: {type: integer}}
        nodes:
          - {name: a, when: input.m > 1, with: {m: input.m}, transform: {v: m * 2}, otherwise: {v: input.m}}
          - {name: b, after: [a], with: {v: nodes.a.output.v}, transform: {v: v + 1}}
          - {name: c, when: nodes.b.output.v > 3, with: {v: nodes.b.output.v}, transform: {v: v}}
        output: {v: nodes.b.output.v, c: nodes.c.output.v if nodes.c.output else 0}
        """,
    ).root
    node = root.by_name["a"]
    assert node.otherwise is not None
    assert node.otherwise["v"].path == ("input", "m")
    assert node.reads == ("input.m",)


def test_items_come_from_a_file_line_by_line(checker: Checker) -> None:
    root = compiled(
        checker,
        """
        schemas: {Doc: {type: object, required: [id], properties: {id: {type: string}, text: {type: string}}}}
        input: {uri: {type: string}}
        nodes:
          - {name: docs, map: {itemsFrom: {jsonl: input.uri, schema: Doc}, as: doc, key: doc.id, template: one}}
        output: {ids: nodes.docs.output.items}
        templates: [{name: one, input: {doc: Doc}, nodes: [{name: x, with: {d: input.doc}, transform: {id: d.id}}],
                     output: {$value: nodes.x.output.id}}]
        """,
    ).root
    block = root.by_name["docs"].map
    assert block is not None
    assert block.items is None
    assert block.jsonl is not None
    assert block.jsonl.path == ("input", "uri")
    assert block.item_schema["title"] == "Doc"
    assert root.output_schema["properties"]["ids"] == {"type": "array", "items": {"type": "string"}}


def test_every_schema_of_the_result_is_one(checker: Checker) -> None:
    graph = compiled(checker, NESTED)
    scopes = [graph.root, *graph.templates.values()]
    schemas = [schema for scope in scopes for schema in (scope.input_schema, scope.output_schema)]
    schemas += [node.output for scope in scopes for node in scope.nodes]
    for schema in schemas:
        jsonschema_rs.validator_for(schema)


def test_the_result_survives_json(checker: Checker) -> None:
    graph = compiled(checker, NESTED)
    again = CompiledGraph.model_validate(json.loads(json.dumps(graph.to_json())))
    assert again == graph
    assert again.digest == graph.digest


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def with_nulls(value: Any) -> Any:
    """The same with null members at places where the API has optional fields."""
    spec = copy.deepcopy(value)
    for node in spec["nodes"]:
        node["when"] = None
        node["description"] = None
    return spec


def test_spelling_does_not_change_a_digest(checker: Checker) -> None:
    spec = spec_of(NESTED)
    first = compiled(checker, spec)
    assert compiled(checker, reordered(spec)).digest == first.digest
    text = json.dumps({**META, "kind": "TaskGraph", "spec": with_nulls(spec)})
    [document] = load_text(text, "g.json").documents
    graph, _ = document.parse()
    assert isinstance(graph, TaskGraph)
    assert compile_graph(graph, llms={"fast": llm()}, checker=checker).result().digest == first.digest


def digests(graph: CompiledGraph) -> dict[str, str]:
    found = {name: node.digest for name, node in graph.root.by_name.items()}
    for template, scope in graph.templates.items():
        found |= {f"{template}.{node.name}": node.digest for node in scope.nodes}
    return found


def changed(before: CompiledGraph, after: CompiledGraph) -> set[str]:
    old, new = digests(before), digests(after)
    return {name for name in old if old[name] != new[name]}


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        (
            ("templates", 1, "nodes", 0, "llm", "prompt"),
            "What {{ field }}?",
            {"companies", "company.fields", "field.ask"},
        ),
        (("templates", 1, "nodes", 0, "retry", "repair"), 2, {"companies", "company.fields", "field.ask"}),
        (("templates", 0, "nodes", 1, "transform", "i"), "i or 1", {"companies", "company.where"}),
        (("templates", 0, "nodes", 1, "transform", "i"), "( i  or 0 )", set()),
        (("templates", 0, "nodes", 1, "description"), "where it is", set()),
        (("nodes", 0, "map", "concurrency"), 9, set()),
        (("nodes", 0, "map", "tolerate", "percent"), 6, {"companies"}),
        (("output", "failed"), "1", set()),
    ],
)
def test_a_node_digest_covers_what_decides_its_result(
    checker: Checker, path: tuple[str | int, ...], value: object, names: set[str]
) -> None:
    spec = spec_of(NESTED)
    before = compiled(checker, spec)
    at: Any = spec
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert changed(before, compiled(checker, spec)) == names


@pytest.mark.parametrize(
    ("models", "same"),
    [
        (llm(model="other"), False),
        (llm(parameters={"temperature": 1}), False),
        (llm(structuredOutput="prompt"), False),
        (llm(endpoint="http://127.0.0.1:2/v1"), True),
        (llm(auth={"secretKeyRef": {"name": "s", "key": "k"}}), True),
        (llm(limits={"concurrency": 3}), True),
        (llm(structuredOutput="native"), True),
    ],
)
def test_a_node_digest_covers_of_its_model_what_changes_an_answer(checker: Checker, models: LLM, same: bool) -> None:
    before = compiled(checker, NESTED)
    after = compiled(checker, NESTED, fast=models)
    assert changed(before, after) == (set() if same else {"companies", "company.fields", "field.ask"})


def test_the_name_of_a_model_is_not_part_of_its_answer(checker: Checker) -> None:
    before = compiled(checker, NESTED)
    after = compiled(checker, NESTED.replace("ref: fast", "ref: quick"), quick=llm())
    assert changed(before, after) == set()


def test_unused_templates_and_models_are_left_out(checker: Checker) -> None:
    graph = compiled(
        checker,
        """
        nodes: [{name: a, transform: {v: "1"}}]
        output: {v: nodes.a.output.v}
        templates: [{name: t, nodes: [{name: b, llm: {ref: fast, prompt: hi}}], output: {v: nodes.b.output.text}}]
        """,
    )
    assert graph.templates == {}
    assert graph.llms == {}


def test_an_output_of_a_map_may_be_declared(checker: Checker) -> None:
    spec = """
        nodes: [{name: a, map: {items: "[1]", template: t},
                 output: {items: {type: array, items: {type: number}}, total: {type: integer},
                          "failures?": {type: array}}}]
        output: {v: nodes.a.output.total}
        templates: [{name: t, input: {item: {type: integer}},
                     nodes: [{name: b, with: {i: input.item}, transform: {v: i}}], output: {$value: nodes.b.output.v}}]
        """
    assert compiled(checker, spec).root.by_name["a"].output["properties"]["items"]["items"] == {"type": "integer"}
    result = compilation(checker, spec.replace("number", "string"))
    assert [(finding.code, finding.path) for finding in result.findings] == [("OUTPUT-TYPE", "nodes.a.output")]


def test_checks_are_batched(checker: Checker) -> None:
    nodes: list[dict[str, Any]] = [
        {
            "name": f"n{i}",
            "with": {"xs": "[x + 1 for x in input.xs]"},
            "transform": {"v": f"sum(xs) + {i}", "w": "len(xs)"},
        }
        for i in range(100)
    ]
    output = {f"v{i}": f"nodes.n{i}.output.v + nodes.n{i}.output.w" for i in range(30)}
    spec = {"input": {"xs": {"type": "array", "items": {"type": "integer"}}}, "nodes": nodes, "output": output}
    before, started = checker.checks, time.perf_counter()
    graph = compiled(checker, spec)
    assert checker.checks - before == 3
    assert graph.root.output_schema["properties"]["v7"] == {"type": "integer"}
    assert time.perf_counter() - started < 30


def test_a_digest_does_not_depend_on_what_was_checked_before(checker: Checker) -> None:
    with Checker() as fresh:
        assert compiled(fresh, NESTED).digest == compiled(checker, NESTED).digest


def test_a_checker_may_be_shared_by_threads(checker: Checker) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: compiled(checker, NESTED).digest, range(8)))
    assert len(set(found)) == 1

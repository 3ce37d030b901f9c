"""Graphs made of graphs: closures, bindings, what is refused, and where it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from decurion_crds.compile import Checker, Compilation, Module, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.loader import load_text
from decurion_crds.show import show_mermaid, show_text
from decurion_crds.v1alpha1 import LLM, MCPServer, TaskGraph

LOOKUP = """
kind: TaskGraph
apiVersion: decurion.dev/v1alpha1
metadata: {name: lookup}
spec:
  needs: {fast: LLM, deep: LLM}
  input: {text: {type: string}}
  nodes:
    - name: ask
      with: {text: input.text}
      llm: {ref: fast, prompt: "{{ text }}"}
      output: {answer: {type: string}}
    - name: again
      with: {texts: "[input.text]"}
      map: {items: input.text.split(), as: word, template: one}
  output: {answer: nodes.ask.output.answer, more: nodes.again.output.items}
  templates:
    - name: one
      input: {word: {type: string}, texts: {type: array, items: {type: string}}}
      nodes:
        - name: think
          with: {word: input.word, texts: input.texts}
          llm: {ref: deep, prompt: "{{ word }} of {{ texts }}"}
      output: {text: nodes.think.output.text}
"""

MAIN = """
kind: TaskGraph
apiVersion: decurion.dev/v1alpha1
metadata: {name: main}
spec:
  input: {text: {type: string}}
  nodes:
    - name: one
      with: {text: input.text}
      transform: {text: text}
    - name: left
      with: {text: nodes.one.output.text}
      graph: {ref: lookup, bind: {fast: claude}}
    - name: right
      with: {text: nodes.one.output.text}
      graph: {ref: lookup, bind: {fast: gpt, deep: gpt}}
    - name: each
      map: {items: input.text.split(), as: text, ref: lookup}
  output:
    left: nodes.left.output.answer
    right: nodes.right.output.answer
    each: "[one.answer for one in nodes.each.output.items]"
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def llm(name: str) -> LLM:
    spec = {"protocol": "openai", "model": name, "endpoint": "http://127.0.0.1:1/v1"}
    meta = {"apiVersion": "decurion.dev/v1alpha1", "metadata": {"name": name}}
    return LLM.model_validate({**meta, "kind": "LLM", "spec": spec})


LLMS = {name: llm(name) for name in ("fast", "deep", "claude", "gpt")}


def module(text: str) -> tuple[str, TaskGraph, Module]:
    [document] = load_text(text, f"{text.partition('name: ')[2].partition('}')[0]}.yaml").documents
    graph, findings = document.parse()
    assert isinstance(graph, TaskGraph), [finding.text() for finding in findings]
    return graph.name, graph, Module(graph, document.locate)


def compilation(checker: Checker, *texts: str, llms: dict[str, LLM] | None = None, **known: Any) -> Compilation:
    """The first of the graphs, with the others beside it."""
    (_, graph, own), *others = [module(text) for text in texts]
    graphs = {name: other for name, _, other in others}
    return compile_graph(
        graph, llms=LLMS if llms is None else llms, graphs=graphs, positions=own.positions, checker=checker, **known
    )


def told(checker: Checker, *texts: str, **given: Any) -> list[str]:
    return [finding.text() for finding in compilation(checker, *texts, **given).findings]


def compiled(checker: Checker, *texts: str, **given: Any) -> CompiledGraph:
    found = compilation(checker, *texts, **given)
    assert [finding.text() for finding in found.findings] == []
    return found.result()


def model_of(graph: CompiledGraph, scope: str, node: str) -> str:
    call = graph.templates[scope].by_name[node].llm
    assert call is not None
    return str(graph.llms[call.ref]["model"])


def test_each_binding_of_a_graph_is_a_scope_of_its_own(checker: Checker) -> None:
    graph = compiled(checker, MAIN, LOOKUP)
    assert sorted(graph.templates) == [
        "graph:lookup",
        "graph:lookup(deep=gpt,fast=gpt)",
        "graph:lookup(deep=gpt,fast=gpt)/one",
        "graph:lookup(fast=claude)",
        "graph:lookup(fast=claude)/one",
        "graph:lookup/one",
    ]
    asked = {scope: model_of(graph, scope, "ask") for scope in graph.templates if "/" not in scope}
    assert asked == {
        "graph:lookup": "fast",
        "graph:lookup(fast=claude)": "claude",
        "graph:lookup(deep=gpt,fast=gpt)": "gpt",
    }
    thought = {scope: model_of(graph, scope, "think") for scope in graph.templates if "/" in scope}
    assert thought == {
        "graph:lookup/one": "deep",
        "graph:lookup(fast=claude)/one": "deep",
        "graph:lookup(deep=gpt,fast=gpt)/one": "gpt",
    }
    assert graph.root.by_name["left"].template == "graph:lookup(fast=claude)"
    assert graph.root.by_name["each"].template == "graph:lookup"
    assert sorted(graph.llms) == ["claude", "deep", "fast", "gpt"]
    assert graph.root.output_schema["properties"]["each"] == {"type": "array", "items": {"type": "string"}}
    assert not graph.templates["graph:lookup"].leaf
    assert graph.templates["graph:lookup/one"].leaf


def test_only_what_differs_in_a_binding_changes_a_digest(checker: Checker) -> None:
    graph = compiled(checker, MAIN, LOOKUP)
    digests = {node.name: node.digest for node in graph.root.nodes}
    assert digests["left"] != digests["right"]
    inner = [graph.templates[scope].digest for scope in ("graph:lookup/one", "graph:lookup(fast=claude)/one")]
    assert inner[0] == inner[1], "its model is the same in both"
    same = compiled(checker, MAIN.replace("{fast: claude}", "{deep: deep, fast: claude}"), LOOKUP)
    assert same.digest == graph.digest, "a name that stands for itself says nothing"
    edited = compiled(checker, MAIN, LOOKUP.replace("of {{ texts }}", "in {{ texts }}"))
    assert edited.digest != graph.digest


def test_an_override_comes_last(checker: Checker) -> None:
    swapped = {**LLMS, "claude": llm("other")}
    graph = compiled(checker, MAIN, LOOKUP, llms=swapped)
    assert model_of(graph, "graph:lookup(fast=claude)", "ask") == "other"
    assert model_of(graph, "graph:lookup", "ask") == "fast"


def test_a_need_is_passed_on_by_its_name(checker: Checker) -> None:
    middle = """
kind: TaskGraph
apiVersion: decurion.dev/v1alpha1
metadata: {name: middle}
spec:
  needs: {model: LLM}
  input: {text: {type: string}}
  nodes:
    - {name: a, with: {text: input.text}, graph: {ref: lookup, bind: {fast: model}}}
  output: {answer: nodes.a.output.answer}
"""
    main = MAIN.replace("ref: lookup, bind: {fast: claude}", "ref: middle, bind: {model: claude}")
    graph = compiled(checker, main, middle, LOOKUP)
    assert graph.templates["graph:middle(model=claude)"].by_name["a"].template == "graph:lookup(fast=claude)"
    assert model_of(graph, "graph:lookup(fast=claude)", "ask") == "claude"
    assert "model" not in graph.llms, "what is bound wherever it is used need not exist"


def test_a_template_may_have_the_name_of_a_graph(checker: Checker) -> None:
    main = MAIN.replace("as: text, ref: lookup", "as: text, template: lookup") + (
        "  templates:\n"
        "    - name: lookup\n"
        "      input: {text: {type: string}}\n"
        "      nodes: [{name: a, with: {text: input.text}, transform: {answer: text}}]\n"
        "      output: {answer: nodes.a.output.answer}\n"
    )
    graph = compiled(checker, main, LOOKUP)
    assert {"lookup", "graph:lookup(fast=claude)"} <= graph.templates.keys()


def test_a_graph_shows_its_graphs(checker: Checker) -> None:
    graph = compiled(checker, MAIN, LOOKUP)
    text = show_text(graph)
    assert "graph lookup(fast=claude)" in text
    assert "template one of graph lookup(fast=claude)" in text
    boxes = [line for line in show_mermaid(graph).splitlines() if "subgraph" in line]
    names = [line.split("subgraph ")[1].partition("[")[0] for line in boxes]
    assert len(names) == len(set(names)) == 7
    assert all(name.replace("_", "").isalnum() for name in names)


REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "no such graph": (
        [MAIN.replace("as: text, ref: lookup", "as: text, ref: lokup"), LOOKUP],
        ['main.yaml:18:55 nodes.each.map.ref [REF-MISSING] there is no TaskGraph "lokup"; did you mean "lookup"?'],
    ),
    "no such need": (
        [MAIN.replace("{fast: claude}", "{fsat: claude}"), LOOKUP],
        [
            'main.yaml:13:35 nodes.left.graph.bind.fsat [FIELD-UNKNOWN] the graph lookup has no "fsat" in its needs; '
            'did you mean "fast"?'
        ],
    ),
    "no such model": (
        [MAIN.replace("{fast: claude}", "{fast: cluade}"), LOOKUP],
        ['main.yaml:13:41 nodes.left.graph.bind.fast [REF-MISSING] there is no LLM "cluade"; did you mean "claude"?'],
    ),
    "an input that it does not take": (
        [MAIN.replace("as: text, ref", "as: txt, ref"), LOOKUP],
        ['main.yaml:18:44 nodes.each.map.as [FIELD-UNKNOWN] the graph lookup has no input "txt"; did you mean "text"?'],
    ),
    "an output that it does not give": (
        [MAIN.replace("nodes.left.output.answer", "nodes.left.output.anwser"), LOOKUP],
        [
            'main.yaml:20:29 output.left [EXPR-FIELD] object {answer, more} has no field "anwser"; did you mean '
            '"answer"?'
        ],
    ),
    "itself": (
        [
            MAIN.replace("ref: lookup, bind: {fast: claude}", "ref: main").replace(
                "left.output.answer", "one.output.text"
            )
        ],
        [
            "main.yaml:13:20 nodes.left.graph.ref [CYCLE] graphs contain one another (main → main), so there is no "
            "end; name another graph"
        ],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(checker: Checker, name: str) -> None:
    texts, due = REFUSED[name]
    if name == "itself":
        texts = [*texts, LOOKUP]
    errors = [f.text() for f in compilation(checker, *texts).findings if f.severity == "error"]
    assert errors == due


def test_what_is_wrong_in_another_graph_is_told_there_and_once(checker: Checker) -> None:
    wrong = LOOKUP.replace("items: input.text.split()", "items: input.txt.split()").replace("ref: deep", "ref: dep")
    found = compilation(checker, MAIN, wrong)
    assert [finding.text() for finding in found.findings] == [
        'lookup.yaml:15:26 nodes.again.map.items [EXPR-FIELD] input has no field "txt"; did you mean "text"?',
        'lookup.yaml:23:22 templates.one.nodes.think.llm.ref [REF-MISSING] there is no LLM "dep"; did you mean "deep"?',
    ]
    assert [finding.graph for finding in found.findings] == ["lookup", "lookup"]
    assert [finding.absent for finding in found.findings] == [None, "LLM dep"]


def chain(name: str, ref: str) -> str:
    return f"""
kind: TaskGraph
apiVersion: decurion.dev/v1alpha1
metadata: {{name: {name}}}
spec:
  nodes: [{{name: a, graph: {{ref: {ref}}}}}]
  output: {{v: nodes.a.output.v}}
"""


def test_a_circle_of_graphs_is_told_at_one_place_whichever_is_compiled(checker: Checker) -> None:
    graphs = {"a": chain("a", "b"), "b": chain("b", "c"), "c": chain("c", "b")}
    due = [
        "b.yaml:6:34 nodes.a.graph.ref [CYCLE] graphs contain one another (b → c → b), so there is no end; name "
        "another graph"
    ]
    for first in graphs:
        others = [graphs[name] for name in graphs if name != first]
        assert told(checker, graphs[first], *others) == due


def test_a_need_that_nothing_uses_is_warned_of_and_one_of_another_kind_refused(checker: Checker) -> None:
    unused = LOOKUP.replace("deep: LLM}", "deep: LLM, slow: LLM}")
    assert told(checker, unused) == [
        "lookup.yaml:6:39 needs.slow [UNUSED] no node uses slow, so binding it changes nothing; use it, or remove it "
        "from needs"
    ]


def test_one_graph_is_typed_once_however_often_it_is_used(checker: Checker) -> None:
    """Bindings multiply scopes, not checks."""

    class Counting(Checker):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def check(self, tasks: Any, definitions: str) -> Any:
            self.count += len(tasks)
            return super().check(tasks, definitions)

    nodes = "".join(
        f"    - {{name: n{i}, with: {{text: input.text}}, graph: {{ref: lookup, bind: {{fast: m{i}}}}}}}\n"
        for i in range(20)
    )
    outputs = "  output: {" + ", ".join(f"n{i}: nodes.n{i}.output.answer" for i in range(20)) + "}\n"
    head = MAIN.partition("  nodes:")[0]
    llms = {**LLMS, **{f"m{i}": llm(f"m{i}") for i in range(20)}}
    counts = []
    for last in (1, 20):
        with Counting() as counting:
            kept = nodes if last == 20 else nodes.partition("    - {name: n1,")[0]
            output = outputs if last == 20 else "  output: {n0: nodes.n0.output.answer}\n"
            graph = compiled(counting, f"{head}  nodes:\n{kept}{output}", LOOKUP, llms=llms)
            counts.append(counting.count)
            assert len(graph.templates) == 2 * last
    assert counts[0] == counts[1]


SCHEMAS = """
kind: TaskGraph
apiVersion: decurion.dev/v1alpha1
metadata: {name: filings}
spec:
  schemas:
    Unit: {enum: [usd, eur]}
    Fact: {type: object, required: [value, unit], properties: {value: {type: number}, unit: Unit}}
  input: {fact: Fact}
  nodes: [{name: a, with: {fact: input.fact}, transform: {value: fact.value}}]
  output: {value: nodes.a.output.value}
"""

READER = """
kind: TaskGraph
apiVersion: decurion.dev/v1alpha1
metadata: {name: reader}
spec:
  schemas:
    Unit: {type: integer}
  input: {fact: {$ref: "graph:filings#/schemas/Fact"}, unit: Unit}
  nodes: [{name: a, with: {fact: input.fact, unit: input.unit}, transform: {value: fact.unit, unit: unit}}]
  output: {value: nodes.a.output.value, unit: nodes.a.output.unit}
"""


def test_a_schema_of_another_graph_is_expanded_among_its_own(checker: Checker) -> None:
    graph = compiled(checker, READER, SCHEMAS)
    fact = graph.root.input_schema["properties"]["fact"]
    assert fact["properties"]["unit"]["enum"] == ["usd", "eur"]
    assert graph.root.output_schema["properties"]["unit"] == {"title": "Unit", "type": "integer"}


@pytest.mark.parametrize(
    ("old", "new", "due"),
    [
        (
            "graph:filings#",
            "graph:filngs#",
            'reader.yaml:8:17 input.fact [REF-MISSING] there is no TaskGraph "filngs"; did you mean "filings"?',
        ),
        (
            "schemas/Fact",
            "schemas/Fcat",
            'reader.yaml:8:17 input.fact [SCHEMA] the graph filings has no shared schema "Fcat"; did you mean "Fact"?',
        ),
    ],
)
def test_a_schema_that_another_graph_does_not_have(checker: Checker, old: str, new: str, due: str) -> None:
    found = compilation(checker, READER.replace(old, new), SCHEMAS)
    assert [finding.text() for finding in found.findings if finding.severity == "error"] == [due]


def test_what_is_wrong_in_a_schema_of_another_graph_is_told_there(checker: Checker) -> None:
    wrong = SCHEMAS.replace("{type: number}", "{type: nubmer}")
    assert told(checker, READER, wrong) == [
        'filings.yaml:8:71 schemas.Fact.properties.value [SCHEMA] there is no type "nubmer"; did you mean "number"?'
    ]
    circle = SCHEMAS.replace("{type: number}", '{$ref: "graph:reader#/schemas/Unit"}')
    main = READER.replace("Unit: {type: integer}", 'Unit: {$ref: "graph:filings#/schemas/Fact"}')
    [first, *_] = told(checker, main, circle)
    assert "a schema cannot contain itself" in first


def test_delimiters_of_a_graph_hold_for_all_its_texts_and_for_no_other_graph(checker: Checker) -> None:
    other = LOOKUP.replace("spec:", 'spec:\n  delimiters: ["<<", ">>"]').replace(
        '"{{ word }} of {{ texts }}"', '"{{ .Values.x }} << word >> of << [t for t in texts if len(t) > 2] >>"'
    )
    other = other.replace('"{{ text }}"', '"<< text >>"')
    graph = compiled(checker, MAIN, other)
    call = graph.templates["graph:lookup/one"].by_name["think"].llm
    assert call is not None
    assert [part if isinstance(part, str) else part.src for part in call.prompt.parts] == [
        "{{ .Values.x }} ",
        "word",
        " of ",
        "[t for t in texts if len(t) > 2]",
    ]
    assert told(checker, MAIN, other.replace("<< text >>", "<< text }}")) == [
        "lookup.yaml:12:33 nodes.ask.llm.prompt [EXPR-SYNTAX] this << has no >>; close it, or write << '<<' >> for the "
        "sign itself"
    ]


def test_a_bundle_beyond_its_bound_is_refused_with_what_is_large(checker: Checker) -> None:
    """A wide schema that stands in many places: little to write, and much when it is written out."""
    fields = ", ".join(f"field{i}: {{type: string, description: '{'x' * 60}'}}" for i in range(120))
    uses = "".join(
        f"    - {{name: n{i}, llm: {{ref: fast, prompt: p}}, output: {{all: {{type: array, items: Wide}}, one: Wide}}}}"
        "\n"
        for i in range(120)
    )
    text = (
        "kind: TaskGraph\napiVersion: decurion.dev/v1alpha1\nmetadata: {name: wide}\nspec:\n"
        f"  schemas:\n    Wide: {{{fields}}}\n  nodes:\n{uses}  output: {{last: nodes.n0.output.one}}\n"
    )
    found = compilation(checker, text)
    assert found.compiled is None
    [error] = [finding for finding in found.findings if finding.severity == "error"]
    assert error.code == "BUNDLE-TOO-LARGE"
    assert "may have 2,000,000; the largest is the graph itself with" in error.message
    assert error.message.endswith("shorten texts and schemas there, or bind fewer different names")


def doubling(level: int, depth: int) -> str:
    """Two uses of the next level, or one node."""
    inner = f"graph: {{ref: g{level + 1}}}" if level < depth else "transform: {v: '1'}"
    nodes = "".join(f"    - {{name: a{i}, {inner}}}\n" for i in range(2))
    return (
        f"kind: TaskGraph\napiVersion: decurion.dev/v1alpha1\nmetadata: {{name: g{level}}}\nspec:\n  nodes:\n{nodes}"
        "  output: {v: nodes.a0.output.v, w: nodes.a1.output.v}\n"
    )


def test_limits_of_a_graph_hold_over_all_that_it_runs(checker: Checker) -> None:
    texts = [doubling(level, 14) for level in range(15)]
    errors = [f.text() for f in compilation(checker, *texts).findings if f.severity == "error"]
    assert errors == [
        "g2.yaml:7:31 nodes.a1.graph.ref [SPEC-TOO-LARGE] with the templates and graphs inside, there are more than "
        "10,000 nodes here; map over a list, or use fewer of them inside one another"
    ]
    assert compiled(checker, *texts[4:]).root.leaf


def test_bindings_without_end_are_refused(checker: Checker) -> None:
    """Ten needs that each level swaps or keeps: a thousand bindings of one graph."""
    needs = [f"m{i}" for i in range(10)]
    graphs = []
    for level in range(10):
        swap = f"{{{needs[level]}: other}}"
        keep = ", ".join(f"{need}: {need}" for need in needs if need != needs[level])
        ref = f"l{level + 1}"
        nodes = (
            f"    - {{name: a, graph: {{ref: {ref}, bind: {{{keep}, {swap[1:-1]}}}}}}}\n"
            f"    - {{name: b, graph: {{ref: {ref}, bind: {{{keep}, {needs[level]}: {needs[level]}}}}}}}\n"
        )
        graphs.append((f"l{level}", nodes))
    leaf = "".join(f"    - {{name: {need}, llm: {{ref: {need}, prompt: p}}}}\n" for need in needs)
    graphs.append(("l10", leaf))
    texts = [
        f"kind: TaskGraph\napiVersion: decurion.dev/v1alpha1\nmetadata: {{name: {name}}}\nspec:\n"
        f"  needs: {{{', '.join(f'{need}: LLM' for need in needs)}}}\n  nodes:\n{nodes}"
        for name, nodes in graphs
    ]
    llms = {name: llm(name) for name in (*needs, "other")}
    errors = [f.message for f in compilation(checker, *texts, llms=llms).findings if f.severity == "error"]
    assert len(errors) >= 1
    assert any(message.startswith("with every graph under every binding there are more") for message in errors)


def test_delimiters_hold_for_arguments_of_tools(checker: Checker) -> None:
    meta = {"apiVersion": "decurion.dev/v1alpha1", "metadata": {"name": "search"}}
    tool = {"name": "find", "input": {"type": "object", "properties": {"text": {"type": "string"}}}}
    server = MCPServer.model_validate({**meta, "kind": "MCPServer", "spec": {"url": "http://h/mcp", "tools": [tool]}})
    spec = {
        "delimiters": ["<<", ">>"],
        "input": {"text": {"type": "string"}},
        "nodes": [
            {
                "name": "a",
                "with": {"text": "input.text"},
                "tool": {"server": "search", "name": "find", "arguments": {"text": "{{ x }} << text >>"}},
            }
        ],
        "output": {"text": "nodes.a.output.text"},
    }
    graph = TaskGraph.model_validate({**meta, "kind": "TaskGraph", "spec": spec})
    found = compile_graph(graph, llms={}, servers={"search": server}, checker=checker)
    assert [finding.text() for finding in found.findings] == []
    call = found.result().root.by_name["a"].tool
    assert call is not None
    assert '["{{ x }} ",' in str(orjson.dumps(call.to_json()["arguments"]))

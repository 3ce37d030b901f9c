"""What a graph over files becomes: items of a folder, and names that are read out of files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from decurion_crds.compile import Checker, Compilation, compile_graph
from decurion_crds.compiled import LISTED_FILE, CompiledGraph
from decurion_crds.loader import load_text
from decurion_crds.show import show_text
from decurion_crds.v1alpha1 import LLM, TaskGraph

HEAD = "apiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {name: g}\nspec:\n"
FAST = LLM.model_validate(
    {
        "apiVersion": "decurion.dev/v1alpha1",
        "kind": "LLM",
        "metadata": {"name": "fast"},
        "spec": {"protocol": "openai", "model": "m", "endpoint": "http://127.0.0.1:1/v1"},
    }
)
FILES = """
  input: {folder: {type: string}, rates: {type: string}}
  schemas: {Rates: {type: object, required: [eur], properties: {eur: {type: integer}}}}
  nodes:
    - name: each
      map: {itemsFrom: {prefix: input.folder, glob: "**/*.txt"}, as: file, template: one}
    - name: sum
      with: {rows: nodes.each.output.items}
      load: {rates: {from: input.rates, as: json, schema: Rates, maxBytes: 10}, image: {from: input.rates, as: bytes}}
      transform: {eur: "sum([row.words for row in rows]) * rates.eur", image: image}
  output: {eur: nodes.sum.output.eur, image: nodes.sum.output.image, files: nodes.each.output.items}
  templates:
    - name: one
      input: {file: {type: object, required: [uri, size, key], properties: {
        uri: {type: string}, size: {type: integer}, key: {type: string}}}}
      nodes:
        - name: read
          load: {text: {from: input.file}}
          with: {size: input.file.size}
          transform: {words: len(text.split()), size: size}
      output: {words: nodes.read.output.words, key: input.file.key}
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def compilation(checker: Checker, spec: str) -> Compilation:
    models, found = load_text(HEAD + spec, "g.yaml").parse()
    assert [finding.text() for finding in found] == []
    (graph,) = [model for _, model in models if isinstance(model, TaskGraph)]
    return compile_graph(graph, llms={"fast": FAST}, checker=checker)


def compiled(checker: Checker, spec: str) -> CompiledGraph:
    found = compilation(checker, spec)
    assert [finding.text() for finding in found.findings] == []
    return found.result()


def codes(checker: Checker, spec: str) -> list[tuple[str, str]]:
    return [(finding.code, finding.path) for finding in compilation(checker, spec).findings]


def test_items_of_a_folder_have_the_type_of_a_listed_file(checker: Checker) -> None:
    root = compiled(checker, FILES).root
    block = root.by_name["each"].map
    assert block is not None
    assert block.prefix is not None
    assert (block.prefix.path, block.glob, block.key) == (("input", "folder"), "**/*.txt", None)
    assert block.item_schema == LISTED_FILE
    files = root.output_schema["properties"]["files"]["items"]["properties"]
    assert files == {"words": {"type": "integer"}, "key": {"type": "string"}}


def test_loads_are_typed_names_that_order_and_decide_a_node(checker: Checker) -> None:
    node = compiled(checker, FILES).root.by_name["sum"]
    assert node.reads == ("input.rates", "nodes.each.output.items")
    rates, image = node.load["rates"], node.load["image"]
    assert (rates.as_, rates.max_bytes, rates.schema_["title"]) == ("json", 10, "Rates")
    assert (image.as_, image.max_bytes, image.schema_) == ("bytes", 1024 * 1024, {})
    assert node.output["properties"] == {"eur": {"type": "integer"}, "image": {"type": "string"}}
    other = compiled(checker, FILES.replace("maxBytes: 10", "maxBytes: 11")).root.by_name["sum"]
    assert other.digest != node.digest


def test_a_graph_without_files_keeps_its_digest(checker: Checker) -> None:
    """The digests of graphs that were compiled before there were files in graphs: their results may be taken over."""
    spec = """
  input: {xs: {type: array, items: {type: integer}}}
  nodes: [{name: each, map: {items: input.xs, as: it, template: one}}]
  output: {xs: nodes.each.output.items}
  templates: [{name: one, input: {it: {type: integer}}, nodes: [{name: a, with: {x: input.it}, transform: {v: x}}],
               output: {v: nodes.a.output.v}}]
"""
    text = compiled(checker, spec).to_json()
    each = text["root"]["nodes"][0]
    assert not {"load", "prefix", "glob"} & (each.keys() | each["map"].keys())


def test_a_load_after_a_node_is_an_edge_that_is_shown(checker: Checker) -> None:
    spec = """
  nodes:
    - {name: place, transform: {uri: "'s3://b/k'"}}
    - {name: read, load: {text: {from: nodes.place.output.uri}}, llm: {ref: fast, prompt: "Sum up {{ text }}"}}
  output: {text: nodes.read.output.text}
"""
    graph = compiled(checker, spec)
    assert graph.root.by_name["read"].after == ("place",)
    assert "load.text: nodes.place.output.uri" in show_text(graph)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("prefix: input.folder", "prefix: len(input.folder)", ("EXPR-TYPE", "nodes.each.map.itemsFrom.prefix")),
        ("prefix: input.folder", "prefix: input.folders", ("EXPR-FIELD", "nodes.each.map.itemsFrom.prefix")),
        ("input.file.size", "input.file.bytes", ("EXPR-FIELD", "templates.one.nodes.read.with.size")),
        ("rates.eur", "rates.usd", ("EXPR-FIELD", "nodes.sum.transform.eur")),
        ("rates.eur", "(image + 1)", ("EXPR-TYPE", "nodes.sum.transform.eur")),
        (
            "from: input.rates, as: bytes",
            "from: nodes.no.output, as: bytes",
            ("REF-MISSING", "nodes.sum.load.image.from"),
        ),
        ("image: {from: input.rates", "date: {from: input.rates", ("NAME", "nodes.sum.load.date")),
        ("schema: Rates", "schema: Rate", ("SCHEMA", "nodes.sum.load.rates.schema")),
        (", image: image}", "}", ("UNUSED", "nodes.sum.load.image")),
    ],
)
def test_mistakes_at_files_are_found(checker: Checker, old: str, new: str, found: tuple[str, str]) -> None:
    assert old in FILES
    assert found in codes(checker, FILES.replace(old, new))

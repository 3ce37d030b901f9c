"""`llm.choices`: what one call may answer, from the checker to the request to the answer that is none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from decurion_crds.compile import Checker, Compilation, compile_graph
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, TaskGraph
from decurion_worker.session import RunSession
from model_server import start_model_server
from test_runs import Bench

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: choosing}
spec:
  input: {labels: {type: array, items: {type: string}}}
  nodes:
    - name: choose
      with: {labels: input.labels}
      llm: {ref: small, prompt: "Which of {{ labels }}?", choices: {label: "CHOICES"}}
      output: {label: {type: string}, sure: {type: boolean}}
  output: {label: nodes.choose.output.label}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: small}
spec: SPEC
"""
SCRIPTED = "{protocol: scripted, scripted: {replies: REPLIES}}"


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def compiled(checker: Checker, *, choices: str = "labels", spec: str = SCRIPTED, replies: str = "[]") -> Compilation:
    text = GRAPH.replace("CHOICES", choices).replace("SPEC", spec).replace("REPLIES", replies)
    models, found = load_text(text, "g.yaml").parse()
    assert found == []
    [graph] = [model for _, model in models if isinstance(model, TaskGraph)]
    llms = {model.name: model for _, model in models if isinstance(model, LLM)}
    return compile_graph(graph, llms=llms, checker=checker)


async def run(compilation: Compilation, labels: list[str]) -> RunSession:
    assert compilation.compiled is not None, compilation.findings
    async with Bench() as bench:
        return await bench.run(compilation.compiled, {"labels": labels})


async def test_the_request_names_the_choices_so_that_a_server_can_keep_to_them(checker: Checker) -> None:
    with start_model_server() as server:
        spec = f'{{protocol: openai, model: test, endpoint: "{server.endpoint}"}}'
        session = await run(compiled(checker, spec=spec), ["Net sales", "Goodwill"])
    assert session.engine.output["label"] in ("Net sales", "Goodwill")


async def test_an_answer_that_is_none_of_the_choices_is_asked_for_again(checker: Checker) -> None:
    wrong, right = "{label: Sales, sure: true}", "{label: Goodwill, sure: true}"
    replies = f"[{{match: was not accepted, reply: {right}}}, {{reply: {wrong}}}]"
    session = await run(compiled(checker, replies=replies), ["Net sales", "Goodwill"])
    assert session.engine.output == {"label": "Goodwill"}


async def test_no_choices_at_all_fail_the_node_and_say_what_to_do(checker: Checker) -> None:
    session = await run(compiled(checker), [])
    [failure] = session.projection()["failures"]
    assert failure["class"] == "ExpressionFailure"
    assert "choices.label: the list is empty; skip the node by when" in failure["message"]


@pytest.mark.parametrize(
    ("choices", "path", "message"),
    [
        ("labels[0]", "nodes.choose.llm.choices.label", "list"),
        ("lables", "nodes.choose.llm.choices.label", "labels"),
    ],
)
def test_choices_that_are_no_list_of_texts_are_refused(checker: Checker, choices: str, path: str, message: str) -> None:
    [finding] = compiled(checker, choices=choices).findings
    assert (finding.path, finding.severity) == (path, "error")
    assert message in finding.message


@pytest.mark.parametrize(("name", "message"), [("lable", 'did you mean "label"?'), ("sure", "declare type: string")])
def test_choices_are_for_text_fields_of_the_output(checker: Checker, name: str, message: str) -> None:
    text = GRAPH.replace('label: "CHOICES"', f"{name}: labels")
    [finding] = _findings(checker, text.replace("SPEC", SCRIPTED).replace("REPLIES", "[]"))
    assert (finding.code, finding.path) == ("OUTPUT-TYPE", f"nodes.choose.llm.choices.{name}")
    assert message in finding.message


def _findings(checker: Checker, text: str) -> list[Any]:
    models, _ = load_text(text, "g.yaml").parse()
    [graph] = [model for _, model in models if isinstance(model, TaskGraph)]
    llms = {model.name: model for _, model in models if isinstance(model, LLM)}
    return list(compile_graph(graph, llms=llms, checker=checker).findings)

"""Mistakes of every kind, made at every place of right graphs: each is refused, or only data shows it, as is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mutations import KINDS, Graph

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.v1alpha1 import LLM, TaskGraph
from decurion_crds.v1alpha1.parse import parse_resource

EXAMPLES = Path(__file__).parents[2] / "examples"
GRAPHS = ("filings", "router", "tickets", "local-pool", "refine")
PLACES = 12
"""Most places of one kind in one graph, spread evenly."""

ALLOWED: dict[str, dict[str, str]] = {
    "field-of-an-output-that-may-be-absent": {
        "filings filing.proof": "`not ok` has a meaning for None",
        "tickets count": "the graph's own output gives it on, and may have no such field then",
        "local-pool write": "the graph's own output gives it on, and may have no such field then",
    },
}
"""Kind → place → why it is no mistake there: only data can show whether it was meant."""


def _documents(name: str) -> list[Any]:
    files = sorted((EXAMPLES / name).glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text()) if document]


def _graph(name: str) -> Graph:
    return next(document for document in _documents(name) if document["kind"] == "TaskGraph")


@pytest.fixture(scope="module")
def llms() -> dict[str, LLM]:
    found = {}
    for name in GRAPHS:
        for document in _documents(name):
            model, _ = parse_resource(document)
            if isinstance(model, LLM):
                found[model.name] = model
    return found


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def _codes(graph: Graph, llms: dict[str, LLM], checker: Checker) -> set[str]:
    model, findings = parse_resource(graph)
    if isinstance(model, TaskGraph):
        findings = compile_graph(model, llms=llms, checker=checker).findings
    return {finding.code for finding in findings if finding.severity == "error"}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graph_itself_is_right(name: str, llms: dict[str, LLM], checker: Checker) -> None:
    assert _codes(_graph(name), llms, checker) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_is_refused_wherever_it_is_made(kind: str, llms: dict[str, LLM], checker: Checker) -> None:
    made, passed = 0, []
    for name in GRAPHS:
        places = list(KINDS[kind](_graph(name)))
        for place, graph in places[:: max(1, -(-len(places) // PLACES))]:
            made += 1
            if not _codes(graph, llms, checker):
                passed.append(f"{name} {place}")
    assert made >= 1, "no graph has a place for it"
    told = ALLOWED.get(kind, {})
    assert [place for place in passed if place not in told] == [], f"of {made}"
    assert [place for place in told if place not in passed] == [], "these are refused now"


def test_there_are_thirty_kinds() -> None:
    assert len(KINDS) >= 30

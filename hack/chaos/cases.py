"""Seeded runs: a graph, an input, how the run is to end, and where blows fall."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from decurion_crds.compile import Checker, compile_graph
from decurion_crds.compiled import CompiledGraph
from decurion_crds.v1alpha1 import LLM, TaskGraph
from decurion_crds.v1alpha1.parse import parse_resource

API = "decurion.dev/v1alpha1"
TEXT = {"text": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class Blow:
    """`kind` is one of a part's strikes, or `cancel`; it falls when the run has `records` committed records."""

    kind: str
    records: int


@dataclass(frozen=True, slots=True)
class Case:
    """One run. `phase` is how it ends: declared before it starts."""

    name: str
    graph: str
    input: dict[str, Any]
    phase: str
    blows: tuple[Blow, ...]


def resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _ask(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "with": {"text": text}, "llm": {"ref": "echo", "prompt": "Echo {{ text }}"}}


WORDS: dict[str, Any] = {
    "input": {"words": {"type": "array", "items": {"type": "string"}}},
    "nodes": [
        {"name": "each", "map": {"items": "input.words", "as": "word", "template": "one"}},
        {
            "name": "total",
            "with": {"texts": "[one.text for one in nodes.each.output.items]"},
            "code": '{"text": " ".join(texts)}',
            "output": TEXT,
        },
        _ask("sum", "nodes.total.output.text"),
    ],
    "output": {"text": "nodes.sum.output.text"},
    "templates": [
        {
            "name": "one",
            "input": {"word": {"type": "string"}},
            "nodes": [
                _ask("ask", "input.word"),
                {
                    "name": "turn",
                    "with": {"text": "nodes.ask.output.text"},
                    "code": '{"text": text + "?"}',
                    "output": TEXT,
                },
                _ask("again", "nodes.turn.output.text"),
            ],
            "output": {"text": "nodes.again.output.text"},
        }
    ],
}
"""Branches of two model calls with code between them, and a model call over all of them."""

ROWS: dict[str, Any] = {
    "input": {"rows": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}},
    "nodes": [{"name": "rows", "map": {"items": "input.rows", "as": "row", "template": "line"}}],
    "output": {"rows": "nodes.rows.output.items"},
    "templates": [
        {
            "name": "line",
            "input": {"row": {"type": "array", "items": {"type": "string"}}},
            "nodes": [
                {"name": "cells", "map": {"items": "input.row", "as": "word", "template": "cell"}},
                {
                    "name": "join",
                    "with": {"texts": "[c.text for c in nodes.cells.output.items]"},
                    "code": '{"text": "-".join(texts)}',
                    "output": TEXT,
                },
            ],
            "output": {"text": "nodes.join.output.text"},
        },
        {
            "name": "cell",
            "input": {"word": {"type": "string"}},
            "nodes": [_ask("ask", "input.word")],
            "output": {"text": "nodes.ask.output.text"},
        },
    ],
}
"""A map in a map."""

CHAIN: dict[str, Any] = {
    "input": {"word": {"type": "string"}},
    "nodes": [_ask("step0", "input.word"), *(_ask(f"step{i}", f"nodes.step{i - 1}.output.text") for i in range(1, 20))],
    "output": {"text": "nodes.step19.output.text"},
}
"""Twenty model calls, one after the other."""

BROKEN: dict[str, Any] = {
    **WORDS,
    "nodes": [
        WORDS["nodes"][0],
        {
            "name": "total",
            "with": {"texts": "[one.text for one in nodes.each.output.items]"},
            "code": '{"text": texts[len(texts)]}',
            "output": TEXT,
        },
        WORDS["nodes"][2],
    ],
}
"""As WORDS, but the node behind the map fails."""

GRAPHS: dict[str, tuple[dict[str, Any], str]] = {
    "words": (WORDS, "Succeeded"),
    "rows": (ROWS, "Succeeded"),
    "chain": (CHAIN, "Succeeded"),
    "broken": (BROKEN, "Failed"),
}


def compiled(endpoint: str) -> dict[str, CompiledGraph]:
    """All graphs with the model at `endpoint`, as the operator compiles them. Raises `ValueError` with the findings."""
    llm, faults = parse_resource(model(endpoint))
    if not isinstance(llm, LLM):
        raise ValueError([f.text() for f in faults])
    made = {}
    with Checker() as checker:
        for name, (spec, _) in GRAPHS.items():
            graph, faults = parse_resource(resource("TaskGraph", name, spec))
            if not isinstance(graph, TaskGraph):
                raise ValueError([f.text() for f in faults])
            found = compile_graph(graph, llms={"echo": llm}, checker=checker)
            if found.compiled is None:
                raise ValueError([f.text() for f in found.findings])
            made[name] = found.compiled
    return made


def model(endpoint: str) -> dict[str, Any]:
    return resource("LLM", "echo", {"protocol": "openai", "model": "test", "endpoint": endpoint})


def draw(number: int, chance: random.Random, kinds: tuple[str, ...], *, width: int) -> Case:
    """The `number`-th run: all of it follows from the seed."""
    name = chance.choices(list(GRAPHS), weights=(5, 3, 2, 1))[0]
    words = [f"w{number}-{i}" for i in range(chance.randint(width // 4, width))]
    rows = [words[i : i + 7] for i in range(0, len(words), 7)]
    given = {"rows": {"rows": rows}, "chain": {"word": words[0]}}.get(name, {"words": words})
    records = {"rows": 2 * len(words), "chain": 20}.get(name, 4 * len(words))
    last = records * 2 // 3
    blows = [Blow(chance.choice(kinds), chance.randint(2, last)) for _ in range(chance.randint(1, 3))]
    phase = GRAPHS[name][1]
    if chance.random() < 0.1:
        blows.append(Blow("cancel", chance.randint(2, last)))
        phase = "Cancelled"
    return Case(f"{name}-{number}", name, given, phase, tuple(sorted(blows, key=lambda b: b.records)))

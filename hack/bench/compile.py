"""How long a graph of 300 nodes in 20 templates takes to compile, beside the type checker alone on the same texts.

The checker is warm, as in an operator; `cold` opens one for the first compilation. The limit beside it is the checker
given everything in one go: no compiler that checks these types with it can take less. `uses` has the same nodes in 20
other graphs, each used under four bindings.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from decurion_crds.compile import Checker, Compilation, Module, compile_graph
from decurion_crds.expressions.check import Answer, Task
from decurion_crds.v1alpha1 import LLM, TaskGraph

META = {"apiVersion": "decurion.dev/v1alpha1"}
SCHEMAS: dict[str, Any] = {
    "Fact": {
        "type": "object",
        "required": ["field", "value"],
        "properties": {"field": {"type": "string"}, "value": {"type": "number"}, "note": {"type": "string"}},
    },
    "Report": {
        "type": "object",
        "required": ["id", "facts"],
        "properties": {"id": {"type": "string"}, "facts": {"type": "array", "items": "Fact"}},
    },
}
INPUT = {"report": "Report", "least": {"type": "number"}}
TEMPLATES, NODES = 20, 15
MODELS = 4


class Watched(Checker):
    """Counts what it is asked, and how long it takes to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.asked: list[tuple[list[Task], str]] = []

    def check(self, tasks: Sequence[Task], definitions: str) -> list[Answer]:
        began = time.perf_counter()
        try:
            return super().check(tasks, definitions)
        finally:
            self.seconds += time.perf_counter() - began
            self.asked.append((list(tasks), definitions))


def node(number: int) -> dict[str, Any]:
    """Of three: a transform over what came before, code, and a call of a model."""
    before = f"nodes.n{number - 1}.output.total" if number else "input.least"
    named: dict[str, Any] = {"name": f"n{number}"}
    match number % 3:
        case 0:
            given = {"facts": f"[f for f in input.report.facts if f.value > {before}]", "least": before}
            block: dict[str, Any] = {"transform": {"total": "sum(f.value for f in facts) + least"}}
        case 1:
            given = {"facts": "[f for f in input.report.facts if f.note is not None]", "least": before}
            source = 'rows = [f["value"] for f in facts]\n{"total": sum(rows) + least}'
            block = {"code": source, "output": {"total": {"type": "number"}}}
        case _:
            given = {"names": "[f.field for f in input.report.facts]", "least": before}
            prompt = "Of {{ len(names) }} facts above {{ least }}:\n{{ ', '.join(sorted(names)) }}"
            block = {"llm": {"ref": "fast", "prompt": prompt}, "output": {"total": {"type": "number"}}}
    return {**named, "with": given, **block}


def body() -> dict[str, Any]:
    output = {"total": f"nodes.n{NODES - 1}.output.total", "id": "input.report.id"}
    return {"input": INPUT, "nodes": [node(i) for i in range(NODES)], "output": output}


def graph(name: str, spec: dict[str, Any]) -> TaskGraph:
    return TaskGraph.model_validate({**META, "kind": "TaskGraph", "metadata": {"name": name}, "spec": spec})


def uses(number: int, **block: Any) -> dict[str, Any]:
    mapped = {"items": "input.reports", "as": "report", **block}
    return {"name": f"each{number}", "with": {"least": f"{number}.5"}, "map": mapped}


def whole(nodes: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    output = {n["name"]: f"[one.total for one in nodes.{n['name']}.output.items]" for n in nodes[:30]}
    given = {"reports": {"type": "array", "items": "Report"}}
    return {"schemas": SCHEMAS, "input": given, "nodes": nodes, "output": output, **more}


def in_templates() -> tuple[TaskGraph, dict[str, Module]]:
    nodes = [uses(i, template=f"t{i}") for i in range(TEMPLATES)]
    return graph("wide", whole(nodes, templates=[{"name": f"t{i}", **body()} for i in range(TEMPLATES)])), {}


def in_graphs() -> tuple[TaskGraph, dict[str, Module]]:
    nodes = [uses(i * MODELS + k, ref=f"g{i}", bind={"fast": f"m{k}"}) for i in range(TEMPLATES) for k in range(MODELS)]
    others = {f"g{i}": {"schemas": SCHEMAS, "needs": {"fast": "LLM"}, **body()} for i in range(TEMPLATES)}
    return graph("wide", whole(nodes)), {name: Module(graph(name, spec)) for name, spec in others.items()}


def llms() -> dict[str, LLM]:
    names = ["fast", *(f"m{k}" for k in range(MODELS))]
    spec = {"protocol": "scripted", "scripted": {"default": {"total": 1}}}
    return {n: LLM.model_validate({**META, "kind": "LLM", "metadata": {"name": n}, "spec": spec}) for n in names}


def measured(checker: Watched, subject: tuple[TaskGraph, dict[str, Module]]) -> tuple[float, float, float, Compilation]:
    """Seconds of one compilation, those in the checker, CPU seconds of the compiler's own process, and what came of it.

    The checker is a process of its own.
    """
    checker.seconds, checker.asked = 0.0, []
    began, worked = time.perf_counter(), time.process_time()
    done = compile_graph(subject[0], llms=llms(), graphs=subject[1], checker=checker)
    return time.perf_counter() - began, checker.seconds, time.process_time() - worked, done


def alone(checker: Watched) -> float:
    """Seconds of the checker for all that was asked, in one go, with the declarations of the last round."""
    tasks = [task for asked, _ in checker.asked for task in asked]
    began = time.perf_counter()
    Checker.check(checker, tasks, checker.asked[-1][1])
    return time.perf_counter() - began


def compile(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="the best of so many")
    rounds = parser.parse_args(arguments).rounds
    columns = ("graph", "scopes", "checks", "cold s", "warm s", "in the checker", "own CPU s", "checker alone")
    print(f"| {' | '.join(columns)} | × alone | bundle KB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, subject in (("templates", in_templates()), ("uses", in_graphs())):
        with Watched() as checker:
            cold, _, _, done = measured(checker, subject)
            found = done.result()
            warm = [measured(checker, subject)[:3] for _ in range(rounds)]
            best, inside, _ = min(warm)
            own = min(cpu for _, _, cpu in warm)
            limit = min(alone(checker) for _ in range(rounds))
            checks = sum(len(tasks) for tasks, _ in checker.asked)
        size = len(found.model_dump_json()) // 1000
        figures = f"{cold:.2f} | {best:.2f} | {inside:.2f} | {own:.2f} | {limit:.2f} | {best / limit:.1f}"
        print(f"| {name} | {1 + len(found.templates)} | {checks} | {figures} | {size:,} |")
    return 0

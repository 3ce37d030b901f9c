"""50 steps, each attempt of which fails with 1 %: how many runs end correct, with the default retries and without.

Every run is a real one: driver, runner, ledger (in memory), the graph of `STEPS` llm nodes that hand a number on. Its
failures are drawn beforehand from the seed, attempt by attempt, half of them of transport and half an answer that
breaks its schema, and stand in the scripted models of the run. Correct means: the final state hash of a run without a
failure.
Time is virtual, so that the pauses between tries cost none.

The limit beside it is arithmetic: without retries (1 − rate) ^ steps of the runs end correct.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from decurion_crds.compiled import CompiledGraph
from decurion_ledger import open_store
from decurion_worker.driver import Driver
from decurion_worker.executors import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from decurion_worker.sources import Sources
from graphs import compile_manifest
from virtual_time import in_virtual_time

STEPS = 50
TOGETHER = 50
"""Runs at a time; each batch has a driver and a store of its own."""
TRANSPORT = ("ModelUnavailable", "ModelTimeout", "RateLimited")
_stores = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """Of `runs`, how many ended correct, and how many failed attempts they had."""

    runs: int
    correct: int
    failures: int
    wrong: tuple[str, ...] = ()
    """Why each of the others did not; at most ten."""

    @property
    def share(self) -> float:
        return self.correct / self.runs


def reliability(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/bench reliability", description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=0.01, help="share of attempts that fail")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON, a line each")
    given = parser.parse_args(arguments)
    if given.json:
        for retries in (True, False):
            found = simulate(runs=given.runs, rate=given.rate, seed=given.seed, retries=retries)
            print(json.dumps({"retries": retries, **asdict(found)}))
        return 0
    print(f"| {STEPS} steps, {given.rate:.1%} of attempts fail | runs | failed attempts | correct | share | seconds |")
    print("|---|---|---|---|---|---|")
    for retries in (True, False):
        begun = time.perf_counter()
        found = simulate(runs=given.runs, rate=given.rate, seed=given.seed, retries=retries)
        name = "default retries" if retries else "no retries"
        row = [name, f"{found.runs:,}", f"{found.failures:,}", f"{found.correct:,}", f"{found.share:.4%}"]
        print("| " + " | ".join([*row, f"{time.perf_counter() - begun:.0f}"]) + " |", flush=True)
        for why in found.wrong if retries else ():
            print(why, file=sys.stderr)
    print(f"| limit without retries: (1 − {given.rate}) ^ {STEPS} | | | | {(1 - given.rate) ** STEPS:.4%} | |")
    return 0


def simulate(*, runs: int, rate: float, seed: int, retries: bool) -> Outcome:
    """What came of `runs` runs under failures drawn from `seed`."""
    graph = compile_manifest(manifest(retries=retries), *map(_model, range(STEPS)))
    chance = random.Random(seed)
    draws = [[_drawn(chance, rate) for _ in range(STEPS)] for _ in range(runs)]
    expected = in_virtual_time(_batch(graph, [[[]] * STEPS]))[0].facts.state_hash
    correct, wrong = 0, []
    for start in range(0, runs, TOGETHER):
        batch = draws[start : start + TOGETHER]
        for number, session in enumerate(in_virtual_time(_batch(graph, batch)), start):
            if session.facts.state_hash == expected and session.projection()["phase"] == "Succeeded":
                correct += 1
            else:
                wrong.append(f"run {number}: {session.facts.message or session.why or 'another state'}")
    failures = sum(len(step) for draw in draws for step in draw)
    return Outcome(runs, correct, failures, tuple(wrong[:10]))


def _drawn(chance: random.Random, rate: float) -> list[str]:
    """The attempts of one step that fail before one succeeds, each independently of what was before."""
    failed = []
    while chance.random() < rate:
        failed.append(chance.choice(TRANSPORT) if chance.random() < 0.5 else "broken")
    return failed


def manifest(*, retries: bool) -> dict[str, Any]:
    """The chain: each step gets the number of the one before."""
    nodes: list[dict[str, Any]] = []
    for i in range(STEPS):
        node: dict[str, Any] = {
            "name": f"s{i}",
            "with": {"v": f"nodes.s{i - 1}.output.v" if i else "input.v"},
            "llm": {"ref": f"m{i}", "prompt": "step after {{ v }}"},
            "output": {"v": {"type": "integer"}},
        }
        if not retries:
            node["retry"] = {"transient": 0, "repair": 0}
        nodes.append(node)
    number = {"v": {"type": "integer"}}
    chain = {"name": "chain", "input": number, "nodes": nodes, "output": {"v": f"nodes.s{STEPS - 1}.output.v"}}
    whole = {"name": "whole", "with": {"v": "input.v"}, "graph": {"template": "chain"}}
    return {
        "apiVersion": "decurion.dev/v1alpha1",
        "kind": "TaskGraph",
        "metadata": {"name": "chain"},
        "spec": {"input": number, "nodes": [whole], "output": {"v": "nodes.whole.output.v"}, "templates": [chain]},
    }


def _model(step: int) -> dict[str, Any]:
    spec = _script(step, [])
    return {"apiVersion": "decurion.dev/v1alpha1", "kind": "LLM", "metadata": {"name": f"m{step}"}, "spec": spec}


def _script(step: int, failed: list[str]) -> dict[str, Any]:
    """The model of one step. After a broken answer the prompt quotes it: that is what tells the turns apart."""
    replies: list[dict[str, Any]] = []
    turn, match = 0, "/^step/"
    for kind in failed:
        if kind == "broken":
            turn += 1
            replies.append({"match": match, "reply": {"v": f"broken-{turn}-"}, "times": 1})
            match = f"broken-{turn}-"
        else:
            replies.append({"match": match, "error": kind, "times": 1})
    return {"protocol": "scripted", "scripted": {"replies": replies, "default": {"v": step}}}


def _with_failures(graph: CompiledGraph, draw: list[list[str]]) -> CompiledGraph:
    """The graph with the drawn models; the digests of its nodes stay, so that states can be compared."""
    llms = {f"m{i}": _script(i, failed) for i, failed in enumerate(draw)}
    return CompiledGraph(name=graph.name, root=graph.root, templates=graph.templates, llms=llms)


async def _batch(graph: CompiledGraph, draws: list[list[list[str]]]) -> list[RunSession]:
    """The ended runs of one batch, side by side."""
    uri = f"memory://reliability-{next(_stores)}"
    driver = Driver("driver-0", store=open_store(uri), ledger_uri=uri, sources=Sources(open_store, files=False))
    executor = LocalExecutor(RunnerSettings(processes=1))
    await driver.start()
    await executor.start(driver)
    try:
        await executor.scale(1)
        sessions = []
        for i, draw in enumerate(draws):
            request = OpenRequest(
                run=f"run-{i}",
                name="chain",
                graph=_with_failures(graph, draw),
                input={"v": 0},
                seed="1",
                scheduled_at="2026-01-01T00:00:00+00:00",
            )
            sessions.append(await driver.open_run(request))
        for session in sessions:
            await session.ended.wait()
        return sessions
    finally:
        await executor.stop()
        await driver.stop()

"""Rounds of loops in retries and forks: what ended well is not done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from crashes import RUN, new_store, sound
from decurion_worker.earlier import Earlier
from manifests import compiled
from test_earlier import AGAIN, again, files, first, ran, taken

LOOP = """
  input: {uris: {type: array, items: {type: string}}}
  nodes:
    - name: sum
      with: {uris: input.uris, at: "0", k: "0"}
      loop:
        template: round
        next: {at: output.at, k: output.k}
        until: output.at == len(input.uris)
        maxIterations: MOST
        onExhausted: fail
        KEEP
  output: {k: nodes.sum.output.k, rounds: nodes.sum.output.iterations}
  templates:
    - name: round
      input: {uris: {type: array, items: {type: string}}, at: {type: integer}, k: {type: integer}}
"""
LEAF = """
      nodes:
        - name: plan
          with: {at: input.at}
          transform: {at: at + 1}
        - name: read
          with: {k: input.k, at: nodes.plan.output.at}
          load: {text: {from: "input.uris[input.at]"}}
          transform: {k: "k + len(text.split())", at: at}
      output: {at: nodes.read.output.at, k: nodes.read.output.k}
"""
WITH_A_MAP = """
      nodes:
        - name: plan
          with: {at: input.at}
          transform: {at: at + 1}
        - name: rows
          map: {itemsFrom: {jsonl: "input.uris[input.at]", schema: {type: object}}, as: row, template: line}
        - name: read
          with: {k: input.k, rows: nodes.rows.output.items, at: nodes.plan.output.at}
          transform: {k: k + 2 * len(rows), at: at}
      output: {at: nodes.read.output.at, k: nodes.read.output.k}
    - name: line
      input: {row: {type: object}}
      nodes: [{name: one, with: {row: input.row}, transform: {k: len(row)}}]
      output: {k: nodes.one.output.k}
"""
BODIES = pytest.mark.parametrize("body", [LEAF, WITH_A_MAP], ids=["leaf", "with a map"])
BEST = 'score: "0 - output.at"\n        keep: best'


def loop(body: str, *, most: int = 9, keep: str = "keep: last") -> str:
    text = LOOP.replace("MOST", str(most)).replace("KEEP", keep)
    return text.removeprefix("\n") + body.removeprefix("\n")


@BODIES
@pytest.mark.parametrize(("keep", "k"), [("keep: last", 12), (BEST, 4)])
async def test_a_retry_goes_on_with_the_round_that_failed(tmp_path: Path, body: str, keep: str, k: int) -> None:
    graph, uris = compiled(loop(body, keep=keep)), files(tmp_path, 2, 1, -1, 3)
    store, whole = new_store(), new_store()
    assert (await first(store, graph, {"uris": uris})).projection()["phase"] == "Failed"
    files(tmp_path, 2, 1, 0, 3)
    session = await again(store, Earlier(RUN, "retry"))
    assert session.engine.output == {"k": k, "rounds": 4}
    log = await sound(store, AGAIN)
    assert {"/sum@001!output", "/sum@002/read", "/sum@003!open", "/sum@003/plan"} <= taken(log).keys()
    assert "/sum@003!output" in ran(log)
    assert not [path for path in ran(log) if path.startswith(("/sum@001", "/sum@002"))]
    assert session.facts.state_hash == (await first(whole, graph, {"uris": uris})).facts.state_hash


FORKS = {"/sum@002": {"/sum@002/plan", "/sum@002/read"}, "/sum@002/read": {"/sum@002/read"}}


@BODIES
@pytest.mark.parametrize("path", FORKS)
async def test_a_fork_runs_a_round_again_and_those_after_it(tmp_path: Path, body: str, path: str) -> None:
    graph, uris = compiled(loop(body)), files(tmp_path, 2, 1, 3)
    store = new_store()
    whole = await first(store, graph, {"uris": uris})
    session = await again(store, Earlier(RUN, "fork", path))
    assert session.facts.state_hash == whole.facts.state_hash
    log = await sound(store, AGAIN)
    assert {"/sum@001/read", "/sum@001!output", "/sum@002!open"} <= taken(log).keys()
    assert FORKS[path] | {"/sum@002!output", "/sum@003/plan", "/sum@003!output", "/sum!join"} <= ran(log)
    assert ("/sum@002/plan" in taken(log)) is (path == "/sum@002/read")


@BODIES
async def test_a_loop_that_used_up_its_rounds_begins_anew(tmp_path: Path, body: str) -> None:
    store = new_store()
    uris = files(tmp_path, 1, 1, 1)
    session = await first(store, compiled(loop(body, most=2)), {"uris": uris})
    assert session.facts.reason == "LoopExhausted"
    await again(store, Earlier(RUN, "retry"))
    log = await sound(store, AGAIN)
    assert taken(log).keys() == {"/sum!open"}
    assert {"/sum@001!output", "/sum@002!output"} <= ran(log)

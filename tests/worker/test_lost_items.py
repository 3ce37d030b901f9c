"""Each kind of work item, lost with the runner that had it: once, and as often as it is offered."""

from __future__ import annotations

from collections import Counter

import pytest

from crashes import Fragile, Process, new_store, sound, until
from decurion_ledger import LedgerPath, Record
from decurion_ledger.errors import StoreError
from decurion_worker.errors import RunnerLost
from decurion_worker.link import ItemKind, WorkItem
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import LONE_STRIKES
from manifests import compiled

SPEC = """
  input: {rows: {type: array, items: {type: integer}}}
  state: [{name: seen, schema: {type: array, items: {type: integer}}, merge: append}]
  nodes:
    - name: each
      map: {items: input.rows, as: num, template: twice}
      writes: {seen: output.items}
    - name: rounds
      with: {num: "0"}
      loop: {template: more, next: {num: output.num}, maxIterations: 3, onExhausted: succeed}
      writes: {seen: "[output.num]"}
    - name: wide
      with: {num: "0"}
      loop: {template: spread, next: {num: output.num}, maxIterations: 3, onExhausted: succeed}
    - name: half
      with: {num: "0"}
      graph: {template: broken}
      onFailure: otherwise
      otherwise: {num: "5"}
    - name: all
      after: [each, rounds]
      with: {seen: state.seen, wide: nodes.wide.output.num, half: nodes.half.output.num}
      transform: {num: "sum(seen) + wide + half"}
  output: {num: nodes.all.output.num}
  templates:
    - name: twice
      input: {num: {type: integer}}
      nodes: [{name: add, with: {num: input.num}, code: "num + num", output: {type: integer}}]
      output: {$value: nodes.add.output}
    - name: more
      input: {num: {type: integer}}
      nodes: [{name: add, with: {num: input.num}, code: "num + 1", output: {type: integer}}]
      output: {num: nodes.add.output}
    - name: spread
      input: {num: {type: integer}}
      nodes:
        - {name: each, map: {items: "[input.num, input.num]", as: num, template: more}}
        - {name: largest, with: {found: nodes.each.output.items}, transform: {num: "max([one.num for one in found])"}}
      output: {num: nodes.largest.output.num}
    - name: broken
      input: {num: {type: integer}}
      nodes: [{name: divide, with: {num: input.num}, code: "1 // num", output: {type: integer}}]
      output: {num: nodes.divide.output}
"""
INPUT = {"rows": [1, 2, 3]}
KINDS: tuple[ItemKind, ...] = ("node", "branch", "loop", "round", "writes", "otherwise", "output")


def _executor(kind: ItemKind, times: int) -> tuple[Fragile, Counter[str]]:
    """Runners that die with the first item of a kind, so many times. And how often each kind was handed out."""
    left, seen = [times], Counter[str]()

    def kills(item: WorkItem) -> bool:
        seen[item.kind] += 1
        if item.kind != kind or left[0] == 0:
            return False
        left[0] -= 1
        return True

    return Fragile(RunnerSettings(branches=1, processes=1), kills=kills), seen


@pytest.mark.parametrize("kind", KINDS)
async def test_an_item_that_is_lost_once_is_done_by_another_runner(kind: ItemKind) -> None:
    store, (executor, seen) = new_store(), _executor(kind, 1)
    async with Process(store, executor=executor) as process:
        session = await process.open(compiled(SPEC), INPUT)
        await until(session.ended.is_set, what="the end", seconds=60)
    assert seen[kind] > 1
    assert executor.deaths == 1
    assert session.engine.output == {"num": 23}
    lost = [r for r in await sound(store) if r.type == "lease_lost"]
    assert lost
    assert all(str(LedgerPath.parse(r.path)) == r.path for r in lost)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_item_that_takes_every_runner_with_it_fails(kind: ItemKind) -> None:
    store, (executor, _) = new_store(), _executor(kind, 10_000)
    async with Process(store, executor=executor) as process:
        session = await process.open(compiled(SPEC), INPUT)
        await until(session.ended.is_set, what="the end", seconds=60)
    log, projection = await sound(store), session.projection()
    assert projection["phase"] == "Failed"
    codes = [projection["reason"], *(one["class"] for one in projection["failures"])]
    assert RunnerLost.code in codes
    lost = Counter(r.path for r in log if r.type == "lease_lost")
    assert max(lost.values()) >= LONE_STRIKES
    async with Process(store) as process:
        again = await process.run(None, epoch=1)
    assert again.facts.state_hash == session.facts.state_hash


async def test_a_fault_while_an_item_is_given_up_lets_go_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> Record:
        raise StoreError("PUT blobs", "the store is away")

    monkeypatch.setattr("decurion_worker.session.given_up", broken)
    executor, _ = _executor("node", 10_000)
    async with Process(new_store(), executor=executor) as process:
        session = await process.open(compiled(SPEC), INPUT)
        await until(session.ended.is_set, what="the end", seconds=60)
    assert "the store is away" in session.why

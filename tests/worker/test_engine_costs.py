"""What the engine does for a run grows with the run, and not with its square: counted in calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from crashes import Process, new_store, until
from decurion_worker import engine as engine_package
from decurion_worker.approving import Answer
from decurion_worker.executors import LocalExecutor
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from manifests import compiled
from soak.plain_python import PlainPython

HERE = engine_package.__path__[0]
EACH = """  input: {rows: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      map: {items: input.rows, as: row, template: one, failFast: true}
  output: {v: nodes.each.output.total}
  templates:
    - name: one
      input: {row: {type: integer}}
      nodes:
"""
LEAF = """    - name: leaf
      input: {row: {type: integer}}
      nodes:
        - name: read
          with: {row: input.row}
          code: "{'v': 1 // row}"
          output: {v: {type: integer}}
      output: {v: nodes.read.output.v}
"""
ASKS = """        - name: review
          approval: {message: "Go on?"}
      output: {v: nodes.review.output.approved}
"""
INNER = """        - name: inner
          map: {items: "[input.row, 1, 2, 3]", as: row, template: leaf, concurrency: 1}
      output: {v: nodes.inner.output.total}
"""
RACES = """        - name: quick
          with: {row: input.row}
          graph: {template: leaf}
        - name: slow
          with: {row: input.row}
          graph: {template: waits}
        - name: first
          join: {mode: any}
          after: [quick, slow]
          with: {v: "nodes.quick.output.v if nodes.quick.output else 0"}
          transform: {v: v}
      output: {v: nodes.first.output.v}
"""
WAITS = """    - name: waits
      input: {row: {type: integer}}
      nodes:
        - name: rows
          map: {items: "[input.row]", as: row, template: asks}
      output: {v: nodes.rows.output.total}
    - name: asks
      input: {row: {type: integer}}
      nodes:
        - name: review
          approval: {message: "Go on?"}
      output: {v: nodes.review.output.approved}
"""


@contextmanager
def counted() -> Iterator[list[int]]:
    """Calls of functions of the engine in this block."""
    calls = [0]

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HERE):
            calls[0] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def cost(spec: str, rows: list[int]) -> int:
    """How many calls a run takes; whoever is asked rejects what is asked first."""
    evaluator = PlainPython()
    settings = RunnerSettings(branches=1024, processes=1)
    async with Process(new_store(), executor=LocalExecutor(settings, evaluator=lambda _: evaluator)) as process:
        with counted() as calls:
            session = await process.open(compiled(EACH + spec), {"rows": rows})
            await until(lambda: session.ended.is_set() or session.engine.awaiting, what="the end, or a question")
            if not session.ended.is_set():
                await _reject(session)
            await until(session.ended.is_set, what="the end of the run")
    return calls[0]


async def _reject(session: RunSession) -> None:
    asked = next(session.engine.approvals.pending())
    await session.answer(Answer("no", asked.request, asked.digest, "Reject", "alice"))


@pytest.mark.parametrize(
    ("spec", "row"),
    [(ASKS, 1), (INNER + LEAF, 1), (INNER + LEAF, 0), (RACES + LEAF + WAITS, 1)],
    ids=["rejected", "narrow maps", "fails", "races"],
)
async def test_four_times_the_items_take_four_times_the_work(spec: str, row: int) -> None:
    few, many = await cost(spec, [row] * 25), await cost(spec, [row] * 100)
    assert many < 6 * few, (few, many)

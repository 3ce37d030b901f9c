"""LangGraph doing what `chains` does: one `Send` a branch, in it a graph of five nodes that add one.

Runs in an environment of its own (requirements/bench.lock). Prints one line of JSON: seconds, CPU seconds, bytes of
the checkpoint file. `durable` keeps a checkpoint of every step in SQLite before the next one, as a run that can be
resumed must; `memory` keeps none.
"""

from __future__ import annotations

import asyncio
import json
import operator
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

STEPS = 5


class Branch(TypedDict):
    v: int
    results: Annotated[list[int], operator.add]


class Whole(TypedDict):
    count: int
    results: Annotated[list[int], operator.add]


async def step(state: Branch) -> dict[str, Any]:
    return {"v": state["v"] + 1}


async def end(state: Branch) -> dict[str, Any]:
    return {"v": state["v"] + 1, "results": [state["v"] + 1]}


def fan_out(state: Whole) -> list[Send]:
    return [Send("branch", {"v": i, "results": []}) for i in range(state["count"])]


def build(checkpointer: Any) -> Any:
    branch = StateGraph(Branch)
    names = [f"s{i}" for i in range(STEPS)]
    for name in names:
        branch.add_node(name, end if name == names[-1] else step)
    for before, after in zip([START, *names], [*names, END], strict=True):
        branch.add_edge(before, after)
    whole = StateGraph(Whole)
    whole.add_node("branch", branch.compile())
    whole.add_conditional_edges(START, fan_out, ["branch"])
    whole.add_edge("branch", END)
    return whole.compile(checkpointer=checkpointer)


async def run(count: int, checkpointer: Any) -> float:
    graph = build(checkpointer)
    config: dict[str, Any] = {"configurable": {"thread_id": "1"}, "recursion_limit": 1000}
    more = {"durability": "sync"} if checkpointer is not None else {}
    begin = time.perf_counter()
    found = await graph.ainvoke({"count": count, "results": []}, config, **more)
    seconds = time.perf_counter() - begin
    if sum(found["results"]) != sum(range(count)) + STEPS * count:
        raise SystemExit("the result is wrong")
    return seconds


def _size(folder: Path) -> int:
    return sum(part.stat().st_size for part in folder.iterdir())


async def main(kind: str, count: int) -> None:
    size = 0
    if kind == "durable":
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "checkpoints.sqlite"
            async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
                seconds = await run(count, saver)
            size = _size(Path(folder))
    else:
        seconds = await run(count, None)
    print(json.dumps({"seconds": seconds, "cpu": time.process_time(), "bytes": size}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

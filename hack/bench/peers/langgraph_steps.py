"""LangGraph going round 400 times with 1 KB more of state each time, a checkpoint kept before the next step.

Runs in an environment of its own (requirements/bench.lock). `sqlite FOLDER` or `postgres DSN`, then steps and bytes.
Prints one line of JSON: seconds, and the bytes that the checkpoints take.
"""

from __future__ import annotations

import asyncio
import json
import operator
import random
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from psycopg import AsyncConnection

TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


class State(TypedDict):
    done: int
    rows: Annotated[list[str], operator.add]


def build(steps: int, size: int, checkpointer: Any) -> Any:
    draw = random.Random(1)

    async def step(state: State) -> dict[str, Any]:
        return {"done": state["done"] + 1, "rows": [draw.randbytes(size // 2).hex()]}

    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["done"] == steps else "step")
    return graph.compile(checkpointer=checkpointer)


async def run(steps: int, size: int, checkpointer: Any) -> float:
    config: dict[str, Any] = {"configurable": {"thread_id": "1"}, "recursion_limit": steps + 10}
    graph = build(steps, size, checkpointer)
    begin = time.perf_counter()
    found = await graph.ainvoke({"done": 0, "rows": []}, config, durability="sync")
    seconds = time.perf_counter() - begin
    if len(found["rows"]) != steps:
        raise SystemExit("the result is wrong")
    return seconds


def _size(folder: Path) -> int:
    return sum(part.stat().st_size for part in folder.iterdir())


async def main(kind: str, place: str, steps: int, size: int) -> None:
    if kind == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(str(Path(place) / "checkpoints.sqlite")) as saver:
            seconds = await run(steps, size, saver)
            await saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        used = _size(Path(place))
    else:
        async with AsyncPostgresSaver.from_conn_string(place) as saver:
            await saver.setup()
            seconds = await run(steps, size, saver)
        async with await AsyncConnection.connect(place, autocommit=True) as connection:
            used = 0
            for table in TABLES:
                row = await (await connection.execute(f"select pg_total_relation_size('{table}')")).fetchone()
                used += row[0] if row else 0
    print(json.dumps({"seconds": seconds, "bytes": used}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))

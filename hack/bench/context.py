"""500 documents read by a map, and one node that writes about all of them: the largest context of any model call.

The documents are those of `examples/filings`, each under names of its own until there are enough. A model server that
speaks OpenAI's protocol answers with a fact of each document's schema; what a call had in its context is what the
ledger says that the server counted (characters / 4). The limit beside it: all documents in one context.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from decurion_ledger import open_store, read_log
from decurion_worker.driver import Driver
from decurion_worker.executors import LocalExecutor
from decurion_worker.opening import OpenRequest
from decurion_worker.runner import RunnerSettings
from decurion_worker.sources import Sources
from graphs import compile_manifest, model
from model_server import start_model_server

DOCUMENTS = Path(__file__).parent.parent.parent / "examples" / "filings" / "data" / "documents.jsonl"
CHARS_PER_TOKEN = 4
BOUND = 50
"""The largest context is below the documents' text divided by this."""

TEXT = {"type": "string"}
FACT = {
    "type": "object",
    "properties": {"field": {"enum": ["revenue", "profit", "assets"]}, "value": {"type": "integer"}},
    "required": ["field", "value"],
}
GRAPH: dict[str, Any] = {
    "apiVersion": "decurion.dev/v1alpha1",
    "kind": "TaskGraph",
    "metadata": {"name": "reading"},
    "spec": {
        "schemas": {"Fact": FACT},
        "input": {"documents": {"type": "array", "items": {"type": "object", "properties": {"text": TEXT}}}},
        "nodes": [
            {
                "name": "read",
                "map": {"items": "input.documents", "as": "document", "template": "one", "concurrency": 64},
            },
            {
                "name": "write",
                "with": {"facts": "nodes.read.output.items"},
                "llm": {"ref": "slow", "prompt": "Write a summary of these facts: {{ facts }}"},
            },
        ],
        "output": {"summary": "nodes.write.output.text"},
        "templates": [
            {
                "name": "one",
                "input": {"document": {"type": "object", "properties": {"text": TEXT}}},
                "nodes": [
                    {
                        "name": "extract",
                        "with": {"text": "input.document.text or ''"},
                        "llm": {"ref": "slow", "prompt": "Name the most important figure of:\n{{ text }}"},
                        "output": "Fact",
                    }
                ],
                "output": {"$value": "nodes.extract.output"},
            }
        ],
    },
}


def context(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hack/bench context", description=__doc__)
    parser.add_argument("--documents", type=int, default=500)
    given = parser.parse_args(arguments)
    texts = [json.loads(line)["text"] for line in DOCUMENTS.read_text().splitlines()]
    documents = [{"text": f"Document {i}\n{texts[i % len(texts)]}"} for i in range(given.documents)]
    with start_model_server() as server:
        found = asyncio.run(_measured(server.endpoint, documents))
    whole = sum(len(document["text"]) for document in documents)
    print(f"{given.documents} documents, {whole:,} characters, {found['calls']} model calls, {found['seconds']:.1f} s")
    for name in ("read", "write"):
        print(
            f"  largest context of `{name}`: {found[name]:,} characters, 1/{whole / found[name]:.0f} of the documents"
        )
    largest = max(found["read"], found["write"])
    if largest * BOUND >= whole:
        print(f"a context of {largest:,} characters is more than 1/{BOUND} of the documents", file=sys.stderr)
        return 1
    return 0


async def _measured(endpoint: str, documents: list[dict[str, str]]) -> dict[str, Any]:
    graph = compile_manifest(GRAPH, model(endpoint))
    store = open_store("memory://context")
    driver = Driver("driver-0", store=store, ledger_uri="memory://context", sources=Sources(open_store, files=False))
    executor = LocalExecutor(RunnerSettings())
    await driver.start()
    await executor.start(driver)
    await executor.scale(1)
    try:
        begun = time.perf_counter()
        request = OpenRequest(run="bench", name="reading", graph=graph, input={"documents": documents})
        session = await driver.open_run(request)
        await session.ended.wait()
        seconds = time.perf_counter() - begun
    finally:
        await executor.stop()
        await driver.stop()
    if session.projection()["phase"] != "Succeeded":
        raise SystemExit(f"the run failed: {session.facts.message}")
    found = {"seconds": seconds, "calls": 0, "read": 0, "write": 0}
    async for _, record in read_log(store, "bench"):
        usage = record.envelope.get("usage")
        if usage:
            name = "write" if record.path == "/write" else "read"
            found["calls"] += usage["calls"]
            found[name] = max(found[name], CHARS_PER_TOKEN * usage["inputTokens"])
    return found

"""Examples between system and prompt, and parameters of a node over those of its LLM, as an endpoint is sent them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from crashes import Process, new_store
from manifests import compiled

SPEC = """
  input: {text: {type: string}}
  nodes:
    - name: sort
      with: {text: input.text, known: "'a refund'"}
      llm:
        ref: model
        system: Sort it.
        messages:
          - {role: user, content: "I want {{ known }}"}
          - {role: assistant, content: '{"topic": "bill"}'}
        prompt: "{{ text }}"
        parameters: {temperature: 0, stop: [x]}
      output: {topic: {enum: [bill, outage]}}
    - name: work
      agent: {model: model, prompt: Go, parameters: {temperature: 0.25}}
      output: {topic: {enum: [bill, outage]}}
  output: {topic: nodes.sort.output.topic, other: nodes.work.output.topic}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: model}
spec: {protocol: openai, model: m, endpoint: "ENDPOINT", parameters: {temperature: 1, top_p: 0.5}}
"""
TOPIC = '{"topic": "bill"}'


@asynccontextmanager
async def endpoint(bodies: list[dict[str, Any]]) -> AsyncIterator[str]:
    """An endpoint that keeps what it is sent; an agent it lets finish."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(line.partition(":")[2] for line in head.split("\r\n") if line.startswith("content-length:"))
        body = json.loads(await reader.readexactly(int(length)))
        bodies.append(body)
        call = {"id": "c", "type": "function", "function": {"name": "finish", "arguments": TOPIC}}
        said = {"content": None, "tool_calls": [call]} if body.get("tools") else {"content": TOPIC}
        answer = {"choices": [{"message": {"role": "assistant", **said}, "finish_reason": "stop"}], "usage": {}}
        text = json.dumps(answer).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n"
        writer.write(f"{head}connection: close\r\n\r\n".encode() + text)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def test_examples_stand_between_system_and_prompt_and_parameters_of_the_node_win() -> None:
    bodies: list[dict[str, Any]] = []
    async with endpoint(bodies) as url, Process(new_store()) as process:
        session = await process.run(compiled(SPEC.replace("ENDPOINT", url)), {"text": "no power"})
    assert session.engine.output == {"topic": "bill", "other": "bill"}, session.projection()
    asked = next(body for body in bodies if not body.get("tools"))
    worked = next(body for body in bodies if body.get("tools"))
    assert asked["messages"] == [
        {"role": "system", "content": "Sort it."},
        {"role": "user", "content": "I want a refund"},
        {"role": "assistant", "content": TOPIC},
        {"role": "user", "content": "no power"},
    ]
    assert (asked["temperature"], asked["top_p"], asked["stop"]) == (0, 0.5, ["x"])
    assert (worked["temperature"], worked["top_p"]) == (0.25, 0.5)

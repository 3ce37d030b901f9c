"""Context drawers: a model sees the author's texts, what the context of its node names, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from crashes import Process, body, cut, new_store, results, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger import Record, SealKey, Store
from decurion_worker.nodes import agent_prompts
from decurion_worker.session import RunSession
from manifests import compiled


class Listener:
    """An endpoint that keeps what it is asked, and answers with the number of the word `say` names: `saw WORD`."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                messages = [(m["role"], m["content"]) for m in asked["messages"]]
                outer.asked.append(messages)
                text = f"saw {messages[-1][1].split()[-1]}"
                message: dict[str, Any] = {"role": "assistant", "content": text}
                if asked.get("tools"):
                    call = {"name": "finish", "arguments": json.dumps({"text": text})}
                    message = {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": call}]}
                raw = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture(scope="module")
def listening() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.stop()


@pytest.fixture
def model(listening: Listener) -> Listener:
    listening.asked.clear()
    return listening


SPEC = """
  state:
    - {name: notes, schema: {type: array, items: {type: string}}, merge: append, initial: [begun]}
    - {name: secret, schema: {type: string}, initial: hidden}
  GRAPH
  nodes:
    - name: put
      workspace: {write: ["docs/*", other]}
      tool:
        server: workspace
        name: write_files
        arguments:
          files: [{path: docs/a, text: of a}, {path: docs/b, text: of b}, {path: other, text: of other}]
    - name: first
      after: [put]
      llm: {ref: m, system: Be brief., prompt: Say one}
      writes: {notes: "[output.text]"}
      CONTEXT
    - name: work
      after: [first]
      agent: {AGENT, prompt: Say two}
      CONTEXT
    - name: rounds
      after: [work]
      loop: {template: round, maxIterations: 4, onExhausted: succeed, next: {i: iteration}}
  output: {text: nodes.rounds.output.text}
  templates:
    - name: round
      input: {"i?": {type: integer}}
      nodes:
        - name: inner
          with: {i: "input.i if input.i is not None else 0"}
          graph: {template: deep}
      output: {text: nodes.inner.output.text}
    - name: deep
      input: {i: {type: integer}}
      nodes:
        - name: draft
          with: {i: input.i}
          llm: {ref: m, prompt: "Round {{ i }}"}
          ROUND
      output: {text: nodes.draft.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: clerk}
spec: {model: m, instructions: You are a clerk., CLERK}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: m}
spec: {protocol: openai, model: test, endpoint: ENDPOINT, structuredOutput: prompt}
"""
NOTHING = {"GRAPH": "", "CONTEXT": "", "AGENT": "ref: clerk", "CLERK": "limits: {steps: 3}", "ROUND": ""}


def graph(model: Listener, **parts: str) -> CompiledGraph:
    text = SPEC
    for name, part in {**NOTHING, **parts, "ENDPOINT": model.endpoint}.items():
        text = text.replace(name, part)
    return compiled(text)


async def ended(found: CompiledGraph | None, *, store: Store | None = None) -> RunSession:
    async with Process(store or new_store()) as process:
        return await process.run(found, {} if found is not None else None, epoch=0 if found is not None else 1)


def snapshot(log: list[Record], path: str) -> Any:
    record = next(r for r in log if r.path == path and r.core is not None)
    assert record.core is not None
    return record.envelope["values"][record.core["input"]]["inline"]


SYSTEM = f"You are a clerk.\n\n{agent_prompts.RULES}"
BARE = [
    [("system", "Be brief."), ("user", "Say one")],
    [("system", SYSTEM), ("user", "Say two")],
    *([("user", f"Round {i}")] for i in range(4)),
]
FILES = '<file path="docs/a">\nof a\n</file>\n\n<file path="docs/b">\nof b\n</file>'


async def test_nothing_enters_a_prompt_that_is_not_declared(model: Listener) -> None:
    """There are channels, files and earlier rounds, and no context names them."""
    session = await ended(graph(model))
    assert session.engine.closed == "succeeded"
    assert model.asked == BARE


async def test_each_drawer_brings_what_it_names_and_nothing_else_and_so_the_ledger_says(model: Listener) -> None:
    store = new_store()
    context = 'context: {ledger: [notes], artefacts: ["docs/*"]}'
    session = await ended(graph(model, CONTEXT=context, ROUND="context: {history: {last: 2}}"), store=store)
    assert session.engine.output == {"text": "saw 3"}
    noted = '<channel name="notes">\n{}\n</channel>\n\n' + FILES
    assert model.asked[0] == [("system", "Be brief."), ("user", noted.format('["begun"]') + "\n\nSay one")]
    assert model.asked[1] == [("system", SYSTEM), ("user", noted.format('["begun","saw one"]') + "\n\nSay two")]
    said = [turn for i in range(4) for turn in (("user", f"Round {i}"), ("assistant", f"saw {i}"))]
    assert model.asked[2:] == [[*said[max(0, 2 * i - 4) : 2 * i], said[2 * i]] for i in range(4)]
    log = await sound(store)
    seen = snapshot(log, "/work")["$context"]
    assert seen["ledger"] == {"notes": ["begun", "saw one"]}
    assert [one["path"] for one in seen["artefacts"]] == ["docs/a", "docs/b"]
    (last,) = [r for r in log if r.path == "/rounds@004/inner/draft"]
    assert [one["answer"] for one in snapshot(log, last.path)["$context"]["history"]] == ["saw 1", "saw 2"]
    parents = [path for path, _ in last.core["parents"]] if last.core is not None else []
    assert parents == ["/rounds@002/inner/draft", "/rounds@003/inner/draft", "/rounds@004/inner!open"]


async def test_a_run_that_is_cut_at_any_record_asks_with_the_same_context(model: Listener) -> None:
    store = new_store()
    parts = {"GRAPH": 'context: {ledger: [notes], artefacts: ["docs/*"], history: {last: 2}}'}
    whole = await ended(graph(model, **parts), store=store)
    log, asked = await sound(store), list(model.asked)
    # A graph's drawers hold for its templates, as far as these have what is named.
    assert asked[2][0][1] == f"{FILES}\n\nRound 0"
    assert len(asked[5]) == 5
    for records in range(0, len(body(log)) + 1, 2):
        model.asked.clear()
        there = await cut(log, records, blobs=store)
        again = await ended(None, store=there)
        assert again.facts.state_hash == whole.facts.state_hash, records
        assert results(await sound(there)) == results(log), records
        assert model.asked == asked[len(asked) - len(model.asked) :]


async def test_a_drawer_of_a_node_stands_before_that_of_its_agent_and_that_before_its_graphs(model: Listener) -> None:
    await ended(
        graph(
            model,
            GRAPH="context: {ledger: [secret], artefacts: [other]}",
            CLERK="context: {ledger: [notes]}",
            CONTEXT="context: {artefacts: []}",
        )
    )
    assert model.asked[0][1][1] == '<channel name="secret">\nhidden\n</channel>\n\nSay one'
    assert model.asked[1][1][1] == '<channel name="notes">\n["begun","saw one"]\n</channel>\n\nSay two'
    assert model.asked[2] == [("user", '<file path="other">\nof other\n</file>\n\nRound 0')]


async def test_what_is_sensitive_stands_in_the_ledger_encrypted_where_a_drawer_brings_it(model: Listener) -> None:
    spec = f"""
  sensitive: [who]
  input: {{who: {{type: string}}}}
  state: [{{name: notes, schema: {{type: array, items: {{type: string}}}}, merge: append}}]
  nodes:
    - name: note
      with: {{who: input.who}}
      transform: {{text: who}}
      writes: {{notes: "[output.text]"}}
    - name: rounds
      with: {{who: input.who}}
      loop: {{template: round, maxIterations: 2, onExhausted: succeed}}
    - name: ask
      llm: {{ref: m, prompt: Say}}
      context: {{ledger: [notes]}}
  output: {{}}
  templates:
    - name: round
      input: {{who: {{type: string}}}}
      nodes:
        - name: draft
          with: {{who: input.who}}
          llm: {{ref: m, prompt: "{{{{ who }}}}"}}
          context: {{history: {{last: 1}}}}
      output: {{text: nodes.draft.output.text}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {{name: m}}
spec: {{protocol: openai, model: test, endpoint: "{model.endpoint}", structuredOutput: prompt}}
"""
    store = new_store()
    key = SealKey.generate()
    async with Process(store, seal_key=lambda make: key) as process:
        session = await process.run(compiled(spec), {"who": "Quillfeather"})
    assert session.engine.closed == "succeeded"
    draft = [("user", "Quillfeather"), ("assistant", "saw Quillfeather")]
    assert [draft[0]] in model.asked
    assert [*draft, draft[0]] in model.asked
    log = await sound(store)
    assert {"/ask", "/rounds@002/draft"} <= {r.path for r in log}
    assert "Quillfeather" not in "".join(repr((r.core, r.envelope)) for r in log)


@pytest.mark.parametrize(
    ("text", "said"),
    [("'x' * 300000", "more than 262,144 bytes"), ("'x'", "names more than 64 files")],
    ids=["too large", "too many"],
)
async def test_more_than_fits_before_a_prompt_fails_the_node(model: Listener, text: str, said: str) -> None:
    count = 1 if "*" in text else 65
    spec = f"""
  nodes:
    - name: make
      code: |
        [{{"path": f"docs/{{i}}", "text": {text}}} for i in range({count})]
      output:
        type: array
        items: {{type: object, required: [path, text], properties: {{path: {{type: string}}, text: {{type: string}}}}}}
    - name: put
      with: {{files: nodes.make.output}}
      workspace: {{write: ["docs/*"]}}
      tool: {{server: workspace, name: write_files, arguments: {{files: "{{{{ files }}}}"}}}}
    - name: ask
      after: [put]
      llm: {{ref: m, prompt: Say}}
      context: {{artefacts: ["docs/*"]}}
  output: {{text: nodes.ask.output.text}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {{name: m}}
spec: {{protocol: openai, model: test, endpoint: "{model.endpoint}", structuredOutput: prompt}}
"""
    session = await ended(compiled(spec))
    assert session.facts.reason == "ContextRefused"
    assert said in session.facts.message
    assert model.asked == []

"""`decurion run` with tools and agents: secrets from variables, the turns of an agent in the ledger."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from decurion_cli.main import app
from tool_server import ToolServer, resource

TOKEN = "planted-Token-31c9"
GRAPH = """apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: g}
spec:
  nodes:
    - name: look
      tool: {server: tools, name: lookup, arguments: {query: ships, limit: 1}}
    - name: tell
      with: {hits: nodes.look.output.hits}
      agent:
        model: scripted
        tools: [{server: tools, allow: [note]}]
        prompt: "Note {{ hits }}"
  output: {said: nodes.tell.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: scripted}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: Note, calls: [{tool: note, arguments: {text: ships}}]}
      - {match: noted ships, calls: [{tool: finish, arguments: {text: done}}]}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ToolServer]:
    with ToolServer(token=TOKEN) as server:
        yield server


def test_a_run_with_tools_and_an_agent(server: ToolServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = "  auth: {secretKeyRef: {name: desk, key: token}}\n"
    manifest = resource(server.url).replace("  timeoutSeconds: 5\n", auth)
    (tmp_path / "graph.yaml").write_text(GRAPH + manifest)
    ledger = tmp_path / "ledger"
    arguments = ["run", str(tmp_path / "graph.yaml"), "--ledger", str(ledger), "--run-id", "one"]
    missing = CliRunner().invoke(app, arguments)
    assert missing.exit_code == 3
    assert "DECURION_SECRET_DESK_TOKEN" in missing.stderr
    monkeypatch.setenv("DECURION_SECRET_DESK_TOKEN", TOKEN)
    done = CliRunner().invoke(app, [*arguments[:-1], "two"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"said": "done"})
    assert "2 model calls, 2 tool calls" in done.stderr
    shown = CliRunner().invoke(app, ["ledger", "show", "two", "/tell#turn-0001.01", "--ledger", str(ledger)])
    assert "effect_intended" in shown.stdout
    assert "effect_settled" in shown.stdout
    assert CliRunner().invoke(app, ["ledger", "verify", "two", "--ledger", str(ledger)]).exit_code == 0
    held = [file for file in ledger.rglob("*") if file.is_file()]
    assert held
    assert not [file for file in held if TOKEN.encode() in file.read_bytes()]


def test_what_an_agent_names_is_checked_with_the_graph(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(
        GRAPH.replace("allow: [note]", "allow: [notes]") + resource("http://127.0.0.1:9")
    )
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "graph.yaml")])
    assert done.exit_code == 2
    found = 'the MCPServer tools lists no tool "notes"; did you mean "note"?'
    assert f"nodes.tell.agent.tools[0].allow[0] [REF-MISSING] {found}" in done.stderr

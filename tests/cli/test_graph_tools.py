"""`decurion` with a graph that is a tool of two agents, under different models."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from decurion_cli.main import app

LOOK_UP = """---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: look-up}
spec:
  description: Says what is known of a word.
  needs: {reader: LLM}
  input: {word: {type: string}}
  nodes:
    - name: read
      with: {word: input.word}
      llm: {ref: reader, prompt: "Tell of {{ word }}"}
  output: {said: nodes.read.output.text}
"""
GRAPH = """apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: two}
spec:
  needs: {mine: LLM}
  nodes:
    - name: named
      agent: {ref: clerk, prompt: Ask}
    - name: inline
      agent: {model: mind, tools: [{graph: look-up, as: look, bind: {reader: mine}}], prompt: Look}
  output: {named: nodes.named.output.text, inline: nodes.inline.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: Agent
metadata: {name: clerk}
spec: {model: mind, tools: [{graph: look-up, bind: {reader: slow}}]}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: reader}
spec: {protocol: scripted, scripted: {default: not asked}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: mine}
spec: {protocol: scripted, scripted: {default: from mine}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec: {protocol: scripted, scripted: {default: from slow}}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: mind}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: Ask, calls: [{tool: look_up, arguments: {word: ships}}]}
      - {match: Look, calls: [{tool: look, arguments: {word: boats}}]}
      - {match: from mine, calls: [{tool: finish, arguments: {text: mine}}]}
      - {match: from slow, calls: [{tool: finish, arguments: {text: slow}}]}
"""


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_one_graph_is_a_tool_of_two_agents_under_different_models(tmp_path: Path) -> None:
    file, ledger = tmp_path / "two.yaml", tmp_path / "ledger"
    file.write_text(GRAPH + LOOK_UP)
    checked = call("validate", file, "--strict")
    assert checked.exit_code == 0, checked.output
    run = call("run", file, "--graph", "two", "--ledger", ledger, "--run-id", "one")
    assert (run.exit_code, json.loads(run.stdout)) == (0, {"named": "slow", "inline": "mine"})
    assert "6 model calls" in run.stderr
    shown = call("ledger", "show", "one", "/named#turn-0001.01/read", "--ledger", ledger)
    assert shown.exit_code == 0
    assert "from slow" in shown.stdout
    assert call("ledger", "verify", "one", "--ledger", ledger).exit_code == 0
    again = call("run", "--ledger", ledger, "--run-id", "two", "--fork-from", "one", "/inline")
    assert (again.exit_code, json.loads(again.stdout)) == (0, {"named": "slow", "inline": "mine"})
    assert "3 model calls" in again.stderr
    assert call("ledger", "verify", "two", "--ledger", ledger).exit_code == 0


def test_the_graph_is_shown_with_its_tools(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(GRAPH + LOOK_UP)
    shown = call("graph", "show", file, "--graph", "two")
    assert shown.exit_code == 0, shown.output
    assert "model mind, 1 tools → graph look-up(reader=mine)" in shown.stdout
    drawn = call("graph", "show", file, "--graph", "two", "--output", "mermaid")
    assert '-. "tool look_up" .-> ' in drawn.stdout


def test_one_such_agent_is_tested_alone(tmp_path: Path) -> None:
    file, snapshot = tmp_path / "two.yaml", tmp_path / "s.yaml"
    file.write_text(GRAPH + LOOK_UP)
    snapshot.write_text("{}\n")
    tested = call("node", "test", file, "inline", "--graph", "two", "--snapshot", snapshot)
    assert tested.exit_code == 0, tested.output
    assert "mine" in tested.stdout


def test_a_circle_through_an_agent_is_told(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    circle = LOOK_UP.replace("llm: {ref: reader, ", "agent: {ref: clerk, ")
    file.write_text(GRAPH + circle)
    checked = call("validate", file)
    assert checked.exit_code == 2
    assert "[CYCLE] graphs contain one another (look-up → look-up)" in checked.output


ASKS = """apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: asks}
spec:
  nodes:
    - name: ask
      agent: {model: mind, tools: [{template: send}], prompt: Ask}
  output: {text: nodes.ask.output.text}
  templates:
    - name: send
      input: {texts: {type: array, items: {type: string}}}
      nodes:
        - name: ok
          with: {texts: input.texts}
          approval: {message: "Send {{ texts }}?"}
        - name: each
          after: [ok]
          map: {items: input.texts, as: text, template: one}
      output: {sent: len(nodes.each.output.items)}
    - name: one
      input: {text: {type: string}}
      nodes: [{name: loud, with: {text: input.text}, transform: {text: text.upper()}}]
      output: {text: nodes.loud.output.text}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: mind}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: Ask, calls: [{tool: send, arguments: {texts: [a, b]}}]}
      - {match: '"sent":2', calls: [{tool: finish, arguments: {text: both}}]}
"""


def test_people_are_asked_inside_the_tool_of_an_agent(tmp_path: Path) -> None:
    file, ledger = tmp_path / "asks.yaml", tmp_path / "ledger"
    file.write_text(ASKS)
    assert call("validate", file, "--strict").exit_code == 0
    waits = call("run", file, "--ledger", ledger, "--run-id", "one", "--quiet")
    place = "/ask#turn-0001.01/ok"
    assert waits.exit_code == 4
    assert f"run one waits for people at {place}: Send" in waits.stderr
    approved = call("approve", "one", place, "--ledger", ledger)
    assert approved.exit_code == 0, approved.output
    run = call("run", "--resume", "one", "--ledger", ledger, "--quiet")
    assert (run.exit_code, json.loads(run.stdout)) == (0, {"text": "both"})
    for path in (place, "/ask#turn-0001.01!open", "/ask#turn-0001.01/each[00001]/loud", "/ask#turn-0001.01/each"):
        shown = call("ledger", "show", "one", path, "--ledger", ledger)
        assert shown.exit_code == 0, shown.output
    assert call("ledger", "verify", "one", "--ledger", ledger).exit_code == 0

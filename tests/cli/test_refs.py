"""Graphs made of graphs, as a person runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JUDGE = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: judge}
spec:
  needs: {fast: LLM}
  input: {text: {type: string}}
  nodes:
    - name: ask
      with: {text: input.text}
      llm: {ref: fast, prompt: "Judge {{ text }}"}
      output: {verdict: {type: string}}
  output: {verdict: nodes.ask.output.verdict}
"""

BOTH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: both}
spec:
  input: {texts: {type: array, items: {type: string}}}
  nodes:
    - name: plain
      with: {text: "input.texts[0]"}
      graph: {ref: judge}
    - name: strict
      with: {text: "input.texts[0]"}
      graph: {ref: judge, bind: {fast: stern}}
    - name: each
      map: {items: input.texts, as: text, ref: judge, bind: {fast: stern}}
  output:
    plain: nodes.plain.output.verdict
    strict: nodes.strict.output.verdict
    each: "[one.verdict for one in nodes.each.output.items]"
"""

MODELS = "".join(
    f"""---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {{name: {name}}}
spec: {{protocol: scripted, scripted: {{default: {{verdict: {verdict}}}}}}}
"""
    for name, verdict in (("fast", "good"), ("stern", "bad"), ("third", "odd"))
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "both.yaml").write_text(BOTH)
    (tmp_path / "judge.yaml").write_text(JUDGE)
    (tmp_path / "models.yaml").write_text(MODELS)
    return tmp_path


def decurion(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "decurion_cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def run(folder: Path, *arguments: str) -> dict[str, object]:
    given = json.dumps({"texts": ["a", "b"]})
    done = decurion("run", ".", "--graph", "both", "-q", "--input", given, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_one_graph_gives_other_results_under_other_models(folder: Path) -> None:
    assert run(folder, "--run-id", "r1") == {"plain": "good", "strict": "bad", "each": ["bad", "bad"]}
    shown = decurion("ledger", "show", "r1", "/strict/ask", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert '"verdict": "bad"' in shown.stdout
    listed = decurion("ledger", "show", "r1", "/each[00001]/ask", cwd=folder)
    assert listed.returncode == 0, listed.stderr


def test_a_run_binds_last(folder: Path) -> None:
    assert run(folder, "--bind", "stern=third") == {"plain": "good", "strict": "odd", "each": ["odd", "odd"]}
    assert run(folder, "--bind", "fast=third") == {"plain": "odd", "strict": "bad", "each": ["bad", "bad"]}
    wrong = decurion("run", ".", "--graph", "both", "--input", "{}", "--bind", "starn=third", cwd=folder)
    assert wrong.returncode == 2
    assert "uses no LLM of this name, it uses fast, stern" in wrong.stderr


def test_what_is_wrong_in_a_graph_is_told_once(folder: Path) -> None:
    right = decurion("validate", ".", cwd=folder)
    assert (right.returncode, right.stderr) == (0, "")
    (folder / "judge.yaml").write_text(JUDGE.replace("text: input.text}", "text: input.txt}"))
    done = decurion("validate", ".", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        'judge.yaml:10:26 nodes.ask.with.text [EXPR-FIELD] input has no field "txt"; did you mean "text"?'
    ]


def test_a_graph_that_cannot_be_read_is_told_once(folder: Path) -> None:
    (folder / "judge.yaml").write_text(JUDGE.replace("output: {verdict: {", "outputs: {verdict: {"))
    done = decurion("validate", ".", cwd=folder)
    assert done.returncode == 2
    assert [line.split(" ")[0] for line in done.stderr.splitlines()] == ["judge.yaml:12:7"]


def test_a_graph_shows_those_that_it_runs(folder: Path) -> None:
    done = decurion("graph", "show", ".", "--graph", "both", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "graph judge(fast=stern)" in done.stdout


NESTED = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: nested}
spec:
  delimiters: ["<%", "%>"]
  input: {words: {type: array, items: {type: string}}}
  nodes:
    - name: each
      map:
        items: input.words
        as: word
        body:
          nodes:
            - name: ask
              with: {word: input.word, place: input.index}
              llm: {ref: echo, prompt: "{{ word }} is <% word %> at <% place %>"}
          output: {text: nodes.ask.output.text}
  output: {texts: "[one.text for one in nodes.each.output.items]"}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: echo}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: "{{ word }} is a at 0", reply: first}
      - {match: "{{ word }} is b at 1", reply: second}
"""


def test_a_body_in_place_runs_and_its_paths_are_those_of_a_template(tmp_path: Path) -> None:
    (tmp_path / "nested.yaml").write_text(NESTED)
    given = json.dumps({"words": ["a", "b"]})
    done = decurion("run", "nested.yaml", "-q", "--input", given, "--run-id", "r1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"texts": ["first", "second"]}
    shown = decurion("ledger", "show", "r1", "/each[00001]/ask", cwd=tmp_path)
    assert '"second"' in shown.stdout


def test_the_timeout_of_a_node_holds_for_the_graph_that_it_runs(folder: Path) -> None:
    slow = "scripted: {replies: [{delaySeconds: 600, reply: {verdict: late}}]}"
    (folder / "models.yaml").write_text(MODELS.replace("scripted: {default: {verdict: good}}", slow))
    bounded = BOTH.replace(
        "      graph: {ref: judge}\n",
        "      timeoutSeconds: 0.5\n      onFailure: otherwise\n      graph: {ref: judge}\n",
    )
    bounded = bounded.replace(
        "graph: {ref: judge}\n    - name: strict",
        "graph: {ref: judge}\n      otherwise: {verdict: \"'none'\"}\n    - name: strict",
    )
    (folder / "both.yaml").write_text(bounded)
    assert run(folder) == {"plain": "none", "strict": "bad", "each": ["bad", "bad"]}


ROUNDS = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: rounds}
spec:
  input: {start: {type: integer}}
  nodes:
    - name: inPlace
      with: {num: input.start, by: "2"}
      loop:
        body:
          nodes: [{name: add, with: {num: input.num, by: input.by}, transform: {num: num + by}}]
          output: {num: nodes.add.output.num}
        next: {num: output.num}
        until: output.num > 6
        maxIterations: 9
        onExhausted: fail
    - name: elsewhere
      with: {num: input.start}
      loop: {ref: twice, next: {num: output.num}, maxIterations: 3, onExhausted: succeed}
  output: {one: nodes.inPlace.output.num, other: nodes.elsewhere.output.num}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: twice}
spec:
  input: {num: {type: integer}}
  nodes: [{name: double, with: {num: input.num}, transform: {num: num * 2}}]
  output: {num: nodes.double.output.num}
"""


def test_a_loop_runs_another_graph_or_a_body_in_place(tmp_path: Path) -> None:
    (tmp_path / "rounds.yaml").write_text(ROUNDS)
    given = json.dumps({"start": 1})
    done = decurion("run", "rounds.yaml", "--graph", "rounds", "-q", "--input", given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"one": 7, "other": 8}

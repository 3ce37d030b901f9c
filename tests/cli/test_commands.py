"""The `decurion` command as a person runs it: processes, exit codes, stdout and stderr."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cluster.process import wait_until
from decurion_ledger import LogWriter, open_store, read_log

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: words}
spec:
  input: {words: {type: array, items: {type: string}}}
  nodes:
    - name: each
      map: {items: input.words, as: word, template: one}
    - name: total
      with: {lengths: "[one.length for one in nodes.each.output.items]"}
      code: |
        {"letters": sum(lengths)}
      output: {letters: {type: integer}}
  output: {letters: nodes.total.output.letters}
  templates:
    - name: one
      input: {word: {type: string}}
      nodes:
        - name: ask
          with: {word: input.word}
          llm: {ref: fast, prompt: "Spell {{ word }}"}
          output: {spelled: {type: string}}
          retry: {repair: 0}
        - name: count
          with: {spelled: nodes.ask.output.spelled}
          code: |
            {"length": len(spelled)}
          output: {length: {type: integer}}
      output: {length: nodes.count.output.length}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec:
  protocol: scripted
  scripted:
    replies: [{match: boom, reply: {speled: x}}]
    default: {spelled: abc}
"""


def decurion(*args: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "decurion_cli", *args],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )


def _heed_interrupts() -> None:
    """A shell that runs the tests in the background has its children ignore interrupts, and theirs inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def begin(*args: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "decurion_cli", *args],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "graph.yaml").write_text(GRAPH)
    return tmp_path


def records(folder: Path, run: str) -> list[Any]:
    async def read() -> list[Any]:
        store = open_store(str(folder / ".decurion" / "ledger"))
        return [record async for _, record in read_log(store, run)]

    return asyncio.run(read())


def input_of(count: int) -> str:
    return json.dumps({"words": [f"w{i}" for i in range(count)]})


def test_a_run_prints_its_output_alone_on_stdout(folder: Path) -> None:
    done = decurion("run", "graph.yaml", "--input", input_of(3), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"letters": 9}
    assert "decurion ledger show" in done.stderr


def test_help_and_version_need_no_files(folder: Path) -> None:
    assert "validate" in decurion("--help", cwd=folder).stdout
    said = decurion("version", cwd=folder).stdout.strip()
    assert said
    assert decurion("--version", cwd=folder).stdout.strip() == said


def test_every_fault_of_a_manifest_is_told_at_once_with_its_place(folder: Path) -> None:
    broken = GRAPH.replace("ref: fast", "ref: fsat").replace("input.words, as", "input.wrods, as")
    (folder / "graph.yaml").write_text(broken)
    done = decurion("validate", ".", cwd=folder)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert any("[EXPR-FIELD]" in line and "graph.yaml:9:" in line and "words" in line for line in lines)
    assert any("[REF-MISSING]" in line and "fsat" in line for line in lines)
    assert decurion("run", ".", cwd=folder).returncode == 2


def test_findings_as_json_hold_code_path_and_place(folder: Path) -> None:
    (folder / "graph.yaml").write_text(GRAPH.replace("ref: fast", "ref: fsat"))
    found = json.loads(decurion("validate", ".", "-o", "json", cwd=folder).stdout)
    assert [f["code"] for f in found if f["severity"] == "error"] == ["REF-MISSING"]


def test_input_that_breaks_the_graph_is_refused_before_anything_runs(folder: Path) -> None:
    done = decurion("run", "graph.yaml", "--input", '{"words": [1]}', cwd=folder)
    assert done.returncode == 2
    assert "words" in done.stderr
    assert not (folder / ".decurion" / "ledger" / "runs").exists()


def test_input_that_is_no_json_says_so(folder: Path) -> None:
    done = decurion("run", "graph.yaml", "--input", "{words", cwd=folder)
    assert done.returncode == 2
    assert "--input is no JSON" in done.stderr


def test_a_failed_run_leaves_with_one_and_names_the_node(folder: Path) -> None:
    done = decurion("run", "graph.yaml", "--input", '{"words": ["boom"]}', cwd=folder)
    assert done.returncode == 1
    assert "/each[00000]/ask" in done.stderr
    assert "OutputInvalid" in done.stderr


def test_a_missing_secret_leaves_with_three_and_says_what_to_set(folder: Path) -> None:
    auth = "auth: {secretKeyRef: {name: keys, key: api}}"
    spec = f"protocol: openai\n  model: m\n  endpoint: http://127.0.0.1:9/v1\n  {auth}\n"
    (folder / "graph.yaml").write_text(GRAPH[: GRAPH.index("  protocol: scripted")] + "  " + spec)
    done = decurion("run", "graph.yaml", "--input", input_of(1), cwd=folder)
    assert done.returncode == 3
    assert "DECURION_SECRET_KEYS_API" in done.stderr


def test_a_run_that_is_not_there_cannot_be_resumed(folder: Path) -> None:
    done = decurion("run", "--resume", "nobody", cwd=folder)
    assert done.returncode == 3
    assert "nobody" in done.stderr


def test_the_ledger_shows_runs_paths_and_one_node(folder: Path) -> None:
    decurion("run", "graph.yaml", "--input", input_of(2), "--run-id", "r1", cwd=folder)
    runs = json.loads(decurion("ledger", "ls", "-o", "json", cwd=folder).stdout)
    assert [(r["run"], r["state"]) for r in runs] == [("r1", "succeeded")]
    paths = [row["path"] for row in json.loads(decurion("ledger", "ls", "r1", "-o", "json", cwd=folder).stdout)]
    assert "/each[00001]/count" in paths
    shown = json.loads(decurion("ledger", "show", "r1", "/each[00001]/count", "-o", "json", cwd=folder).stdout)
    assert shown["records"][0]["snapshot"] == {"spelled": "abc"}
    assert shown["records"][0]["output"] == {"length": 3}
    verified = decurion("ledger", "verify", "r1", cwd=folder)
    assert verified.returncode == 0
    assert "r1: ok" in verified.stdout
    missing = decurion("ledger", "show", "r1", "/each[00009]", cwd=folder)
    assert missing.returncode == 2


def test_the_line_under_a_failed_run_shows_the_item_that_failed(folder: Path) -> None:
    text = GRAPH.replace("as: word, template: one", "as: word, key: word, template: one")
    (folder / "graph.yaml").write_text(text)
    done = decurion("run", "graph.yaml", "--input", json.dumps({"words": ["a", "boom"]}), "--run-id", "r1", cwd=folder)
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("look:")]
    command = shlex.split(line.removeprefix("look:").partition("   (paths")[0])
    path = command[-1]
    assert path.startswith("/each[k:")
    assert f"  {path} [OutputInvalid] " in done.stderr
    shown = decurion(*command[1:], cwd=folder)
    assert shown.returncode == 0
    assert "failed OutputInvalid" in shown.stdout


TOLERANT = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: tolerant}
spec:
  input: {items: {type: array, items: {type: integer}}}
  nodes:
    - name: each
      map: {items: input.items, template: one, tolerate: {percent: 100}}
    - name: enough
      with: {count: len(nodes.each.output.items)}
      code: |
        if count < 2:
            raise ValueError("too few")
        {"count": count}
      output: {count: {type: integer}}
  output: {count: nodes.enough.output.count}
  templates:
    - name: one
      input: {item: {type: integer}}
      nodes:
        - name: invert
          with: {item: input.item}
          code: 100 // item
          output: {type: integer}
      output: {$value: nodes.invert.output}
"""


def test_the_line_under_a_failed_run_shows_what_failed_it_before_what_was_tolerated(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(TOLERANT)
    done = decurion("run", "graph.yaml", "--input", '{"items": [1, 0]}', "--run-id", "r1", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "  /each[00001]/invert [ExpressionFailure]" in done.stderr
    assert "look:   decurion ledger show r1 /enough " in done.stderr


def test_a_changed_byte_is_found_by_verify(folder: Path) -> None:
    decurion("run", "graph.yaml", "--input", input_of(2), "--run-id", "r1", cwd=folder)
    segment = sorted((folder / ".decurion" / "ledger" / "runs").glob("*/r1/log/*"))[2]
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 1
    segment.chmod(0o644)
    segment.write_bytes(bytes(raw))
    done = decurion("ledger", "verify", "r1", cwd=folder)
    assert done.returncode == 1
    assert "slot 2 " in done.stdout


def test_graph_show_tells_where_each_node_stands(folder: Path) -> None:
    text = decurion("graph", "show", "graph.yaml", cwd=folder)
    assert text.returncode == 0, text.stderr
    for name in ("each", "total", "ask", "count"):
        assert name in text.stdout
    assert "flowchart" in decurion("graph", "show", "graph.yaml", "-o", "mermaid", cwd=folder).stdout


SLOW = GRAPH.replace("default: {spelled: abc}", "default: {spelled: abc}\n").replace(
    "replies: [{match: boom, reply: {speled: x}}]",
    "replies: [{match: Spell, reply: {spelled: abc}, delaySeconds: 0.5}]",
)


@pytest.fixture
def slow(folder: Path) -> Path:
    (folder / "graph.yaml").write_text(SLOW)
    return folder


def committed(folder: Path, run: str, count: int) -> None:
    log = folder / ".decurion" / "ledger" / "runs"

    def there() -> bool:
        return bool(list(log.glob(f"*/{run}/log/*0"))) and len(records(folder, run)) >= count

    wait_until(there, seconds=60, what=f"{count} records of {run}")


def test_a_killed_run_goes_on_where_its_ledger_ends(slow: Path) -> None:
    first = begin("run", "graph.yaml", "--input", input_of(40), "--run-id", "r1", "--branches", "4", cwd=slow)
    committed(slow, "r1", 16)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(20)
    durable = {r.path for r in records(slow, "r1") if r.type == "commit"}
    assert "/!output" not in durable
    done = decurion("run", "--resume", "r1", cwd=slow)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"letters": 120}
    paths = Counter(r.path for r in records(slow, "r1") if r.type == "commit")
    assert max(paths.values()) == 1
    undisturbed = decurion("run", "graph.yaml", "--input", input_of(40), "--run-id", "r2", cwd=slow)
    assert undisturbed.returncode == 0
    assert state(slow, "r1") == state(slow, "r2")


def state(folder: Path, run: str) -> str:
    return str(records(folder, run)[-1].envelope["state"])


def test_a_stopped_process_that_wakes_finds_itself_fenced(slow: Path) -> None:
    first = begin("run", "graph.yaml", "--input", input_of(40), "--run-id", "r1", "--branches", "4", cwd=slow)
    committed(slow, "r1", 16)
    os.kill(first.pid, signal.SIGSTOP)
    done = decurion("run", "--resume", "r1", cwd=slow)
    assert done.returncode == 0, done.stderr
    os.kill(first.pid, signal.SIGCONT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 3
    assert "Fenced" in said or "fenced" in said
    assert "decurion run --resume r1" in said
    paths = Counter(r.path for r in records(slow, "r1") if r.core is not None and r.type != "genesis")
    assert max(paths.values()) == 1
    assert decurion("ledger", "verify", "r1", cwd=slow).returncode == 0


def test_a_run_of_an_operator_is_left_to_it_unless_it_is_taken_on_purpose(slow: Path) -> None:
    first = begin("run", "graph.yaml", "--input", input_of(40), "--run-id", "r1", "--branches", "4", cwd=slow)
    committed(slow, "r1", 8)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(20)
    store = open_store(str(slow / ".decurion" / "ledger"))
    asyncio.run(LogWriter.open(store, "r1", leader_epoch=7, driver="of an operator", genesis=None))
    refused = decurion("run", "--resume", "r1", cwd=slow)
    assert refused.returncode == 3
    assert "belongs to an operator" in refused.stderr
    line = refused.stderr.rpartition("with: decurion ")[2].split()
    assert "--take-over" in line
    assert decurion(*line, cwd=slow).returncode == 0


def test_an_interrupted_run_says_how_to_go_on(slow: Path) -> None:
    first = begin("run", "graph.yaml", "--input", input_of(400), "--run-id", "r1", "--branches", "4", cwd=slow)
    committed(slow, "r1", 8)
    os.kill(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "decurion run --resume r1" in said


LINES = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: lines}
spec:
  input: {rows: {type: string}}
  nodes:
    - name: each
      map: {itemsFrom: {jsonl: input.rows, schema: {num: {type: integer}}}, as: row, template: one}
  output: {nums: "[one.num for one in nodes.each.output.items]"}
  templates:
    - name: one
      input: {row: {type: object, required: [num], properties: {num: {type: integer}}}}
      nodes:
        - name: same
          with: {num: input.row.num}
          code: |
            {"num": num}
          output: {num: {type: integer}}
      output: {num: nodes.same.output.num}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: lines-1}
spec: {graph: lines, input: {rows: data/rows.jsonl}}
"""


def test_relative_paths_start_from_the_file_that_holds_them(tmp_path: Path) -> None:
    (tmp_path / "graphs" / "data").mkdir(parents=True)
    (tmp_path / "graphs" / "lines.yaml").write_text(LINES)
    (tmp_path / "graphs" / "data" / "rows.jsonl").write_text('{"num": 1}\n{"num": 2}\n')
    (tmp_path / "graphs" / "data" / "input.json").write_text('{"rows": "rows.jsonl"}')
    by_run = decurion("run", "graphs", "-q", cwd=tmp_path)
    assert by_run.returncode == 0, by_run.stderr
    assert json.loads(by_run.stdout) == {"nums": [1, 2]}
    by_input = decurion("run", "graphs", "-q", "--input", "@graphs/data/input.json", cwd=tmp_path)
    assert json.loads(by_input.stdout) == {"nums": [1, 2]}


def test_an_id_that_is_taken_is_refused(folder: Path) -> None:
    assert decurion("run", "graph.yaml", "--input", input_of(1), "--run-id", "r1", cwd=folder).returncode == 0
    again = decurion("run", "graph.yaml", "--input", input_of(2), "--run-id", "r1", cwd=folder)
    assert again.returncode == 2
    assert "--resume r1" in again.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_ENDPOINT_URL_S3", "127.0.0.1:9"), ("AWS_PROFILE", "nobody")], ids=["endpoint", "profile"]
)
def test_a_store_that_is_configured_wrongly_is_told_in_a_sentence(folder: Path, name: str, value: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", name: value}
    done = decurion("run", "graph.yaml", "--input", input_of(1), "--ledger", "s3://b/p", cwd=folder, env=keys)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "the S3 client cannot be made" in done.stderr


def test_files_without_a_resource_are_not_right(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    done = decurion("validate", "empty.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "no resource" in done.stderr


RUNS = """
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: one}
spec:
  graph: GRAPH
  input: {items: [1, "two"]}
  overrides: {llms: {writr: other}}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: other}
spec: {graph: GRAPHX, input: {}}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: third}
spec: {graph: GRAPH, input: {itms: [1]}}
"""

NUMBERS = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: numbers}
spec:
  input: {items: {type: array, items: {type: integer}}}
  nodes: [{name: a, with: {rows: input.items}, transform: {total: "sum(rows)"}}]
  output: {total: nodes.a.output.total}
"""


def test_a_run_is_validated_beside_its_graph(tmp_path: Path) -> None:
    text = NUMBERS + RUNS.replace("GRAPHX", "nombers").replace("GRAPH", "numbers")
    (tmp_path / "all.yaml").write_text(text)
    done = decurion("validate", "all.yaml", cwd=tmp_path)
    assert done.returncode == 2
    told = sorted(line.split(" ", 1)[1] for line in done.stderr.splitlines())
    assert told == [
        "all.yaml:22:15 graph [REF-MISSING] there is no graph nombers among these files; did you mean numbers?",
        'input [INPUT] "items" is a required property; correct the input of the run',
        "input [INPUT] Additional properties are not allowed ('itms' was unexpected); correct the input of the run",
        'input.items[1] [INPUT] "two" is not of type "integer"; correct the input of the run',
        "overrides.llms.writr [REF-MISSING] the graph numbers uses no LLM writr; it uses none",
    ]


def test_a_ledger_that_is_not_there_is_not_one_without_runs(tmp_path: Path) -> None:
    done = decurion("ledger", "ls", "--ledger", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere: there is no ledger; correct its address, or run a graph on it first" in done.stderr
    assert not (tmp_path / "nowhere").exists()


TWO_RUNS = """
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: one}
spec: {graph: numbers, input: {items: [1]}}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: two}
spec: {graph: numbers, input: {items: [2]}}
"""


MODEL = """
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: m}
spec: {protocol: scripted, scripted: {default: '{"text": "x"}'}}
"""


def test_an_input_of_ones_own_goes_before_any_number_of_runs(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(NUMBERS + TWO_RUNS)
    refused = decurion("run", "all.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "the files hold several runs of numbers (one, two): keep one, or give --input" in refused.stderr
    done = decurion("run", "all.yaml", "--input", '{"items": [3, 4]}', "--quiet", cwd=tmp_path)
    assert json.loads(done.stdout) == {"total": 7}
    assert decurion("graph", "show", "all.yaml", cwd=tmp_path).returncode == 0


def test_what_would_be_ignored_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(NUMBERS + MODEL)
    bound = decurion("run", "all.yaml", "--input", '{"items": [3]}', "--bind", "writr=m", cwd=tmp_path)
    assert bound.returncode == 2
    assert "writr: the graph numbers uses no LLM of this name, it uses none; correct --bind" in bound.stderr
    resumed = decurion("run", "--resume", "r1", "--input", '{"items": [3]}', cwd=tmp_path)
    assert resumed.returncode == 2
    assert "leave out --input, --graph and --bind" in resumed.stderr

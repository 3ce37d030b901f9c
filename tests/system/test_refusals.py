"""What cannot be right is refused before anything runs, in the same words by `decurion validate` and the operator."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api_server import ApiServer
from cluster.process import wait_until
from operator_process import OperatorProcess

pytestmark = pytest.mark.cluster

HEAD = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: %s}
spec:
"""
LLM = """
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {text: ok}}}
"""

BROKEN = {
    "cycle": """
  nodes:
    - name: a
      with: {num: nodes.b.output.num}
      code: "{'num': num}"
      output: {num: {type: integer}}
    - name: b
      with: {num: nodes.a.output.num}
      code: "{'num': num}"
      output: {num: {type: integer}}
  output: {num: nodes.b.output.num}
""",
    "missing-llm": """
  nodes:
    - name: ask
      llm: {ref: fsat, prompt: Hello}
  output: {text: nodes.ask.output.text}
""",
    "two-writers": """
  state: [{name: total, schema: {type: integer}, initial: 0}]
  nodes:
    - name: a
      code: "{'num': 1}"
      output: {num: {type: integer}}
      writes: {total: output.num}
    - name: b
      code: "{'num': 2}"
      output: {num: {type: integer}}
      writes: {total: output.num}
  output: {a: nodes.a.output.num, b: nodes.b.output.num}
""",
    "read-race": """
  state: [{name: rows, schema: {type: array, items: {type: integer}}, merge: append}]
  nodes:
    - name: a
      code: "{'num': [1]}"
      output: {num: {type: array, items: {type: integer}}}
      writes: {rows: output.num}
    - name: b
      code: "{'num': [2]}"
      output: {num: {type: array, items: {type: integer}}}
      writes: {rows: output.num}
    - name: c
      after: [a]
      with: {rows: state.rows}
      code: "{'num': len(rows)}"
      output: {num: {type: integer}}
  output: {b: nodes.b.output.num, c: nodes.c.output.num}
""",
    "unknown-field": """
  input: {doc: {type: object, required: [title], properties: {title: {type: string}}}}
  nodes:
    - name: a
      with: {title: input.doc.titel}
      code: "{'text': title}"
      output: {text: {type: string}}
  output: {text: nodes.a.output.text}
""",
    "unguarded": """
  input: {doc: {type: object, properties: {title: {type: string}}}}
  nodes:
    - name: a
      with: {title: input.doc.title}
      code: "{'text': title.upper()}"
      output: {text: {type: string}}
  output: {text: nodes.a.output.text}
""",
    "broken-output": """
  nodes:
    - name: a
      code: "{'num': 'text'}"
      output: {num: {type: integer}}
  output: {num: nodes.a.output.num}
""",
}
CODES = {
    "cycle": "CYCLE",
    "missing-llm": "REF-MISSING",
    "two-writers": "WRITE-RACE",
    "read-race": "READ-RACE",
    "unknown-field": "EXPR-FIELD",
    "unguarded": "EXPR-NONE",
    "broken-output": "OUTPUT-TYPE",
}


@pytest.fixture(scope="module")
def namespaced(
    api_server: ApiServer, _resource_definitions: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ApiServer, str]]:
    name = f"refusals-{secrets.token_hex(4)}"
    folder = tmp_path_factory.mktemp("refusals")
    api_server.kubectl("create", "namespace", name)
    operator = OperatorProcess(folder, kubeconfig=api_server.kubeconfig, namespace=name).start()
    try:
        api_server.kubectl("--namespace", name, "apply", "--filename", "-", stdin=LLM)
        yield api_server, name
    finally:
        operator.stop()
        api_server.kubectl("delete", "namespace", name, "--wait=false")


def _said(findings: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return sorted((f["code"], f["path"], f["message"]) for f in findings)


@pytest.mark.parametrize("name", BROKEN)
def test_laptop_and_cluster_refuse_a_graph_in_the_same_words(
    namespaced: tuple[ApiServer, str], name: str, tmp_path: Path
) -> None:
    api, namespace = namespaced
    graph = HEAD % name + BROKEN[name]
    file = tmp_path / "graph.yaml"
    file.write_text(graph + "---" + LLM)
    here = subprocess.run(
        [sys.executable, "-m", "decurion_cli", "validate", str(file), "-o", "json"], capture_output=True, text=True
    )
    assert here.returncode == 2, here.stderr
    laptop = [f for f in json.loads(here.stdout) if f["severity"] == "error"]
    assert CODES[name] in {f["code"] for f in laptop}

    api.kubectl("--namespace", namespace, "apply", "--filename", "-", stdin=graph)
    status: dict[str, Any] = {}

    def refused() -> bool:
        status.update(
            json.loads(api.kubectl("--namespace", namespace, "get", "tg", name, "-o", "json")).get("status", {})
        )
        return any(c["type"] == "Ready" and c["status"] == "False" for c in status.get("conditions", []))

    wait_until(refused, seconds=60, what=f"the condition of {name}", every=0.2)
    cluster = [f for f in status["findings"] if f.get("severity", "error") == "error"]
    assert _said(cluster) == _said(laptop)
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert cluster[0]["message"] in ready["message"]

"""The example over real filings: its data, its code without a model, its repairs, and the demo around it."""

import asyncio
import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from decurion_ledger import open_store, read_log
from model_server import start_model_server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "filings"
FIELDS = ["revenue", "income_before_tax", "net_income", "eps_diluted", "total_assets"]
MANIFESTS = {"graph.yaml", "llm.yaml", "pool.yaml", "run.yaml"}
DECURION = Path(sys.executable).with_name("decurion")
SENTENCE = "In Q3 FY2023, Apple Inc. had revenue of $81,797 million and net income of $19,881 million."
LOSS = {"label": "Net loss"}
Reply = tuple[str, Mapping[str, str]]
"""A regular expression that is searched in a prompt, and the answer."""
Answering = Callable[..., dict[str, Any]]


def documents(count: int | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (EXAMPLE / "data" / "documents.jsonl").read_text().splitlines()[:count]]


def graph_input() -> dict[str, Any]:
    return dict(json.loads((EXAMPLE / "data" / "input.json").read_text()))


def decurion(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DECURION, *arguments], cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def prepare(folder: Path, llm: Mapping[str, Any], *, count: int | None = None) -> list[str | Path]:
    """The arguments of `decurion run` for the first `count` documents and this model."""
    (folder / "documents.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents(count)))
    (folder / "input.json").write_text(json.dumps({**graph_input(), "documents": str(folder / "documents.jsonl")}))
    manifest = {"apiVersion": "decurion.dev/v1alpha1", "kind": "LLM", "metadata": {"name": "small"}, "spec": llm}
    (folder / "llm.yaml").write_text(yaml.safe_dump(manifest))
    return [EXAMPLE / "graph.yaml", folder / "llm.yaml", "--input", f"@{folder / 'input.json'}"]


def run(folder: Path, llm: Mapping[str, Any], *, count: int | None = None, name: str = "one") -> dict[str, Any]:
    done = decurion("run", *prepare(folder, llm, count=count), "--run-id", name, "--quiet", folder=folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Makes models that answer by script, and what is not in it by a value of the schema."""
    with ExitStack() as stack:

        def make(*replies: Reply) -> dict[str, Any]:
            server = stack.enter_context(start_model_server(script=dict(replies)))
            return {"protocol": "openai", "model": "test", "endpoint": server.endpoint}

        yield make


def rows(output: Mapping[str, Any], field: str) -> Sequence[Mapping[str, Any]]:
    return [row for row in output["rows"] if row["field"] == field]


def test_example_is_right_as_it_stands(tmp_path: Path) -> None:
    done = decurion("validate", "--strict", EXAMPLE, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubectl_applies_the_folder_as_it_stands() -> None:
    """kubectl reads *.json too, so data lies in a folder below."""
    assert {path.name for path in EXAMPLE.iterdir() if path.suffix in (".yaml", ".yml", ".json")} == MANIFESTS


def test_every_document_has_a_true_value_for_every_field() -> None:
    given = graph_input()
    assert [field["name"] for field in given["fields"]] == FIELDS
    known = Counter((true["id"], true["field"]) for true in given["truth"] if true["period"] != "prior year")
    assert set(known) == {(one["id"], field) for one in documents() for field in FIELDS}
    assert len(documents()) == 24


def test_the_rules_alone_read_nearly_all_facts(tmp_path: Path, answering: Answering) -> None:
    output = run(tmp_path, answering())
    accuracy = output["accuracy"]
    assert (accuracy["rules"], accuracy["of"], accuracy["wrongPeriod"]) == (119, 120, 0)
    assert accuracy["graph"] >= accuracy["model"]
    assert output["failed"] == []


def test_a_wrong_choice_that_the_arithmetic_refutes_is_made_again(tmp_path: Path, answering: Answering) -> None:
    output = run(tmp_path, answering(("\ntotal assets =", {"label": "Total current assets"})), count=1)
    [row] = rows(output, "total_assets")
    assert (row["label"], row["value"], row["checked"]) == ("Total assets", 335038.0, True)
    assert output["accuracy"]["model"] < 5


def test_a_wrong_choice_that_nothing_refutes_stands(tmp_path: Path, answering: Answering) -> None:
    wrong = {"label": "Earnings per share: Basic"}
    output = run(tmp_path, answering(("diluted earnings per share =$", wrong)), count=1)
    [row] = rows(output, "eps_diluted")
    assert (row["value"], row["unit"], row["correct"]) == (1.27, "USD per share", False)
    assert output["accuracy"]["rules"] == 5


WRONG = "Revenue was $9 million."
AMOUNTS = "Revenue was $81,797 million and net income was $19,881 million."


@pytest.mark.parametrize(
    ("first", "second", "text", "checked"),
    [
        (SENTENCE, WRONG, SENTENCE, True),
        (WRONG, AMOUNTS, AMOUNTS, True),
        (WRONG, "Revenue was $8 million.", "Revenue was $8 million.", False),
        ("It went well.", "It went very well.", "It went very well.", False),
    ],
    ids=["right", "repaired", "tolerated", "no-numbers-at-all"],
)
def test_a_sentence_with_wrong_numbers_is_written_once_more_and_then_marked(
    tmp_path: Path, answering: Answering, first: str, second: str, text: str, checked: bool
) -> None:
    revenue, income = {"label": "Total net sales"}, {"label": "Net income"}
    replies = [("total revenue =$", revenue), ("net income =$", income)]
    replies += [("^Write the facts", {"sentence": first}), ("^Copy the amounts", {"sentence": second})]
    [sentence] = run(tmp_path, answering(*replies), count=1)["sentences"]
    assert sentence == {"id": "aapl-10q-2023-07-01", "text": text, "checked": checked}


def test_the_older_year_may_stand_first_and_brackets_are_losses(tmp_path: Path, answering: Answering) -> None:
    replies = [("Total net sales.*total revenue =$", {"label": "Total net sales"}), ("Net loss.*net income =$", LOSS)]
    output = run(tmp_path, answering(*replies), count=5)
    amazon = [row for row in rows(output, "revenue") if row["company"] == "AMAZON.COM, INC."]
    assert [(row["value"], row["period"]) for row in amazon] == [(574785.0, "FY2023")]
    c3 = [row for row in rows(output, "net_income") if row["company"] == "C3.ai, Inc."]
    assert [(row["value"], row["unit"]) for row in c3] == [(-64358.0, "USD thousands")]


def test_the_same_answers_give_the_same_records(tmp_path: Path, answering: Answering) -> None:
    model = answering()
    outputs = [run(tmp_path, model, count=3, name=name) for name in ("first", "second")]
    assert outputs[0] == outputs[1]
    assert cores(tmp_path, "first") == cores(tmp_path, "second")
    verified = decurion("ledger", "verify", folder=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def cores(folder: Path, name: str) -> dict[str, str]:
    async def read() -> dict[str, str]:
        log = read_log(open_store(str(folder / ".decurion" / "ledger")), name)
        return {record.path: record.core_hash async for _, record in log if record.core and record.type != "genesis"}

    return asyncio.run(read())


def test_the_demo_shows_facts_accuracy_times_and_where_to_look(answering: Answering) -> None:
    command = [sys.executable, str(ROOT / "hack" / "demo" / "run.py"), "--documents=2"]
    command += [f"--endpoint={answering()['endpoint']}", "--model=test"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for said in ("335,038", "as test chose at first", "10 of 10  100%  as the rules alone", "The run took"):
        assert said in done.stdout
    shown = shlex.split(done.stdout[done.stdout.index(".venv/bin/decurion ledger show") :])
    node = decurion(*shown[1:], folder=ROOT)
    assert node.returncode == 0, node.stderr
    assert "Total net sales" in node.stdout


async def test_the_small_model_chooses_one_of_the_labels(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    import httpx

    from demo.model import small_model

    schema = {"type": "object", "required": ["label"], "properties": {"label": {"enum": ["Net sales", "Goodwill"]}}}
    body = {
        "messages": [{"role": "user", "content": "Labels: Net sales; Goodwill\ntotal revenue ="}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        "max_tokens": 40,
        "temperature": 0,
    }
    async with small_model(tmp_path, processes=1) as endpoint, httpx.AsyncClient(timeout=60) as client:
        answer = (await client.post(f"{endpoint}/chat/completions", json=body)).json()
    assert json.loads(answer["choices"][0]["message"]["content"])["label"] in ("Net sales", "Goodwill")

"""The example of a switch: which nodes run for which letter, and what the ledger says of it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from decurion_ledger import open_store, read_log, verify

EXAMPLE = Path(__file__).parents[2] / "examples" / "router"
DECURION = Path(sys.executable).with_name("decurion")
REFUND, QUESTION, GREETING = None, "question.json", "greeting.json"


def decurion(*arguments: str | Path, folder: Path) -> str:
    done = subprocess.run([DECURION, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def types_by_path(folder: Path, run: str) -> dict[str, str]:
    """How the log, which holds, ends each node: `commit` or `skip`."""
    store = open_store(str(folder / ".decurion" / "ledger"))
    assert await verify(store, run) == []
    return {record.path: record.type async for _, record in read_log(store, run) if record.core is not None}


def test_example_is_right_as_it_stands(tmp_path: Path) -> None:
    decurion("validate", "--strict", EXAMPLE, folder=tmp_path)


def test_kubectl_applies_the_folder_as_it_stands() -> None:
    """kubectl reads *.json too, so data lies in a folder below."""
    assert {path.name for path in EXAMPLE.iterdir() if path.suffix != ".md" and path.is_file()} == {
        "graph.yaml",
        "model.yaml",
        "pool.yaml",
        "run.yaml",
    }


@pytest.mark.parametrize(
    ("letter", "output", "ran"),
    [
        (
            REFUND,
            {
                "mood": "annoyed",
                "refund": 39.9,
                "reply": "We pay back 39.90.",
                "steps": ["the letter wants: refund", "paid back: 39.9"],
            },
            {"/find", "/pay"},
        ),
        (
            QUESTION,
            {
                "mood": "annoyed",
                "refund": 0.0,
                "reply": "Open your account, choose Addresses, and write the new one there.",
                "steps": ["the letter wants: answer"],
            },
            {"/explain/draft", "/explain/shorten", "/explain!open", "/explain!output", "/explain"},
        ),
        (
            GREETING,
            {
                "mood": "unknown",
                "refund": 0.0,
                "reply": "Someone will answer within a day.",
                "steps": ["the letter wants: other"],
            },
            {"/hand"},
        ),
    ],
    ids=["refund", "question", "greeting"],
)
async def test_a_letter_takes_the_way_of_its_case_alone(
    tmp_path: Path, letter: str | None, output: dict[str, object], ran: set[str]
) -> None:
    given = ["--input", f"@{EXAMPLE / 'data' / letter}"] if letter else []
    assert json.loads(decurion("run", EXAMPLE, *given, "--run-id", "one", "--quiet", folder=tmp_path)) == output
    found = await types_by_path(tmp_path, "one")
    always = {"/", "/read", "/mood", "/route", "/!output"}
    assert {path for path, kind in found.items() if kind != "skip"} - always == ran
    assert {path for path, kind in found.items() if kind == "skip"} == {
        "/find",
        "/allow",
        "/pay",
        "/explain",
        "/hand",
    } - ran


@pytest.mark.parametrize(("answer", "paid"), [("no", 0.0), ("yes", 499.0)])
def test_much_money_waits_for_a_person(tmp_path: Path, answer: str, paid: float) -> None:
    given = ["--input", f"@{EXAMPLE / 'data' / 'sofa.json'}", "--approve", f"allow={answer}"]
    output = json.loads(decurion("run", EXAMPLE, *given, "--quiet", folder=tmp_path))
    assert output["refund"] == paid
    assert output["reply"] == ("We pay back 499.00." if paid else "We cannot pay this back.")


def test_without_its_otherwise_the_graph_is_refused_as_the_documents_say(tmp_path: Path) -> None:
    folder = tmp_path / "router"
    shutil.copytree(EXAMPLE, folder)
    text = (folder / "graph.yaml").read_text()
    (folder / "graph.yaml").write_text(re.sub(r"\n *otherwise: {total.*", "", text))
    done = subprocess.run([DECURION, "validate", "."], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    [said] = done.stderr.splitlines()
    assert f"\n{said}\n```\n" in (EXAMPLE.parents[1] / "docs" / "controls.md").read_text()

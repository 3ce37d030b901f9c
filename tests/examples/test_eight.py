"""Small examples, one for each kind of work: right as they stand, and with the output that their pages promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from decurion_cli.main import app
from decurion_crds.v1alpha1 import KINDS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SMALL = ["chat", "fields", "modules", "nightly", "refine", "research", "review", "router"]
MOST_LINES = 60
MOST_COLUMNS = 120


def run(example: str, *arguments: str | Path, folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "decurion_cli", "run", EXAMPLES / example, "--quiet", *arguments]
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def output(example: str, *arguments: str | Path, folder: Path) -> Any:
    return json.loads(run(example, *arguments, folder=folder).stdout)


def documents(example: str) -> list[tuple[Path, Any]]:
    files = sorted((EXAMPLES / example).glob("*.yaml"))
    return [(file, document) for file in files for document in yaml.safe_load_all(file.read_text())]


@pytest.mark.parametrize("example", SMALL)
def test_an_example_is_right_as_it_stands(example: str) -> None:
    done = CliRunner().invoke(app, ["validate", "--strict", str(EXAMPLES / example)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("example", SMALL)
def test_a_graph_is_small(example: str) -> None:
    graphs = {file for file, document in documents(example) if document["kind"] == "TaskGraph"}
    assert graphs
    for graph in graphs:
        lines = graph.read_text().splitlines()
        assert len(lines) <= MOST_LINES, f"{graph.relative_to(ROOT)} has {len(lines)} lines"
    wide = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in (EXAMPLES / example).glob("*.yaml")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > MOST_COLUMNS
    ]
    assert wide == []


@pytest.mark.parametrize("example", SMALL)
def test_kubectl_applies_a_folder_as_it_stands(example: str) -> None:
    """kubectl reads *.json too, so data lies in a folder below."""
    kinds = [document["kind"] for _, document in documents(example)]
    assert {"TaskGraph", "LLM", "TaskGraphRun", "WorkerPool"} <= set(kinds) <= KINDS.keys()
    names = [(document["kind"], document["metadata"]["name"]) for _, document in documents(example)]
    assert len(names) == len(set(names))
    assert {file.suffix for file in (EXAMPLES / example).iterdir() if file.is_file()} == {".yaml", ".md"}


def test_one_claim_for_each_topic_is_that_of_the_angle_which_comes_first(tmp_path: Path) -> None:
    found = output("research", folder=tmp_path)
    assert {one["topic"]: one["source"] for one in found["claims"]} == {
        "revenue": "10-K",
        "staff": "10-K",
        "outlook": "a newspaper",
    }
    assert found["confident"] is True


def test_angles_without_claims_are_no_reason_to_stop(tmp_path: Path) -> None:
    found = output("research", "--input", '{"question": "How is Ford doing?"}', folder=tmp_path)
    assert found == {"answer": "The sources say nothing about it.", "claims": [], "confident": False}


def test_one_graph_gives_other_results_under_other_models(tmp_path: Path) -> None:
    found = output("modules", "--graph=contest", folder=tmp_path)
    assert found == {"marks": [9, 6, 7], "winner": "The door is open.", "why": ["Nice.", "Short enough."]}


def test_files_that_are_edited_side_by_side_are_merged_and_looked_at_one_by_one(tmp_path: Path) -> None:
    found = output("review", "--run-id=review", folder=tmp_path)
    assert found["files"] == ["shop/__init__.py", "shop/price.py", "tests/test_price.py"]
    assert [one["path"] for one in found["remarks"]] == ["tests/test_price.py"]
    command = [sys.executable, "-m", "decurion_cli", "artefact", "get", "review", "change", "--to", "change"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "change" / "shop" / "__init__.py").read_text().startswith("# Apache-2.0\n")
    assert (tmp_path / "change" / "shop" / "price.py").read_text().startswith("def gross(net: float) -> float:")


def test_two_who_make_different_things_of_one_file_fail_the_run(tmp_path: Path) -> None:
    said = run("review", "--bind=coder=hasty", folder=tmp_path, status=1).stderr
    assert re.search(r"the items 0, 1 do not agree on shop/price\.py", said), said


def test_edits_in_no_order_are_refused(tmp_path: Path) -> None:
    race = (EXAMPLES / "review" / "graph.yaml").read_text().replace("after: [edit]", "after: [begin]")
    (tmp_path / "graph.yaml").write_text(race)
    done = CliRunner().invoke(app, ["validate", str(tmp_path), str(EXAMPLES / "review" / "model.yaml")])
    assert done.exit_code == 2
    assert re.findall(r"\[(\S+)\] (\w+) and (\w+) write", done.stderr) == [("WRITE-RACE", "edit", "licence")]


def test_a_batch_of_500_bears_the_few_that_cannot_be_read(tmp_path: Path) -> None:
    found = output("nightly", "--input", f"@{EXAMPLES / 'nightly' / 'data' / 'input.json'}", folder=tmp_path)
    counts = {one["kind"]: one["notes"] for one in found["count"]["counts"]}
    assert found["failed"] == ["N-017", "N-140", "N-141", "N-305", "N-390", "N-466", "N-499"]
    assert sum(counts.values()) + len(found["failed"]) == 500
    assert counts == {"urgent": 122, "repair": 185, "other": 186}


def test_a_batch_with_more_failures_than_it_bears_fails(tmp_path: Path) -> None:
    notes = (EXAMPLES / "nightly" / "data" / "notes.jsonl").read_text().splitlines()[:100]
    notes += [json.dumps({"id": f"X-{number}", "shop": 1, "text": "not readable"}) for number in range(3)]
    (tmp_path / "notes.jsonl").write_text("\n".join(notes))
    given = json.dumps({"notes": str(tmp_path / "notes.jsonl")})
    said = run("nightly", "--input", given, folder=tmp_path, status=1).stderr
    assert "/sort" in said
    assert "ModelRefused" in said


def test_a_talk_is_remembered_by_what_the_turn_before_gave(tmp_path: Path) -> None:
    memory: Any = None
    answers = []
    for message in ("My name is Ada.", "What is my name?", "And my number?", "Thank you."):
        given = {"message": message} | ({"memory": memory} if memory else {})
        found = output("chat", "--input", json.dumps(given), folder=tmp_path)
        memory = found["memory"]
        answers.append(found["answer"])
    assert answers[:2] == ["Welcome, Ada.", "Your name is Ada."]
    assert memory["summary"] == "Ada has number 1815 and borrowed a book on looms."
    assert [turn["text"] for turn in memory["turns"][::2]] == ["And my number?", "Thank you."]


def test_200_fields_are_found_by_label_or_chosen_by_the_model(tmp_path: Path) -> None:
    given = json.loads((EXAMPLES / "fields" / "data" / "input.json").read_text())
    assert len(given["fields"]) == len(set(given["fields"])) == 200
    filings = (EXAMPLES / "filings" / "data" / "documents.jsonl").read_text().splitlines()[:2]
    (tmp_path / "two.jsonl").write_text("\n".join(filings))
    given["documents"] = "two.jsonl"
    (tmp_path / "input.json").write_text(json.dumps(given))
    found = output("fields", "--input", "@input.json", folder=tmp_path)
    assert found["found"] == {"label": 78, "model": 4}
    [apple, adobe] = [{cell["field"]: cell for cell in one["cells"]} for one in found["filings"]]
    assert apple["total assets"] == {"field": "total assets", "by": "label", "value": 335038}
    assert apple["accounts payable"] == {"field": "accounts payable", "by": "model", "value": 46699}
    assert "accounts payable" not in adobe or adobe["accounts payable"]["by"] == "label"


@pytest.mark.parametrize(
    ("task", "mark", "rounds"), [("a notice for the lift", 9, 3), ("a notice for the stairs", 3, 4)]
)
def test_a_text_is_revised_until_it_is_good_or_the_best_of_all_rounds(
    tmp_path: Path, task: str, mark: int, rounds: int
) -> None:
    found = output("refine", "--input", json.dumps({"task": task}), folder=tmp_path)
    assert (found["mark"], found["rounds"]) == (mark, rounds)
    assert found["text"] == (
        "Stairs." if mark < 9 else "The lift has been out of order since Monday and will run again on Friday."
    )

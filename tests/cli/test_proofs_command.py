"""`decurion ledger anchor`, `prove`, `check-proof`, `provenance`: what another person needs, and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.main import app

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: small}
spec:
  nodes:
    - {name: a, transform: {size: "1"}, output: {size: {type: integer}}}
  output: {size: nodes.a.output.size}
"""


def do(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the signed run `r` in `ledger`, its anchors in `far`, and the keys `root` and `anchors`."""
    folder = tmp_path_factory.mktemp("trust")
    for name in ("root", "anchors"):
        assert do("ledger", "key", folder / f"{name}.key").exit_code == 0
    (folder / "g.yaml").write_text(GRAPH)
    place = ["--ledger", folder / "ledger"]
    assert do("run", folder / "g.yaml", "--run-id", "r", "--sign", folder / "root.key", *place).exit_code == 0
    return folder


@pytest.fixture(scope="module")
def proof(made: Path) -> Path:
    done = do("ledger", "anchor", "r", *_anchoring(made))
    assert done.output.startswith("r: anchored at")
    done = do("ledger", "prove", "r", "/a", "--ledger", made / "ledger", "--anchors", made / "far")
    assert done.exit_code == 0
    (made / "proof.json").write_text(done.output)
    return made / "proof.json"


def _anchoring(made: Path) -> list[Any]:
    return ["--ledger", made / "ledger", "--to", made / "far", "--sign", made / "anchors.key"]


def test_a_proof_is_checked_without_the_ledger(made: Path, proof: Path) -> None:
    done = do("ledger", "check-proof", proof, "--root-key", made / "root.pem", "--anchor-key", made / "anchors.pem")
    assert done.exit_code == 0
    first, second, third = done.output.splitlines()
    assert first.startswith("/a of run r is in slot ")
    assert "a driver that" in first
    assert "in the log of" in second
    assert third.startswith("that log was anchored at ")


def test_a_proof_under_another_key_or_changed_is_wrong(made: Path, proof: Path, tmp_path: Path) -> None:
    done = do("ledger", "check-proof", proof, "--root-key", made / "anchors.pem")
    assert (done.exit_code, "wrong: its certificate does not appoint" in done.output) == (1, True)
    found = json.loads(proof.read_text())
    found["record"] = found["record"].replace("transform", "x")
    found["path"] = "/b"
    (tmp_path / "p.json").write_text(json.dumps(found))
    assert do("ledger", "check-proof", tmp_path / "p.json").exit_code == 1


@pytest.mark.parametrize("text", [None, "{"])
def test_a_proof_that_cannot_be_read_is_told(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "p.json").write_text(text)
    done = do("ledger", "check-proof", tmp_path / "p.json")
    assert (done.exit_code, "cannot be read" in done.output) == (2, True)


def test_a_run_that_is_gone_is_found_by_its_anchors(made: Path, proof: Path, tmp_path: Path) -> None:
    compare = ["--anchors", made / "far", "--anchor-key", made / "anchors.pem"]
    done = do("ledger", "verify", made / "ledger", *compare, "--root-key", made / "root.pem")
    assert (done.exit_code, "; 1 anchors)" in done.output) == (0, True)
    (tmp_path / "empty").mkdir()
    done = do("ledger", "verify", tmp_path / "empty", *compare)
    assert done.exit_code == 1
    assert "[ROLLED-BACK, invariant 5]" in done.output


def test_what_is_not_whole_is_not_anchored(made: Path) -> None:
    other = [*_anchoring(made)[:-1], made / "root.key"]
    done = do("ledger", "anchor", "r", *other, "--root-key", made / "anchors.pem")
    assert (done.exit_code, "[CERTIFICATE, invariant 15]" in done.output) == (1, True)


@pytest.mark.parametrize("options", [["--anchors", "x"], ["--anchor-key", "x"]])
def test_anchors_and_their_key_go_together(made: Path, options: list[str]) -> None:
    done = do("ledger", "verify", made / "ledger", *options)
    assert (done.exit_code, "anchor" in done.output) == (2, True)


def test_the_statement_is_printed_in_its_envelope(made: Path) -> None:
    done = do("ledger", "provenance", "r", "--ledger", made / "ledger")
    assert json.loads(done.output)["payloadType"] == "application/vnd.in-toto+json"
    assert do("ledger", "provenance", "none", "--ledger", made / "ledger").exit_code == 3

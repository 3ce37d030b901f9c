"""`decurion ledger verify`: text, JSON, keys, exit codes."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from decurion_cli.main import app
from decurion_ledger import LogWriter, Record, Signer, SigningKey, open_store, public_pem
from decurion_ledger.layout import slot_key

ROOT = SigningKey.generate()


def do(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A folder with the run `signed` and the run `plain`, and the key files `root.pem` and `other.pem` beside it."""
    (tmp_path / "root.pem").write_text(public_pem(ROOT.public))
    (tmp_path / "other.pem").write_text(public_pem(SigningKey.generate().public))
    folder = tmp_path / "ledger"
    folder.mkdir()
    asyncio.run(_write(folder))
    return folder


async def _write(folder: Path) -> None:
    key = SigningKey.generate()
    store = open_store(str(folder))
    for run in ("plain", "signed"):
        by = Signer(key, lambda epoch: ROOT.certify(key.public, cluster="c", run="signed", leader_epoch=epoch))
        opened = await LogWriter.open(
            store,
            run,
            leader_epoch=1,
            driver="d",
            genesis=lambda: Record.event("genesis", "/", {"name": "g"}),
            signer=by if run == "signed" else None,
        )
        await opened.writer.append([Record.event("attempt_failed", "/a", {"code": "X"})])
        await opened.writer.finish(Record.event("close", "/", {"outcome": "ok"}))


def test_a_line_for_each_run_says_who_vouches_for_it(ledger: Path) -> None:
    done = do("verify", ledger)
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "plain: ok (unsigned)",
        f"signed: ok (signed by drivers that {ROOT.public} appointed; compared with no --root-key)",
    ]


def test_with_a_root_key_an_unsigned_run_is_a_problem_and_a_signed_one_is_not(ledger: Path) -> None:
    done = do("verify", ledger, "--root-key", ledger.parent / "root.pem")
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "plain: slot 0 [UNSIGNED, invariant 15] driver d wrote from here on without a certificate of its key",
        f"signed: ok (signed by drivers that {ROOT.public} appointed; compared with --root-key)",
    ]
    other = do("verify", ledger, "signed", "--root-key", ledger.parent / "other.pem")
    assert (other.exit_code, "[CERTIFICATE, invariant 15]" in other.output) == (1, True)
    both = ["--root-key", ledger.parent / "other.pem", "--root-key", ledger.parent / "root.pem"]
    assert do("verify", ledger, "signed", *both).exit_code == 0


def test_json_names_code_invariant_slot_path_and_object(ledger: Path) -> None:
    where = ledger / slot_key("plain", 1)
    where.chmod(0o644)
    where.write_bytes(where.read_bytes()[:-1])
    done = do("verify", ledger, "plain", "-o", "json")
    assert done.exit_code == 1
    [report] = json.loads(done.output)
    assert (report["ok"], report["signature"], report["segments"], report["anchors"]) == (False, "unsigned", 3, 0)
    first = report["problems"][0]
    assert (first["code"], first["invariant"], first["slot"]) == ("SEGMENT-HASH", 2, 1)
    assert first["object"] == slot_key("plain", 1)


@pytest.mark.parametrize(("name", "says"), [("absent.pem", "cannot be read"), ("ledger", "cannot be read")])
def test_a_key_that_cannot_be_read_is_told(ledger: Path, name: str, says: str) -> None:
    done = do("verify", ledger, "--root-key", ledger.parent / name)
    assert (done.exit_code, says in done.output) == (2, True)


GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: small}
spec:
  nodes:
    - {name: a, transform: {size: "1"}, output: {size: {type: integer}}}
  output: {size: nodes.a.output.size}
"""


def test_a_run_signed_with_a_key_of_ones_own_is_verified_with_its_public_part(tmp_path: Path) -> None:
    private, public = tmp_path / "mine.key", tmp_path / "mine.pem"
    assert do("key", private).exit_code == 0
    assert private.stat().st_mode & 0o777 == 0o600
    (tmp_path / "g.yaml").write_text(GRAPH)
    place = ["--ledger", str(tmp_path / "ledger")]
    done = CliRunner().invoke(app, ["run", str(tmp_path / "g.yaml"), "--run-id", "r", "--sign", str(private), *place])
    assert done.exit_code == 0, done.output
    assert do("verify", "r", *place, "--root-key", public).exit_code == 0
    again = do("key", private)
    assert (again.exit_code, "File exists" in again.output) == (2, True)
    wrong = CliRunner().invoke(app, ["run", str(tmp_path / "g.yaml"), "--sign", str(public), *place])
    assert (wrong.exit_code, "must be an Ed25519 private key" in wrong.output) == (2, True)


def test_show_says_whether_a_record_is_signed(ledger: Path) -> None:
    assert "signature: unsigned" in do("show", "plain", "/a", "--ledger", ledger).output
    assert f"signature: of a driver appointed by {ROOT.public}" in do("show", "signed", "/a", "--ledger", ledger).output

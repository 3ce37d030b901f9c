"""Files that are none: each command that reads one says so in a sentence, and ends with 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from decurion_cli.main import app
from decurion_cli.rewriting import rewrite
from decurion_crds.errors import InputError

EXAMPLE = Path(__file__).parents[2] / "examples" / "tickets"


def _file(kind: str, folder: Path) -> Path:
    path = folder / "odd.yaml"
    match kind:
        case "folder":
            path.mkdir()
        case "binary":
            path.write_bytes(b"\x97\x00\xff" * 100)
        case _:
            pass
    return path


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
@pytest.mark.parametrize(
    "command",
    [
        ("validate",),
        ("graph", "show"),
        ("schema", "--graph"),
        ("node", "test", str(EXAMPLE), "count", "--snapshot"),
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_read_is_named_in_one_sentence(
    kind: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    path = _file(kind, tmp_path)
    done = CliRunner().invoke(app, [*command, str(path)])
    said = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.exit_code == 2, done.output
    assert len([line for line in said if str(path) in line]) == 1, said
    assert not any(word in done.stderr for word in ("Errno", "codec", "Traceback")), said


def test_where_one_file_cannot_be_written_none_is(tmp_path: Path) -> None:
    first, gone = tmp_path / "a.yaml", tmp_path / "gone.yaml"
    first.write_text("before")
    with pytest.raises(InputError, match=r"gone\.yaml cannot be written \(.*\), and no file was"):
        rewrite({first: "after", gone: "after"})
    assert first.read_text() == "before"

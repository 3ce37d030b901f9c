"""`decurion graph show --effective`: the manifest with its defaults is the same graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from decurion_cli.main import app
from decurion_cli.manifests import compiled

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["tickets", "router", "filings"])
def test_the_effective_manifest_is_the_same_graph(name: str, tmp_path: Path) -> None:
    folder = EXAMPLES / name
    done = CliRunner().invoke(app, ["graph", "show", str(folder), "--effective"])
    assert done.exit_code == 0, done.output
    others = [file for file in folder.glob("*.yaml") if "kind: TaskGraph\n" not in file.read_text()]
    file = tmp_path / "effective.yaml"
    file.write_text(done.stdout)
    assert compiled([file, *others], "", use_run=False)[1].digest == compiled([folder], "", use_run=False)[1].digest


def test_what_is_left_unsaid_is_said() -> None:
    done = CliRunner().invoke(app, ["graph", "show", str(EXAMPLES / "tickets"), "--effective"])
    spec = yaml.safe_load(done.stdout)["spec"]
    (read,) = spec["templates"][0]["nodes"]
    assert (read["timeoutSeconds"], read["onFailure"], read["retry"]) == (600.0, "fail", {"transient": 3, "repair": 2})
    triage = next(node for node in spec["nodes"] if node["name"] == "triage")
    assert (triage["map"]["tolerate"], triage["map"]["failFast"]) == ({"count": 0}, False)


def test_the_effective_manifest_is_yaml_or_json_and_nothing_else() -> None:
    def shown(*options: str) -> Result:
        return CliRunner().invoke(app, ["graph", "show", str(EXAMPLES / "tickets"), *options])

    assert yaml.safe_load(shown("--effective", "-o", "yaml").stdout) == json.loads(
        shown("--effective", "-o", "json").stdout
    )
    assert shown("--effective", "-o", "mermaid").exit_code == 2
    assert "--effective" in shown("-o", "yaml").stderr

"""Another MCPServer in the place of the one that a graph names: by a run among the files, and by --bind."""

from __future__ import annotations

from pathlib import Path

import pytest

from decurion_cli.checking import check
from decurion_cli.manifests import compiled, read
from decurion_crds.errors import InputError
from decurion_crds.findings import CompileFailed

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: orders}
spec:
  nodes:
    - name: find
      tool: {server: desk, name: find, arguments: {customer: c1}}
  output: {count: nodes.find.output.count}
"""
SERVER = """
apiVersion: decurion.dev/v1alpha1
kind: MCPServer
metadata: {name: NAME}
spec:
  url: https://NAME.example.com/mcp
  tools:
    - name: find
      input: {customer: {type: string}}
      output: {FIELD: {type: integer}}
"""
RUN = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraphRun
metadata: {name: one}
spec: {graph: orders, overrides: {servers: {desk: other}}}
"""


def server(name: str, field: str = "count") -> str:
    return SERVER.replace("NAME", name).replace("FIELD", field)


def files(folder: Path, *texts: str) -> list[Path]:
    (folder / "all.yaml").write_text("---".join((GRAPH, *texts)))
    return [folder / "all.yaml"]


def url(paths: list[Path], **bind: str) -> str:
    return str(compiled(paths, "", bind=bind)[1].servers["desk"]["url"])


def test_a_run_and_the_command_line_put_another_server_in_place(tmp_path: Path) -> None:
    both = (server("desk"), server("other"), server("third"))
    assert url(files(tmp_path, *both)) == "https://desk.example.com/mcp"
    assert url(files(tmp_path, *both), desk="third") == "https://third.example.com/mcp"
    assert url(files(tmp_path, *both, RUN)) == "https://other.example.com/mcp"
    assert url(files(tmp_path, *both, RUN), desk="third") == "https://third.example.com/mcp"
    assert url(files(tmp_path, server("third")), desk="third") == "https://third.example.com/mcp"


def test_tools_that_do_not_fit_are_findings(tmp_path: Path) -> None:
    with pytest.raises(CompileFailed) as failed:
        url(files(tmp_path, server("desk"), server("other", "number"), RUN))
    (finding,) = failed.value.findings
    assert (finding.path, finding.code) == ("output.count", "EXPR-FIELD")
    gone = server("other").replace("name: find", "name: search")
    with pytest.raises(CompileFailed) as failed:
        url(files(tmp_path, server("desk"), gone, RUN))
    assert "find" in failed.value.findings[0].message


def test_a_server_that_is_not_there_or_not_used_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="desk=other: there is no MCPServer named other among the files"):
        url(files(tmp_path, server("desk"), RUN))
    with pytest.raises(InputError, match="dsk: the graph orders uses no MCPServer of this name, it uses desk"):
        url(files(tmp_path, server("desk"), server("other")), dsk="other")
    wrong = RUN.replace("{desk:", "{dsk:")
    found = check(read(files(tmp_path, server("desk"), server("other"), wrong))).findings
    assert [(one.code, one.path, one.message) for one in found] == [
        ("REF-MISSING", "overrides.servers.dsk", "the graph orders uses no MCPServer dsk; did you mean desk?")
    ]

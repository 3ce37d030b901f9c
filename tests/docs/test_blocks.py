"""Every block of every page is what it says: manifests are compiled, commands run, output compared. See `pages`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cluster.api_server import ApiServer
from decurion_cli.main import app
from pages import ROOT, Block, blocks, commands, pages
from shell import Shell, fits
from specs import AROUND, graph_of

ALL = {page: blocks(page) for page in pages()}
LANGUAGES = {"yaml", "json", "console", "python", "text"}
FLAGS = {"refused", "cluster", "spec"}
OPTIONS = {"file", "uses", "exit", "no-test", "tested-by"}
FINDING = re.compile(r"^\S+\.ya?ml:\d+:\d+ .*\[[A-Z0-9-]+\]", re.MULTILINE)


def chosen(wanted: Callable[[Block], bool]) -> Any:
    found = [block for page in ALL.values() for block in page if wanted(block) and not block.excused]
    return pytest.mark.parametrize("block", found, ids=[block.where for block in found])


def page_ids(wanted: Callable[[Block], bool]) -> Any:
    found = [page for page, own in ALL.items() if any(wanted(block) and not block.excused for block in own)]
    return pytest.mark.parametrize("page", found, ids=[str(page.relative_to(ROOT)) for page in found])


def is_whole(block: Block) -> bool:
    return "spec" in block.flags or re.search(r"^apiVersion:", block.text, re.MULTILINE) is not None


def next_to(block: Block) -> Block:
    own = ALL[block.page]
    return own[own.index(block) + 1]


def files(page: Path) -> dict[str, str]:
    """Texts of the files of a page by their names."""
    return {block.options["file"]: block.text for block in ALL[page] if "file" in block.options}


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_every_block_has_a_test_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = [
        f"{block.where}: {block.language or 'no language'} {sorted(block.flags)} {sorted(block.options)}"
        for page in ALL.values()
        for block in page
        if block.language not in LANGUAGES or block.flags - FLAGS or block.options.keys() - OPTIONS
    ]
    assert unknown == []
    untested = [(b.where, b.options["no-test"]) for page in ALL.values() for b in page if "no-test" in b.options]
    assert all(len(reason) > 10 for _, reason in untested)
    with capsys.disabled():
        for where, reason in untested:
            print(f"\nnot tested: {where}: {reason}", end="")


def test_every_test_that_a_block_names_exists() -> None:
    for block in (b for page in ALL.values() for b in page if "tested-by" in b.options):
        file, _, test = block.options["tested-by"].partition("::")
        source = ROOT / file
        assert source.is_file(), f"{block.where}: there is no {file}"
        assert re.search(rf"^(async )?def {test}\(", source.read_text(), re.MULTILINE), f"{block.where}: no {test}"


@chosen(lambda block: block.language == "yaml" and is_whole(block))
def test_manifests_are_what_validate_says_of_them(block: Block, tmp_path: Path) -> None:
    name = block.options.get("file", "graph.yaml")
    write(tmp_path, name, graph_of(block))
    uses = [str(AROUND)] if "spec" in block.flags else []
    for used in block.options.get("uses", "").split(",") if "uses" in block.options else []:
        write(tmp_path, used, files(block.page).get(used) or (ROOT / used).read_text())
        uses.append(str(tmp_path / used))
    done = CliRunner().invoke(app, ["validate", "--strict", *uses, str(tmp_path / name)])
    if "refused" in block.flags:
        assert done.exit_code == 2, done.output
        assert done.stderr.replace(f"{tmp_path}/", "") == next_to(block).text
    else:
        assert done.exit_code == 0, done.output


@chosen(lambda block: block.language == "yaml" and not is_whole(block))
def test_lines_of_manifests_stand_so_in_a_file_that_is_compiled(block: Block) -> None:
    sources = [file.read_text() for file in sorted((ROOT / "examples").rglob("*.yaml"))]
    sources += [b.text for page in ALL.values() for b in page if b.language == "yaml" and is_whole(b)]
    lines = textwrap.dedent(block.text).rstrip().split("\n")
    assert any(_stands_in(lines, source.split("\n")) for source in sources), f"{block.where} is in no example"


def test_the_graph_of_the_readme_is_that_of_its_example() -> None:
    [graph] = [block for block in ALL[ROOT / "README.md"] if block.language == "yaml"]
    assert graph.text == (ROOT / "examples" / "tickets" / "graph.yaml").read_text()


def test_the_finding_of_the_readme(tmp_path: Path) -> None:
    [said] = [block.text for block in ALL[ROOT / "README.md"] if FINDING.search(block.text)]
    shutil.copytree(ROOT / "examples" / "tickets", tmp_path / "tickets")
    graph = tmp_path / "tickets" / "graph.yaml"
    graph.write_text(graph.read_text().replace("one.topic for", "one.topik for"))
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "tickets")])
    assert done.exit_code == 2
    assert done.stderr.replace(f"{tmp_path}/tickets/", "") == said


def test_the_finding_of_the_index_of_errors(tmp_path: Path) -> None:
    [said] = [b.text for b in ALL[ROOT / "docs" / "errors" / "index.md"] if FINDING.search(b.text)]
    shutil.copy(ROOT / "tests" / "crds" / "refused" / "expressions" / "field.yaml", tmp_path / "graph.yaml")
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "graph.yaml")])
    assert done.stderr.replace(f"{tmp_path}/", "") == said


def _stands_in(lines: list[str], source: list[str]) -> bool:
    length = len(lines)
    return any(
        textwrap.dedent("\n".join(source[at : at + length])).rstrip().split("\n") == lines
        for at in range(len(source) - length + 1)
    )


@chosen(lambda block: block.language == "text")
def test_findings_that_are_shown_are_those_of_a_block(block: Block) -> None:
    own = ALL[block.page]
    at = own.index(block)
    refused = at > 0 and "refused" in own[at - 1].flags
    assert refused or not FINDING.search(block.text), f"{block.where}: show the manifest, refused, in front of it"


def of(language: str) -> list[Block]:
    return [block for own in ALL.values() for block in own if block.language == language and not block.excused]


def test_json_is_json() -> None:
    for block in of("json"):
        json.loads(block.text)


def test_python_runs(tmp_path: Path) -> None:
    for block in of("python"):
        folder = tmp_path / f"{block.page.stem}-{block.line}"
        folder.mkdir()
        for name, text in files(block.page).items():
            write(folder, name, text)
        done = subprocess.run(
            [sys.executable, "-c", block.text], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{block.where}: {done.stderr}"


def play(shell: Shell, page: Path, wanted: Callable[[Block], bool]) -> None:
    """Run the commands of a page, and compare what they say with what it shows."""
    for name, text in files(page).items():
        shell.write(name, text)
    for block in (b for b in ALL[page] if wanted(b) and not b.excused):
        ends = []
        for command, shown in commands(block):
            status, said = shell.run(command)
            ends.append(status)
            allowed = {0, int(block.options.get("exit", "0"))}
            assert status in allowed, f"{block.where}: `{command}` ended with {status}: {said}{shell.told()}"
            assert not shown or fits(shown, said), (
                f"{block.where}: `{command}` is shown to say\n{shown}\nand says\n{said}"
            )
        if expected := int(block.options.get("exit", "0")):
            assert expected in ends, f"{block.where}: no command ended with {expected}"


def is_command(block: Block) -> bool:
    return block.language == "console" and "cluster" not in block.flags


def session(page: Path, folder: Path) -> None:
    with Shell(folder) as shell:
        play(shell, page, is_command)


@pytest.fixture(scope="module")
def sessions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[None]]]:
    """The sessions of the pages that are asked for, two at a time."""
    asked = [
        item.callspec.params["page"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_commands_do_what_the_page_says"
    ]
    with ThreadPoolExecutor(2) as workers:
        yield {page: workers.submit(session, page, tmp_path_factory.mktemp(page.stem)) for page in asked}


@page_ids(is_command)
def test_commands_do_what_the_page_says(page: Path, sessions: dict[Path, Future[None]]) -> None:
    sessions[page].result()


def on_cluster(block: Block) -> bool:
    return block.language == "console" and "cluster" in block.flags


@page_ids(on_cluster)
def test_commands_on_a_cluster_do_what_the_page_says(
    page: Path, api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    env = {name: api_server.env[name] for name in ("KUBECACHEDIR", "KUBERC")}
    kubeconfig = tmp_path / "kubeconfig"
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = namespace
    kubeconfig.write_text(yaml.safe_dump(config))
    with Shell(tmp_path / "page", env={**env, "KUBECONFIG": str(kubeconfig), "DOCS_NAMESPACE": namespace}) as shell:
        shell.command("kubectl", f'exec {api_server.kubectl_command} "$@"')
        play(shell, page, on_cluster)

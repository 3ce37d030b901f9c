"""The numbers of the page about limits are those of the code."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import typer

from decurion_cli.main import app
from decurion_crds.compile.assemble import TIMEOUTS
from decurion_crds.compiled import Retry
from pages import ROOT

PAGE = (ROOT / "docs" / "limits.md").read_text()
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "bytes": 1, "characters": 1, "s": 1}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| what |")
]
NAMED = [row for row in ROWS if ":" in row[2]]
SET = {row[0]: row for row in ROWS if ":" not in row[2]}


def number(text: str) -> float:
    found = re.fullmatch(r"([\d,]+) ?([A-Za-z]*)", text)
    assert found, f"{text} is no number with a unit"
    return int(found[1].replace(",", "")) * UNITS[found[2]]


@pytest.mark.parametrize("row", NAMED, ids=[row[2].strip("`") for row in NAMED])
def test_a_limit_is_that_of_the_code(row: list[str]) -> None:
    place, _, name = row[2].strip("`").partition(":")
    package, _, module = place.partition(".")
    assert number(row[1]) == getattr(importlib.import_module(f"decurion_{package}.{module}"), name)


def default(command: str, option: str) -> Any:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    return next(parameter.default for parameter in found.params if option in parameter.opts)


def test_defaults_are_those_of_the_code() -> None:
    shown = {row[0]: number(row[1]) for row in SET.values()}
    assert shown == {
        "a `transform` or a `switch`": TIMEOUTS["transform"],
        "a `code` node": TIMEOUTS["code"],
        "one try of an `llm` node": TIMEOUTS["llm"],
        "a `map` or a `graph`: a week": TIMEOUTS["map"],
        "further tries after a failure of transport or server": Retry().transient,
        "further tries after an answer that breaks its schema": Retry().repair,
        "waiting for a store that does not answer": default("run", "--store-patience"),
        "silence after which a runner is given up": default("worker serve", "--lease"),
    }
    assert TIMEOUTS["switch"] == TIMEOUTS["transform"]
    assert TIMEOUTS["graph"] == TIMEOUTS["map"]

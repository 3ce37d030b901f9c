"""The pages about the operator name what there is."""

import re
from pathlib import Path

from decurion_operator.cache import GITOPS_MARKS
from decurion_operator.conditions import Reason
from decurion_operator.metrics import Meter

DOCS = Path(__file__).parents[2] / "docs"


def test_every_metric_is_on_the_page_of_the_operator_and_no_other() -> None:
    there = {family.name for family in Meter().registry.collect()}
    named = {n.removesuffix("_total") for n in re.findall(r"`(decurion_\w+)`", (DOCS / "operator.md").read_text())}
    assert named == there


def test_every_mark_of_a_gitops_tool_is_named() -> None:
    page = (DOCS / "operator.md").read_text()
    assert [mark for mark in sorted(GITOPS_MARKS) if f"`{mark}`" not in page] == []


def test_the_reasons_on_the_pages_are_those_of_the_operator() -> None:
    reasons = {value for name, value in vars(Reason).items() if name.isupper()}
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "pools.md").read_text(), re.MULTILINE)
    modes = {"External", "Local"}
    assert set(rows) - modes <= reasons
    assert {Reason.LOCAL_POOLS_OFF, Reason.POOL_PROCESS_ENDED, Reason.POOL_UNREACHABLE} <= set(rows)

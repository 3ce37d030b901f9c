"""A fixture for tests of single nodes; pytest finds it where Decurion is installed.

def test_a_fact_is_found(decurion_node):
    outcome = decurion_node("graph.yaml", "extractOne.read", {"text": "Revenue was 5."})
    assert outcome.output == {"facts": [{"field": "revenue", "value": 5}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from decurion_worker.rehearsal import Outcome


class NodeTest(Protocol):
    """Runs one node of a file with a snapshot: see `decurion node test`."""

    def __call__(
        self,
        file: str | Path,
        node: str,
        snapshot: Mapping[str, Any] | None = None,
        *,
        graph: str = "",
        bind: Mapping[str, str] | None = None,
    ) -> Outcome: ...


@pytest.fixture
def decurion_node(request: pytest.FixtureRequest) -> NodeTest:
    """Runs one node of a file, which is looked for beside the test; what came of it has status, output and writes."""
    folder = request.path.parent

    def run(
        file: str | Path,
        node: str,
        snapshot: Mapping[str, Any] | None = None,
        *,
        graph: str = "",
        bind: Mapping[str, str] | None = None,
    ) -> Outcome:
        from decurion_cli.node import try_node

        return try_node(folder / file, node, snapshot or {}, graph=graph, bind=bind)

    return run

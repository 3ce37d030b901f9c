"""How long a run's ledger is kept goes from its resource into the body that opens it."""

from __future__ import annotations

import pytest

from decurion_operator.ingress import OpenRequest
from decurion_worker.drivers import open_request
from decurion_worker.errors import BadInput


@pytest.mark.parametrize("seconds", [None, 0, 86400, -1])
def test_the_retention_of_a_run_reaches_its_driver(seconds: int | None) -> None:
    request = OpenRequest("u", "n", "ns", "d", 1, "2026-01-01T00:00:00Z", "c", retention=seconds)
    assert open_request(request.to_json()).retention == seconds


def test_a_retention_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="retentionSeconds"):
        open_request({"uid": "u", "name": "n", "retentionSeconds": -2})

"""`retryFrom` and `forkFrom`, from the operator's request to the driver's."""

from __future__ import annotations

from typing import Any

import pytest

from decurion_operator.ingress import OpenRequest
from decurion_worker.drivers import open_request
from decurion_worker.earlier import Earlier


def body(**more: Any) -> dict[str, Any]:
    request = OpenRequest("u-2", "again", "ns", "d", 1, "2026-01-01T00:00:00Z", "c", **more)
    return request.to_json()


@pytest.mark.parametrize(
    ("more", "earlier", "given"),
    [
        ({}, None, {}),
        ({"retry_from": "u-1"}, Earlier("u-1", "retry"), None),
        ({"fork_from": ("u-1", "/each[00001]")}, Earlier("u-1", "fork", "/each[00001]"), None),
        ({"fork_from": ("u-1", "/a"), "input": {"k": 1}}, Earlier("u-1", "fork", "/a"), {"k": 1}),
    ],
)
def test_a_driver_hears_of_the_earlier_run_and_has_its_input_where_none_is_given(
    more: dict[str, Any], earlier: Earlier | None, given: Any
) -> None:
    request = open_request(body(**more))
    assert (request.earlier, request.input) == (earlier, given)

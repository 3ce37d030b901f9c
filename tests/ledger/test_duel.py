"""Ten processes that fight for one run on a real S3 server, through a proxy with faults, killed, stopped and woken."""

import os
from pathlib import Path

import pytest

from cluster.s3 import S3Server
from soak.duel import Duel

SECONDS = 25.0 if os.environ.get("CI") else 8.0


@pytest.mark.s3
async def test_nothing_promised_is_lost_and_no_two_own_a_run(s3_server: S3Server, tmp_path: Path) -> None:
    duel = Duel(s3_server, tmp_path, 1, SECONDS, every=0.8, stall=1.0, stop=4.0)
    assert await duel.fight() == []
    for what in ("promised", "fences", "SIGKILL", "SIGSTOP"):
        assert duel.met[what], f"{what} never happened: {duel.met}"

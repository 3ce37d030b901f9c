"""Every session of the interpreter has a clock and randomness of its own."""

from __future__ import annotations

import re
from pathlib import Path

import decurion_crds

SOURCES = sorted(Path(decurion_crds.__file__).parents[2].glob("*/decurion_*/**/*.py"))


def test_no_session_is_opened_without_an_os_policy() -> None:
    assert any("decurion_worker" in str(source) for source in SOURCES)
    for source in SOURCES:
        for call in re.finditer(r"\.checkout\(((?:[^()]|\([^()]*\))*)\)", source.read_text()):
            assert "os_policy=" in call[1], f"{source.name}: {call[0]}"
    assert {source.name for source in SOURCES if ".checkout(" in source.read_text()} <= {"session.py", "check.py"}

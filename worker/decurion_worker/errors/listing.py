"""How a message lists many things."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SHOWN = 3
"""How many problems a message names; all of them are in the attribute."""


def listed(problems: Sequence[str]) -> str:
    shown = "; ".join(problems[:MAX_SHOWN])
    rest = len(problems) - MAX_SHOWN
    return f"{shown}; and {rest} more" if rest > 0 else shown


def short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[:limit] + "…"

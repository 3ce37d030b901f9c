"""Lengths of time as people write them: 30d, 12h, 90m."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from decurion_crds.errors import InputError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TEXT = re.compile(r"(\d{1,9})([smhdw])")


def seconds(text: str, option: str) -> int:
    """Raises `InputError`, naming `option`."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{option} {text}: write a number and s, m, h, d or w, such as 30d")
    return int(found[1]) * _UNITS[found[2]]


def day(at: float | None) -> str:
    """A moment in Unix seconds, in UTC, to the minute."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M") if at is not None else ""


def size(count: int) -> str:
    """Bytes as people read them."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return ""

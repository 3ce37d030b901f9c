"""Our own functions of the language, as source for the interpreter and as declarations for the checker."""

from __future__ import annotations

RUN = """
import json as _json
from datetime import date as _date

def json(x):
    return _json.dumps(x, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

def parse_json(s):
    return _json.loads(s)

def date(s):
    d = _date.fromisoformat(s[:10])
    y = d.year - (1 if d.month < 3 else 0)
    m = d.month + (9 if d.month < 3 else -3)
    day = 365 * y + y // 4 - y // 100 + y // 400 + (153 * m + 2) // 5 + d.day - 306
    return {"year": d.year, "month": d.month, "day": d.day, "ordinal": day, "text": d.isoformat()}

def truncate(s, n):
    return s if len(s) <= n else s[: max(n - 1, 0)] + "\\u2026"[: max(n, 0)]
"""
"""`date` counts days as `datetime.date.toordinal` does: 1 for 0001-01-01."""

CHECK = """
Date = TypedDict("Date", {"year": int, "month": int, "day": int, "ordinal": int, "text": str})
def json(x: object) -> str: ...
def parse_json(s: str) -> Any: ...
def date(s: str) -> Date: ...
def truncate(s: str, n: int) -> str: ...
"""

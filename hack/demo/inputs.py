"""The example's input, for as many documents as wanted and wherever they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "filings"
DATA = EXAMPLE / "data"


def documents(count: int | None = None) -> bytes:
    """The first `count` lines of the documents; all, when it is None."""
    lines = (DATA / "documents.jsonl").read_bytes().splitlines(keepends=True)
    return b"".join(lines[:count])


def graph_input(documents_uri: str) -> bytes:
    """The graph's input with the documents at `documents_uri`."""
    value: dict[str, Any] = orjson.loads((DATA / "input.json").read_bytes())
    return orjson.dumps({**value, "documents": documents_uri}, option=orjson.OPT_INDENT_2)

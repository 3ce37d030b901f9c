"""Paths of a ledger as people write them: an item of a map by its key or its number, a round by its number."""

from __future__ import annotations

import re

from decurion_ledger.path import branch_key

_BY_KEY = re.compile(r"\[(?!k:)(?!\d+\])([^\]/]+)\]")
_ITEM = re.compile(r"\[(\d+)\]")
_ROUND = re.compile(r"@(\d+)(?=[/!#]|$)")


def written(path: str) -> str:
    """The path in the ledger for one as people write it: `/each[ACME]/read`, `/each[3]`, `/refine@2`, `each[3]`.

    A key of digits alone is the position of an item, and goes by that.
    """
    if not path:
        return path
    path = path if path.startswith("/") else f"/{path}"
    path = _ROUND.sub(lambda found: f"@{found[1].zfill(3)}", _ITEM.sub(lambda found: f"[{found[1].zfill(5)}]", path))
    return _BY_KEY.sub(lambda found: f"[k:{branch_key(found[1])}]", path)

"""Paths of a ledger as people write them: an item of a map by its key."""

from __future__ import annotations

import re

from decurion_ledger.path import branch_key

_BY_KEY = re.compile(r"\[(?!k:)(?!\d+\])([^\]/]+)\]")


def written(path: str) -> str:
    """The path in the ledger for one in which items are named by their keys: `/each[ACME]/read`.

    A key of digits alone is the position of an item, and goes by that.
    """
    return _BY_KEY.sub(lambda found: f"[k:{branch_key(found[1])}]", path)

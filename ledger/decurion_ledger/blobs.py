"""Storing blobs that others may be about to delete.

Blobs are named by their content, so that runs share them, and one that no run needs any more is deleted some day (see
`retention`). A writer that finds its blob there already makes it young again, unless it is young. A deletion that is
under way says in an object of `gc/sweeps/` what it deletes before it looks at ages for the last time:

    writer   finds X, old     writes X again    is X in a sweep? then waits for its end and writes X again
    sweep    announces X      looks at X again, and deletes it only when it is still as old as before

Whichever of the two looks second sees what the other wrote first. Everything that names a blob in a record has stored
it through here, or took it from a record of a run that is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson

from decurion_ledger.errors import NotFound
from decurion_ledger.layout import SWEEPS, blob_key
from decurion_ledger.patience import Clock
from decurion_ledger.stores.port import Put, Store

FRESH = 6 * 3600.0
"""A blob written within so many seconds is used as it is: far above what clocks differ by, far below `retention.HOLD`.
"""
SKEW = 900.0
"""Seconds that clocks may differ by, at most."""
_LOOK_AGAIN = 1.0


async def keep_blob(store: Store, sha: str, raw: bytes, *, clock: Clock, now: Callable[[], float] = time.time) -> None:
    """Store a blob. When this returns, it is there for as long as the run that names it.

    Raises the store's error; then the blob may be there.
    """
    key = blob_key(sha)
    if await store.put_new(key, raw) is Put.CREATED:
        return
    if now() - await _modified(store, key) >= FRESH:
        await store.put(key, raw)
    if await _is_swept(store, key, now()):
        while await _is_swept(store, key, now()):
            await clock.pause(_LOOK_AGAIN)
        await store.put(key, raw)


async def _modified(store: Store, key: str) -> float:
    try:
        return (await store.head(key)).modified
    except NotFound:
        return 0.0


async def _is_swept(store: Store, key: str, now: float) -> bool:
    async for info in store.list(SWEEPS):
        try:
            sweep = orjson.loads(await store.get(info.key))
        except NotFound:
            continue
        if now < sweep["until"] + SKEW and key in sweep["keys"]:
            return True
    return False

"""Secrets of the operator itself, in its own namespace: each is made at the first start, and never changed after."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable
from typing import Any

from decurion_operator.errors import Conflict, NotFound
from decurion_operator.gateway import Gateway
from decurion_operator.queue import Key

logger = logging.getLogger(__name__)


async def own_secret(
    gateway: Gateway, namespace: str, name: str, entry: str, *, make: Callable[[], bytes]
) -> bytes | None:
    """What stands in an entry of a Secret, which is made where there is none; None when it is not there or no base64.

    When several operators start at once, all have what the first of them made. Raises `ClusterError`s.
    """
    key = Key("Secret", namespace, name)
    try:
        found = await gateway.get(key)
    except NotFound:
        try:
            found = await gateway.create("Secret", namespace, _secret(name, {entry: make()}))
            logger.info("made the Secret %s/%s", namespace, name)
        except Conflict:
            found = await gateway.get(key)
    try:
        return base64.b64decode((found.get("data") or {})[entry], validate=True)
    except (KeyError, binascii.Error):
        return None


def _secret(name: str, entries: dict[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "immutable": True,
        "type": "Opaque",
        "data": {entry: base64.b64encode(content).decode() for entry, content in entries.items()},
    }

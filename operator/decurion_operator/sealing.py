"""The seal key: with it the keys of runs with sensitive values are encrypted where they lie.

It is made at the first start and lies in the Secret `decurion-seal-key` of the operator's own namespace. Drivers are
given it with each run that they open, and keep it in memory. Whoever deletes the Secret erases all runs that were
encrypted with it, once no driver has them open.
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import Any, Final

from decurion_ledger import SealKey
from decurion_ledger.errors import WrongSealKey
from decurion_operator.errors import Conflict, NotFound, StartError
from decurion_operator.gateway import Gateway
from decurion_operator.queue import Key

logger = logging.getLogger(__name__)

SECRET: Final = "decurion-seal-key"
ENTRY: Final = "seal.key"


async def seal_key(gateway: Gateway, namespace: str) -> SealKey:
    """The seal key of the operator whose own namespace this is, made where there is none.

    Raises `StartError` for a Secret that holds something else, and `ClusterError`s.
    """
    key = Key("Secret", namespace, SECRET)
    try:
        found = await gateway.get(key)
    except NotFound:
        try:
            found = await gateway.create("Secret", namespace, _secret(SealKey.generate()))
            logger.info("made the seal key %s/%s", namespace, SECRET)
        except Conflict:
            found = await gateway.get(key)
    return _read(found, namespace)


def _secret(key: SealKey) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET},
        "immutable": True,
        "type": "Opaque",
        "data": {ENTRY: base64.b64encode(key.to_text().encode()).decode()},
    }


def _read(found: dict[str, Any], namespace: str) -> SealKey:
    where = f"Secret {namespace}/{SECRET}, entry {ENTRY}"
    try:
        text = base64.b64decode((found.get("data") or {})[ENTRY], validate=True).decode("ascii")
        return SealKey.of_text(text, where)
    except (KeyError, binascii.Error, UnicodeDecodeError, WrongSealKey):
        raise StartError(
            f"{where}: it holds no seal key of 128 hexadecimal digits: restore it; deleting the Secret erases what is "
            "sensitive in all runs."
        ) from None

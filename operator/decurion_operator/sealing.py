"""The seal key: with it the keys of runs with sensitive values are encrypted where they lie.

It is made at the first start and lies in the Secret `decurion-seal-key` of the operator's own namespace. Drivers are
given it with each run that they open, and keep it in memory. Whoever deletes the Secret erases all runs that were
encrypted with it, once no driver has them open.
"""

from __future__ import annotations

from typing import Final

from decurion_ledger import SealKey
from decurion_ledger.errors import WrongSealKey
from decurion_operator.errors import StartError
from decurion_operator.gateway import Gateway
from decurion_operator.own_secrets import own_secret

SECRET: Final = "decurion-seal-key"
ENTRY: Final = "seal.key"


async def seal_key(gateway: Gateway, namespace: str) -> SealKey:
    """The seal key of the operator whose own namespace this is, made where there is none.

    Raises `StartError` for a Secret that holds something else, and `ClusterError`s.
    """
    where = f"Secret {namespace}/{SECRET}, entry {ENTRY}"
    content = await own_secret(gateway, namespace, SECRET, ENTRY, make=lambda: SealKey.generate().to_text().encode())
    try:
        return SealKey.of_text((content or b"").decode("ascii"), where)
    except (UnicodeDecodeError, WrongSealKey):
        raise StartError(
            f"{where}: it holds no seal key of 128 hexadecimal digits: restore it; deleting the Secret erases what is "
            "sensitive in all runs."
        ) from None

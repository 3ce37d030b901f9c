"""The root key: with it the operator appoints drivers, and whoever has its public part can tell who wrote a ledger.

The private key is made at the first start and lies in the Secret `decurion-root-key` of the operator's own namespace;
it never leaves this process. The public keys, that of every root key that this operator ever had, are in the
ConfigMap `decurion-root-keys` beside it. Deleting the Secret and starting the operator
anew changes the key; what was signed with the old one is verified with the old public key, which stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from decurion_ledger import Certificate, SigningKey, public_keys, public_pem
from decurion_ledger.errors import BadKeyFile
from decurion_operator.errors import Conflict, NotFound, StartError
from decurion_operator.gateway import Gateway
from decurion_operator.own_secrets import own_secret
from decurion_operator.queue import Key

SECRET: Final = "decurion-root-key"
PUBLISHED: Final = "decurion-root-keys"
PRIVATE_ENTRY: Final = "root.key"
PUBLIC_ENTRY: Final = "root.pem"
OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_TRIES: Final = 5


class Appointer:
    """Appoints drivers of `cluster` with the root key."""

    def __init__(self, root: SigningKey, *, cluster: str) -> None:
        self._root = root
        self._cluster = cluster

    @property
    def public(self) -> str:
        return self._root.public

    def certificates(self, keys: Sequence[str], *, run: str, leader_epoch: int) -> tuple[Certificate, ...]:
        """One for each of the public keys, for this run alone."""
        return tuple(
            self._root.certify(key, cluster=self._cluster, run=run, leader_epoch=leader_epoch)
            for key in dict.fromkeys(keys)
        )


async def root_key(gateway: Gateway, namespace: str) -> SigningKey:
    """The root key of the operator whose own namespace this is, made where there is none; its public part is published.

    Raises `StartError` for a Secret or ConfigMap that holds something else, and `ClusterError`s.
    """
    where = f"Secret {namespace}/{SECRET}, entry {PRIVATE_ENTRY}"
    content = await own_secret(gateway, namespace, SECRET, PRIVATE_ENTRY, make=lambda: SigningKey.generate().to_pem())
    try:
        root = SigningKey.from_pem(content or b"", where)
    except BadKeyFile:
        raise StartError(
            f"{where}: it holds no Ed25519 private key as PEM: restore it, or delete the Secret and start the operator "
            "again, which makes a new one."
        ) from None
    await _publish(gateway, namespace, root.public)
    return root


async def _publish(gateway: Gateway, namespace: str, public: str) -> None:
    key = Key("ConfigMap", namespace, PUBLISHED)
    for _ in range(_TRIES):
        try:
            found = await gateway.get(key)
        except NotFound:
            found = {}
        text = str((found.get("data") or {}).get(PUBLIC_ENTRY) or "")
        if public in _published(text, namespace):
            return
        data = {PUBLIC_ENTRY: text + public_pem(public)}
        try:
            if found:
                await gateway.merge(key, {"data": data}, version=found["metadata"]["resourceVersion"])
            else:
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PUBLISHED}, "data": data}
                await gateway.create("ConfigMap", namespace, body)
            return
        except Conflict:
            continue
    raise StartError(f"ConfigMap {namespace}/{PUBLISHED} changes all the time: let nobody else write it.")


def _published(text: str, namespace: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        return public_keys(text.encode(), PUBLISHED)
    except BadKeyFile:
        raise StartError(
            f"ConfigMap {namespace}/{PUBLISHED}, entry {PUBLIC_ENTRY}: it must hold public keys as PEM alone: "
            "restore it, or delete the ConfigMap and start the operator again."
        ) from None

"""Statements in DSSE envelopes: how what a run came to is told to tools that know nothing of ledgers.

Formats: in-toto attestation framework, envelope v1 (DSSE) with a Statement v1 as its payload. The signature is over
DSSE's own encoding, so that any tool that reads DSSE checks it with the driver's key; who appointed the driver says the
certificate beside it.
"""

from __future__ import annotations

import base64

from decurion_crds.canonical import Json, canonical
from decurion_ledger.signing import Certificate, SigningKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"


def envelope(statement: Json, *, key: SigningKey | None, certificate: Certificate | None) -> dict[str, Json]:
    """The envelope of a statement, signed by `key`; without one it has no signature."""
    payload = canonical(statement)
    signatures: list[Json] = []
    if key is not None and certificate is not None:
        signature = base64.b64encode(key.sign_raw(pre_authentication(PAYLOAD_TYPE, payload))).decode()
        signatures.append({"keyid": key.public, "sig": signature, "certificate": certificate.to_json()})
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": signatures,
    }


def pre_authentication(kind: str, payload: bytes) -> bytes:
    """What DSSE signs."""
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)

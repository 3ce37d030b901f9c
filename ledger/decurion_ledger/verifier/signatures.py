"""Who wrote a segment: the signature of its header, and the certificate of the key in the fence before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from decurion_ledger.verifier.form import canonical, unhex

_MEMBERS = {"cluster", "run", "leader_epoch", "key", "issuer", "signature"}


def is_signed(key: str, domain: str, data: bytes, signature: bytes) -> bool:
    return is_signed_raw(key, f"decurion/{domain}\0".encode() + data, signature)


def is_signed_raw(key: str, data: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(unhex(key)).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def certificate_fault(found: Any, *, run: str, leader_epoch: int, key: str, roots: tuple[str, ...]) -> str | None:
    """What is wrong with the certificate in a fence, as half a sentence; None for one that appoints the holder of `key`
    for this run under this leader epoch, issued by one of `roots` where there are any.
    """
    if not isinstance(found, Mapping) or found.keys() != _MEMBERS:
        return "it has not the members of a certificate"
    for name, wanted in (("run", run), ("leader_epoch", leader_epoch), ("key", key)):
        if found[name] != wanted:
            return f"its {name} is {found[name]}, the fence's {wanted}"
    issuer, signature = found["issuer"], found["signature"]
    if not isinstance(issuer, str) or not isinstance(signature, str):
        return "issuer and signature must be texts"
    if roots and issuer not in roots:
        return f"it was issued by {issuer}, which is none of the root keys given"
    signed = canonical({name: value for name, value in found.items() if name != "signature"})
    try:
        raw = unhex(signature)
    except ValueError:
        return "its signature is not hex"
    return None if is_signed(issuer, "certificate/v0", signed, raw) else f"it is not signed by its issuer {issuer}"

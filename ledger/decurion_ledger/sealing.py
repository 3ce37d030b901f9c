"""Values that are encrypted with the key of their run, and named by it.

    name     HMAC-SHA-256 over the folded canonical form, in place of the value hash: nobody without the key can try
             values until one has the name
    bytes    0x01, then AES-SIV (RFC 5297) of the stored form, behind which blanks fill up to a multiple of 64 bytes

AES-SIV needs no nonce: equal values of a run have equal names and bytes, so that what is written again after a crash is
the same. Both keys come of the run's key alone. Whoever destroys that destroys what was encrypted; records, hashes and
signatures stay as they are.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from decurion_ledger.errors import BlobCorrupt, WrongSealKey

SEALED = b"\x01"
"""The first byte of what is encrypted; no JSON begins with it."""
STEP = 64
_VALUE = [b"decurion/value"]


def is_sealed(raw: bytes) -> bool:
    return raw[:1] == SEALED


def as_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def of_text(text: str) -> bytes:
    return base64.b64decode(text)


@dataclass(frozen=True, slots=True)
class Seal:
    """The key of one run, 32 bytes. It is in no repr."""

    key: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Seal:
        return cls(secrets.token_bytes(32))

    @property
    def family(self) -> str:
        """What the runs that have this key have in common; it says nothing of the key."""
        return self._derived(b"family").hex()[:32]

    def commit(self, folded: bytes) -> str:
        """The name, in hex, of the value with this folded form."""
        return hmac.new(self._derived(b"commit"), folded, hashlib.sha256).hexdigest()

    def close(self, stored: bytes) -> bytes:
        blanks = b" " * (-len(stored) % STEP)
        return SEALED + self._cipher().encrypt(stored + blanks, _VALUE)

    def open(self, raw: bytes, name: str) -> bytes:
        """The stored form in `raw`. Raises `BlobCorrupt`, naming `name`, for what this key has not encrypted."""
        try:
            return self._cipher().decrypt(raw[1:], _VALUE).rstrip(b" ")
        except (InvalidTag, ValueError) as e:
            raise BlobCorrupt(name, "it was not encrypted with the key of its run, or was changed") from e

    def _cipher(self) -> AESSIV:
        return AESSIV(self._derived(b"seal", hashlib.sha512))

    def _derived(self, purpose: bytes, hash: object = hashlib.sha256) -> bytes:
        return hmac.digest(self.key, b"decurion/" + purpose + b"/v1", hash)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SealKey:
    """The key with which the keys of runs are encrypted where they lie, 64 bytes. It is in no repr."""

    key: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> SealKey:
        return cls(secrets.token_bytes(64))

    @classmethod
    def of_text(cls, text: str, where: str) -> SealKey:
        """Of its 128 hexadecimal digits. Raises `WrongSealKey`."""
        try:
            key = bytes.fromhex(text.strip())
        except ValueError:
            key = b""
        if len(key) != 64:
            raise WrongSealKey(f"{where} holds no seal key, which has 128 hexadecimal digits; name the right one")
        return cls(key)

    def to_text(self) -> str:
        return self.key.hex()

    @property
    def id(self) -> str:
        """Which key this is; it says nothing of the key."""
        return hmac.digest(self.key, b"decurion/seal-key/v1", hashlib.sha256).hex()[:16]

    def wrap(self, seal: Seal, run: str) -> bytes:
        return AESSIV(self.key).encrypt(seal.key, [b"decurion/run-key", run.encode()])

    def unwrap(self, wrapped: bytes, run: str) -> Seal:
        """Raises `WrongSealKey`."""
        try:
            return Seal(AESSIV(self.key).decrypt(wrapped, [b"decurion/run-key", run.encode()]))
        except (InvalidTag, ValueError):
            raise WrongSealKey(f"the key of run {run} was changed, and cannot be read; restore it") from None

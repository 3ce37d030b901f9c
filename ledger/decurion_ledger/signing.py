"""Keys: those of drivers, which sign what they write, and root keys, which say who was appointed to write.

A driver makes its key when it starts and keeps it in memory. Whoever appoints drivers, the operator of a cluster,
holds a root key and certifies the driver's key for one run and one leader epoch. All keys are Ed25519; public keys and
signatures are hex in JSON, and PEM in files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from decurion_crds.canonical import Json, canonical
from decurion_ledger.errors import BadKeyFile

SIGNATURE_BYTES = 64
CERTIFIED = "certificate/v0"
"""The domain under which a certificate is signed."""
_END = b"-----END "


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the holder of the root key `issuer` says: the holder of `key` may write the log of `run`, as a driver
    that was appointed under `leader_epoch` by `cluster`. Keys and the signature are hex.
    """

    cluster: str
    run: str
    leader_epoch: int
    key: str
    issuer: str
    signature: str

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Raises `ValueError` for what is none; the signature is not checked."""
        fields = {name: found.get(name) for name in cls.__slots__}
        epoch = fields["leader_epoch"]
        texts = [value for name, value in fields.items() if name != "leader_epoch"]
        if found.keys() != fields.keys() or type(epoch) is not int or not all(isinstance(v, str) for v in texts):
            raise ValueError("not a certificate: it has cluster, run, leader_epoch, key, issuer and signature")
        return cls(**found)

    def holds(self) -> bool:
        """Whether the issuer signed it. Who the issuer is must be compared elsewhere."""
        try:
            signature = bytes.fromhex(self.signature)
        except ValueError:
            return False
        return is_signed(self.issuer, CERTIFIED, self.signed(), signature)

    def signed(self) -> bytes:
        """The bytes that the signature covers."""
        return canonical({name: value for name, value in asdict(self).items() if name != "signature"})


class SigningKey:
    """A private key. It never leaves the process unless `to_pem` is asked for it; `repr` shows the public part."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        raw = private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.public = raw.hex()

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"

    @classmethod
    def generate(cls) -> Self:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes, where: str) -> Self:
        """The key in an unencrypted PEM file (PKCS 8). Raises `BadKeyFile`, naming `where`."""
        try:
            found = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise BadKeyFile(where, "it must be an Ed25519 private key as PEM, without a passphrase") from None
        if not isinstance(found, Ed25519PrivateKey):
            raise BadKeyFile(where, "its private key must be Ed25519")
        return cls(found)

    def to_pem(self) -> bytes:
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, domain: str, data: bytes) -> bytes:
        """The signature of `data` under `domain`, which keeps it from standing for anything else."""
        return self._private.sign(_message(domain, data))

    def sign_raw(self, data: bytes) -> bytes:
        """The signature of `data` as it is, for formats that keep kinds apart by themselves."""
        return self._private.sign(data)

    def certify(self, key: str, *, cluster: str, run: str, leader_epoch: int) -> Certificate:
        """The certificate, issued by this key, of the public key `key`."""
        bare = Certificate(cluster, run, leader_epoch, key, self.public, "")
        return Certificate(cluster, run, leader_epoch, key, self.public, self.sign(CERTIFIED, bare.signed()).hex())


@dataclass(frozen=True, slots=True)
class Signer:
    """How a writer signs: with `key`, for which `certify` gives the certificate under a leader epoch."""

    key: SigningKey
    certify: Callable[[int], Certificate]


def is_signed(public: str, domain: str, data: bytes, signature: bytes) -> bool:
    """Whether `signature` is that of `data` under `domain` by the key whose public part is `public`."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, _message(domain, data))
    except (InvalidSignature, ValueError):
        return False
    return True


def public_pem(public: str) -> str:
    """A public key as PEM."""
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, info).decode()


def public_keys(pem: bytes, where: str) -> tuple[str, ...]:
    """The public keys, in hex, of a file with one PEM block or more. Raises `BadKeyFile`, naming `where`."""
    found = []
    for block in pem.split(_END)[:-1]:
        begin = block.rfind(b"-----BEGIN ")
        kind = block[begin:].partition(b"\n")[0].removeprefix(b"-----BEGIN ")
        try:
            key = serialization.load_pem_public_key(block[max(begin, 0) :] + _END + kind + b"\n")
        except (ValueError, UnsupportedAlgorithm):
            raise BadKeyFile(where, "it must hold public keys as PEM and nothing else") from None
        if not isinstance(key, Ed25519PublicKey):
            raise BadKeyFile(where, "its public keys must be Ed25519")
        raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        found.append(raw.hex())
    if not found:
        raise BadKeyFile(where, "it holds no public key as PEM; give a file that begins with BEGIN PUBLIC KEY")
    return tuple(found)


def _message(domain: str, data: bytes) -> bytes:
    return f"decurion/{domain}\0".encode() + data

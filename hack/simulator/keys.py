"""The keys of the simulated world, each made from its name, so that a seed gives the same bytes in every process."""

from __future__ import annotations

import hashlib
from functools import cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from decurion_ledger import Signer, SigningKey


@cache
def key(name: str) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


ROOT = key("the operator")
FORGER = key("somebody else")


def signer(driver: str, run: str) -> Signer:
    """A driver that the operator appointed for this run, under whichever leader epoch it opens it."""
    mine = key(driver)
    return Signer(mine, lambda epoch: ROOT.certify(mine.public, cluster="simulated", run=run, leader_epoch=epoch))

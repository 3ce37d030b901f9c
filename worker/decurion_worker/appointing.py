"""Who appointed a driver to write a run's log: certificates that came with the request, or a root key of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from decurion_ledger import Certificate, Signer, SigningKey
from decurion_worker.errors import BadInput, NotCertified

HERE = "local"
"""The cluster in a certificate that a person issued with a key file."""

Appointed = Sequence[Certificate] | SigningKey | None
"""Certificates of which one is for this driver's key; a root key, which appoints whoever opens the run in this process;
or None: the log is unsigned."""


def signer(
    appointed: Appointed, key: SigningKey, *, driver: str, run: str, leader_epoch: int, take_over: bool
) -> Signer | None:
    """How a driver signs the log of `run` with its `key`. Raises `NotCertified` where certificates are there but none
    for this key, `BadInput` where that one is not what it has to be.
    """
    if appointed is None:
        return None
    if isinstance(appointed, SigningKey):
        root = appointed
        return Signer(key, lambda epoch: root.certify(key.public, cluster=HERE, run=run, leader_epoch=epoch))
    mine = next((certificate for certificate in appointed if certificate.key == key.public), None)
    if mine is None:
        raise NotCertified(run, driver, key.public)
    if (mine.run, mine.leader_epoch) != (run, leader_epoch) or take_over or not mine.holds():
        raise BadInput(["certificates: that of this driver must be signed, for this run and for leaderEpoch"])
    return Signer(key, lambda epoch: mine)

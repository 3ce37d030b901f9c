"""What a log says about itself: its tail, its owner, whether it is closed; the same for whoever replays
it.
"""

from __future__ import annotations

from decurion_crds.canonical import canonical, merkle_root
from decurion_ledger.errors import LogCorrupt
from decurion_ledger.layout import slot_key
from decurion_ledger.record import Record, RecordType
from decurion_ledger.segment import FORMAT, Header, Segment, start_hash
from decurion_ledger.signing import Certificate


class Tail:
    """The state of a run's log after the segments that were absorbed, from slot 0 on, without a gap.

    `next` is the first free slot, `head` the hash of the last segment, `epoch` and `leader_epoch` those of
    the last fence (`highest` the highest leader epoch of all), `fences` their number, `closed` whether a
    close record was seen.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.next = 0
        self.head = start_hash(run)
        self.epoch = 0
        self.leader_epoch = 0
        self.highest = 0
        self.fences = 0
        self.closed = False
        self.provenance: bytes | None = None
        """The statement in the close record, as it is kept beside `final`."""
        self._owner: Header | None = None
        self._hashes: list[bytes] = []

    def absorb(self, segment: Segment) -> None:
        """Take the next segment in. Raises `LogCorrupt` when it does not continue this log by the rules
        of ownership.
        """
        header = segment.header
        where = slot_key(self.run, self.next)
        if (header.run, header.slot) != (self.run, self.next):
            raise LogCorrupt(where, f"the segment belongs to run {header.run}, slot {header.slot}")
        if header.previous != self.head:
            raise LogCorrupt(where, "the segment does not follow the one before it")
        if self.closed:
            raise LogCorrupt(where, "the log goes on behind its close record")
        for record in segment.records:
            if record.type == RecordType.FENCE:
                self._fence(record, header, where)
            elif record.type == RecordType.CLOSE:
                self.closed = True
                if "provenance" in record.envelope:
                    self.provenance = canonical(record.envelope["provenance"])
        owner = self._owner
        if owner is None or _writer(header) != _writer(owner):
            raise LogCorrupt(where, f"driver {header.driver} wrote with epoch {header.epoch} that it does not own")
        self.next += 1
        self.head = segment.hash
        self._hashes.append(bytes.fromhex(segment.hash))

    def final(self) -> bytes:
        """The content of the `final` object of this closed log, the same whoever writes it."""
        return canonical(
            {
                "format": FORMAT,
                "run": self.run,
                "slot": self.next - 1,
                "head": self.head,
                "root": merkle_root("final/v0", self._hashes),
            }
        )

    def _fence(self, record: Record, header: Header, where: str) -> None:
        epoch, leader = record.envelope.get("epoch"), record.envelope.get("leader_epoch")
        if not isinstance(epoch, int) or not isinstance(leader, int) or epoch <= self.epoch or epoch != header.epoch:
            raise LogCorrupt(where, f"a fence has epoch {epoch} after {self.epoch}")
        certificate = record.envelope.get("certificate")
        if (certificate["key"] if isinstance(certificate, dict) else "") != header.key:
            raise LogCorrupt(where, "a fence has not the certificate of the key of its segment")
        self._owner = header
        self.epoch = epoch
        self.leader_epoch = leader
        self.highest = max(self.highest, leader)
        self.fences += 1


def fence(epoch: int, leader_epoch: int, driver: str, certificate: Certificate | None = None) -> Record:
    """The record by which a driver takes the log. `certificate` is that of its key."""
    envelope = {"epoch": epoch, "leader_epoch": leader_epoch, "driver_id": driver}
    if certificate is not None:
        envelope["certificate"] = certificate.to_json()
    return Record.event(RecordType.FENCE, "/", envelope)


def _writer(header: Header) -> tuple[int, str, str, str]:
    return header.epoch, header.driver, header.nonce, header.key

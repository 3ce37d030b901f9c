"""Errors of the ledger. The tree is the policy of whoever catches them.

DecurionError
└── LedgerError
    ├── StoreError                one request to a store; says which one and what the store answered
    │   ├── Unavailable           repeat the same request with back-off
    │   ├── Conflict              nothing was decided: repeat the same request
    │   ├── NotFound              no object under this key
    │   ├── NotOffered            the store has no such request, or no such condition
    │   ├── StoreRefused          the store does not keep what the ledger rests on, or holds another format
    │   └── Blocked               somebody must remove the cause: repeated for a moment, then told
    │       ├── AccessDenied      the credentials, or a permission
    │       ├── CredentialsExpired
    │       ├── BucketMissing     the bucket, or the address
    │       ├── StoreFull         the disk, or the quota
    │       ├── ReadOnly          the mount
    │       ├── RootReplaced      the folder is not the one that was written to before
    │       ├── ClockSkewed       the clock of this machine, or that of the store
    │       └── TlsFailed         certificates
    ├── StoreMisconfigured        the client of a store cannot be made from what the environment says
    ├── StoreUnknown              the last segment may or may not be in the log: park, re-open later
    ├── Fenced                    another driver owns the run; final for this writer
    ├── StaleLeader               the opener was appointed before the one that wrote the log's last fence
    ├── RunNotFound               no log under this run id
    ├── RecordNotFound            the run has no record at that path
    ├── RunClosed                 the log has its close record and takes no more
    ├── RunOpen                   the log has no close record yet
    ├── RunDeleted                its retention was over, or somebody deleted it
    ├── ArchiveUnreadable         a file is none that holds a run
    ├── CopyDiffers               another object stands where a copy would be put
    ├── WriterStopped             the writer was stopped by its owner
    ├── LogCorrupt                what is stored breaks the format or the chain
    │   ├── RecordCorrupt
    │   ├── SegmentCorrupt
    │   ├── NewerFormat           written by a release that came later
    │   └── BlobCorrupt
    ├── ValueMissing              a record does not hold the value that is asked for
    ├── ValueSealed               a value is encrypted, and its run's key is not at hand
    ├── KeyMissing                a run has no key here: it has nothing sensitive, or was copied without
    ├── KeyErased                 a run's key was destroyed
    ├── KeyDamaged                an object is not the key of a run that it should be
    ├── WrongSealKey              another seal key is needed, or what is given is none
    ├── ValueTooWide              the lists of a value exceed what one evaluation may load
    ├── RecordTooLarge            a record exceeds a segment
    ├── WorkspaceTooLarge         a workspace exceeds its quota
    ├── WorkspaceBusy             files of a folder change while they are read
    └── DuplicatePath             two results at one path
InputError (and LedgerError)
├── BadPath, BadKey, BadRunId, BadStoreUri, BadKeyFile
├── BadTree                       a file that no workspace may hold
├── OutOfScope                    a path that a node may not read or write
├── NotJson                       a value that JSON cannot hold
└── MissingExtra                  an optional library is not installed

Every error keeps its fields as `args`, so it survives pickling between processes.
"""

from __future__ import annotations

from typing import ClassVar

from decurion_crds.errors import DecurionError, InputError


class LedgerError(DecurionError):
    """Root of the ledger's errors."""


class StoreError(LedgerError):
    """A request to a store failed. `request` is its verb and full address, `reason` the store's answer."""

    advice: ClassVar[str] = "see the reason given by the store"

    def __init__(self, request: str, reason: str) -> None:
        super().__init__(request, reason)
        self.request = request
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.request}: {self.reason}; {self.advice}."


class Unavailable(StoreError):
    """The store did not answer, or asked to wait. The request may have been carried out."""

    advice = "see that the store runs and can be reached from here, then repeat the request, which may have got through"


class Conflict(StoreError):
    """Another operation on the key ran at the same time; nothing was decided."""

    advice = "nothing was decided, repeat the same request"


class NotFound(StoreError):
    advice = "check the key and the root of the store"


class NotOffered(StoreError):
    advice = "use a store that offers it, `decurion storage check` says what one offers"


class StoreRefused(StoreError):
    """A store that the ledger cannot rest on. `request` is the store's address."""

    advice = "no run is written to it, `decurion storage check` says more"


class Blocked(StoreError):
    """Repeating does not help until somebody has removed the cause. What the store acknowledged before is not in
    doubt.
    """

    advice = "remove the cause, then go on"


class AccessDenied(Blocked):
    advice = "give credentials that may read and write under the ledger's root"


class CredentialsExpired(Blocked):
    advice = "renew the credentials"


class BucketMissing(Blocked):
    advice = "create or restore the bucket, or correct the ledger's address"


class StoreFull(Blocked):
    advice = "make room, or raise the limit"


class ReadOnly(Blocked):
    advice = "mount it writable, or name another folder"


class RootReplaced(Blocked):
    advice = "mount or restore the folder that holds the ledger"


class ClockSkewed(Blocked):
    advice = "set the clock of this machine, or that of the store"


class TlsFailed(Blocked):
    advice = "let AWS_CA_BUNDLE name the authority of the store's certificate, or correct the endpoint"


class StoreMisconfigured(LedgerError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the S3 client cannot be made: {self.reason}; correct the AWS_… and DECURION_S3_… variables, or the "
            "profile they name."
        )


class StoreUnknown(LedgerError):
    """The fate of the segment sent to `slot` is unknown. Nothing of it was acknowledged."""

    def __init__(self, run: str, slot: int, reason: str) -> None:
        super().__init__(run, slot, reason)
        self.run = run
        self.slot = slot
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"run {self.run}: whether slot {self.slot} was written is unknown ({self.reason}); "
            f"open the run again when the store answers."
        )


class Fenced(LedgerError):
    """Another driver wrote `slot`. `epoch`, `leader_epoch` and `driver` are those of its segment's last known
    fence.
    """

    def __init__(self, run: str, slot: int, epoch: int, leader_epoch: int, driver: str) -> None:
        super().__init__(run, slot, epoch, leader_epoch, driver)
        self.run = run
        self.slot = slot
        self.epoch = epoch
        self.leader_epoch = leader_epoch
        self.driver = driver

    def __str__(self) -> str:
        return (
            f"run {self.run}: driver {self.driver} took over at slot {self.slot} with epoch {self.epoch}; "
            f"stop this run here and open it again only with a leader epoch above {self.leader_epoch}."
        )


class StaleLeader(LedgerError):
    def __init__(self, run: str, given: int, highest: int) -> None:
        super().__init__(run, given, highest)
        self.run = run
        self.given = given
        self.highest = highest

    def __str__(self) -> str:
        return (
            f"run {self.run}: leader epoch {self.given} is below {self.highest}, the highest in the log; "
            f"renew the leadership and open with a higher one, or take the run over on purpose."
        )


class RunNotFound(LedgerError):
    def __init__(self, run: str, store: str = "the store") -> None:
        super().__init__(run, store)
        self.run = run
        self.store = store

    def __str__(self) -> str:
        return (
            f"run {self.run} has no log in {self.store}; list its runs with `decurion ledger ls`, or correct the "
            "ledger's address."
        )


class RecordNotFound(LedgerError):
    def __init__(self, run: str, path: str) -> None:
        super().__init__(run, path)
        self.run = run
        self.path = path

    def __str__(self) -> str:
        return f"run {self.run} has no record at {self.path}; `decurion ledger ls {self.run}` lists its paths."


class RunClosed(LedgerError):
    def __init__(self, run: str, slot: int) -> None:
        super().__init__(run, slot)
        self.run = run
        self.slot = slot

    def __str__(self) -> str:
        return f"run {self.run} was closed at slot {self.slot}; start a new run to go on."


class RunOpen(LedgerError):
    def __init__(self, run: str, why: str) -> None:
        super().__init__(run, why)
        self.run = run
        self.why = why

    def __str__(self) -> str:
        return f"run {self.run} is still open, and {self.why}; let it end, or cancel it, first."


class RunDeleted(LedgerError):
    def __init__(self, run: str, store: str) -> None:
        super().__init__(run, store)
        self.run = run
        self.store = store

    def __str__(self) -> str:
        return f"run {self.run} was deleted from {self.store}; start a new run, or read it in a copy."


class CopyDiffers(LedgerError):
    def __init__(self, run: str, where: str) -> None:
        super().__init__(run, where)
        self.run = run
        self.where = where

    def __str__(self) -> str:
        return (
            f"run {self.run}: {self.where} holds other bytes than the run that is copied; name another place, or find "
            "out with `decurion ledger verify` which of the two is right."
        )


class ArchiveUnreadable(LedgerError):
    def __init__(self, file: str, why: str) -> None:
        super().__init__(file, why)
        self.file = file
        self.why = why

    def __str__(self) -> str:
        return f"{self.file} is no archive of a run: {self.why}; name a file that `decurion ledger copy` has written."


class WriterStopped(LedgerError):
    def __init__(self, run: str, slot: int) -> None:
        super().__init__(run, slot)
        self.run = run
        self.slot = slot

    def __str__(self) -> str:
        return f"run {self.run}: its writer stopped before slot {self.slot} was answered; open it again."


class LogCorrupt(LedgerError):
    """`where` names the object, `problem` what is wrong with it."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; verify the ledger and restore the object from a copy."


class RecordCorrupt(LogCorrupt):
    pass


class SegmentCorrupt(LogCorrupt):
    pass


class NewerFormat(LogCorrupt):
    """A segment of a format that this release does not know. `known` is the newest that it does."""

    def __init__(self, where: str, number: int, known: int) -> None:
        LedgerError.__init__(self, where, number, known)
        self.where = where
        self.number = number
        self.known = known
        self.problem = f"it has format {number}"

    def __str__(self) -> str:
        return f"{self.where}: it has format {self.number}, and this release reads {self.known}; use a newer release."


class BlobCorrupt(LogCorrupt):
    pass


class ValueMissing(LedgerError):
    def __init__(self, vhash: str) -> None:
        super().__init__(vhash)
        self.vhash = vhash

    def __str__(self) -> str:
        return f"the record holds no value {self.vhash}; ask the record whose core names it."


class ValueSealed(LedgerError):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"the value {self.name} is sensitive, and encrypted with the key of its run; read it with that."


class KeyMissing(LedgerError):
    def __init__(self, run: str, uri: str) -> None:
        super().__init__(run, uri)
        self.run = run
        self.uri = uri

    def __str__(self) -> str:
        return (
            f"run {self.run} has no key at {self.uri}: nothing in it is sensitive, or it was copied without its key; "
            "then copy it again with --with-keys."
        )


class KeyErased(LedgerError):
    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return (
            f"what is sensitive in run {self.run} was erased, so nothing can go on from it; it can be shown and "
            "verified, for anything else start a new run."
        )


class KeyDamaged(LedgerError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"{self.key}: it holds no key of a run; restore it from a copy, or erase the run."


class WrongSealKey(LedgerError):
    """`why` is the sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"{self.why}."


class ValueTooWide(LedgerError):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        size, limit = f"{self.size / 2**20:.1f}", f"{self.limit / 2**20:.0f}"
        return (
            f"its lists have {size} MiB, more than the {limit} MiB that are loaded at once; map over the list, or "
            "read less of it."
        )


class RecordTooLarge(LedgerError):
    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(path, size, limit)
        self.path = path
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"the record at {self.path} exceeds {self.limit} bytes ({self.size}); keep its values in blobs."


class WorkspaceTooLarge(LedgerError):
    """`what` is counted: bytes, files or folders above a file."""

    def __init__(self, what: str, found: int, limit: int) -> None:
        super().__init__(what, found, limit)
        self.what = what
        self.found = found
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the workspace would have {self.found} {self.what}, more than its limit of {self.limit}; write less, or "
            "raise the limit."
        )


class WorkspaceBusy(LedgerError):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"the file {self.path} changes while it is read; end what writes it, then scan again."


class DuplicatePath(LedgerError):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"two results at {self.path}; a path has at most one, verify the ledger."


class _BadInput(InputError, LedgerError):
    """A text or value that its giver must correct."""

    def __init__(self, given: str, rule: str) -> None:
        super().__init__(given, rule)
        self.given = given
        self.rule = rule

    def __str__(self) -> str:
        return f"{self.given!r}: {self.rule}."


class BadPath(_BadInput):
    pass


class BadTree(_BadInput):
    pass


class OutOfScope(_BadInput):
    pass


class BadKey(_BadInput):
    pass


class BadRunId(_BadInput):
    pass


class BadStoreUri(_BadInput):
    pass


class BadKeyFile(_BadInput):
    pass


class NotJson(_BadInput):
    pass


class MissingExtra(_BadInput):
    pass

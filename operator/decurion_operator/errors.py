"""Errors of the operator.

    DecurionError
    └── OperatorError
        ├── StartError            the process cannot start; a person has to act
        ├── ClusterError          what the API server answered
        │   ├── NotFound          404
        │   ├── Conflict          409: the version test failed, or the object exists
        │   ├── TooLarge          the object would pass the store's limit
        │   ├── Refused           any other 4xx: asking again does not help
        │   └── ClusterUnavailable  no answer, 429 or 5xx: ask again later
        ├── SecretNotUsable       a Secret is missing, not labelled for use, or lacks the key
        └── PoolError             what a pool's ingress answered
            ├── PoolUnavailable   no answer, or an answer that is none of the protocol: ask again later
            ├── StoreUnavailable  503: the pool cannot reach its ledger store
            │   └── StoreRefused  503: the store does not keep what the ledger rests on; the message says what
            ├── BundleMissing     404: the pool holds no bundle of that digest
            ├── RunUnknown        404: the pool has no such run open
            ├── StaleLeader       409: the log has seen a higher leader epoch
            ├── NotCertified      409: none of the certificates is for the key of the driver
            └── PoolRefused       any other 4xx; `code` says which (BadInput, SourceMissing, …)

The tree is the retry table: `ClusterUnavailable`, `PoolUnavailable` and `StoreUnavailable` are tried again with
back-off, `Conflict` at once from what is then observed; the others change nothing until somebody acts.
"""

from __future__ import annotations

from decurion_crds.errors import DecurionError


class OperatorError(DecurionError):
    """Any error of the operator."""


class StartError(OperatorError):
    """The operator cannot start; the message says what to do."""


class ClusterError(OperatorError):
    """The API server did not do what was asked. `status` is the HTTP status, 0 when there was no answer; `said` its own
    message, if it gave one."""

    def __init__(self, message: str, *, status: int = 0, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = said


class NotFound(ClusterError):
    """The object does not exist, or no longer."""


class Conflict(ClusterError):
    """The object has another version than the caller saw, or exists already."""


class TooLarge(ClusterError):
    """The object as it would be stored is beyond what the API server or its store accepts."""


class Refused(ClusterError):
    """The API server refused the request; the same request will be refused again."""


class ClusterUnavailable(ClusterError):
    """The API server gave no answer, or asked to come back later."""


class SecretNotUsable(OperatorError):
    """A Secret that a resource names cannot be used. The message never tells missing from not labelled."""


class PoolError(OperatorError):
    """A pool's ingress did not do what was asked. `code` is the name of the error in the protocol."""

    code = "PoolError"


class PoolUnavailable(PoolError):
    """The ingress gave no answer, refused the token, or answered something that is not of the protocol."""

    code = "PoolUnavailable"


class StoreUnavailable(PoolError):
    """The pool cannot reach its ledger store."""

    code = "StoreUnavailable"


class StoreRefused(StoreUnavailable):
    """The pool does not write to its ledger store: it ignores conditions, or holds another format."""

    code = "StoreRefused"


class BundleMissing(PoolError):
    """The pool's store holds no compiled graph of that digest."""

    code = "BundleMissing"


class RunUnknown(PoolError):
    """No driver of the pool has that run."""

    code = "RunUnknown"


class StaleLeader(PoolError):
    """The run's log has seen a higher leader epoch, `highest`."""

    code = "StaleLeader"

    def __init__(self, message: str, *, highest: int) -> None:
        super().__init__(message)
        self.highest = highest


class NotCertified(PoolError):
    """None of the certificates is for the driver's `key`."""

    code = "NotCertified"

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class PoolRefused(PoolError):
    """The ingress refused the request; the same request will be refused again. `code` is the protocol's name."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code

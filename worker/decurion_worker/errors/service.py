"""Errors of calls to a driver, and of drivers; nothing of them is an attempt of a node."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from decurion_crds.compiled import FINALLY
from decurion_crds.errors import DecurionError, InputError
from decurion_crds.findings import did_you_mean
from decurion_worker.errors.listing import listed, short


class ServiceError(DecurionError):
    """A call to a driver could not be done, or a driver cannot go on. The class's name is the code of the protocol."""


class BadInput(ServiceError, InputError):
    """What the caller sent cannot be used. `findings` has one sentence for each fault, beginning with its place."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__(listed(findings))
        self.findings = tuple(findings)


class BundleInvalid(ServiceError, InputError):
    """The bytes sent under a digest are no compiled graph, or another one."""

    def __init__(self, digest: str, why: str) -> None:
        super().__init__(f"bundle {digest}: {why}; compile the graph again and send it under its own digest")
        self.digest = digest


class BundleMissing(ServiceError):
    """No compiled graph of that digest is stored."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"bundle {digest}: the pool does not hold it; send it to /bundles/{digest} first")
        self.digest = digest


class RunExists(ServiceError, InputError):
    """A run that is to be new has the id of one that the ledger holds."""

    def __init__(self, run: str, ledger: str) -> None:
        super().__init__(f"run {run} is in {ledger} already; go on with --resume {run}, or choose another id")
        self.run = run


class EarlierRunError(ServiceError, InputError):
    """What a run is to take of the earlier run `run` cannot be taken."""

    def __init__(self, run: str, message: str) -> None:
        super().__init__(f"run {run}: {message}")
        self.run = run


class EarlierMissing(EarlierRunError):
    """The ledger does not hold the run that is to be taken up."""

    def __init__(self, run: str, ledger: str) -> None:
        super().__init__(run, f"{ledger} does not hold it, so nothing can be taken from it; list what it holds")


class EarlierCollected(EarlierRunError):
    """The retention of the run that is to be taken up is over: it is about to be deleted, or was."""

    def __init__(self, run: str) -> None:
        super().__init__(run, "its retention is over, so nothing can be taken from it; begin a new run of its graph")


class EarlierOpen(EarlierRunError):
    """The run that is to be taken up has not ended."""

    def __init__(self, run: str) -> None:
        super().__init__(run, "it has not ended; wait for its end, or cancel it, and take from it then")


class EarlierDiffers(EarlierRunError):
    """A retry is of the same graph and input."""

    def __init__(self, run: str, what: str) -> None:
        super().__init__(
            run, f"it has another {what}, and a retry has the same; leave the {what} as it was, or fork it"
        )


class NothingFailed(EarlierRunError):
    """There is nothing to retry."""

    def __init__(self, run: str) -> None:
        super().__init__(run, "it succeeded, so there is nothing to retry; fork it at the path that is to run again")


class PathNotRun(EarlierRunError):
    """A fork names what is to run again by a path of the earlier run."""

    def __init__(self, run: str, path: str, known: Collection[str] = ()) -> None:
        meant = did_you_mean(path, known)
        hint = f"did you mean {meant}?" if meant else "name a node, a branch or a round, such as /extract[00003]/read"
        if path.partition("/")[2].partition("/")[0] == FINALLY:
            hint = "what finally did is never taken; name a node, a branch or a round of what runs before it"
        super().__init__(run, f"there is nothing at {path!r} that could run again; {hint}")
        self.path = path


class CannotListen(ServiceError):
    """The ingress cannot have its address."""

    def __init__(self, place: str, reason: str, *, advice: str) -> None:
        super().__init__(f"{place} cannot be listened on: {reason}; {advice}")
        self.place = place


class RunUnknown(ServiceError):
    """The driver has no such run."""

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run}: it is not open here; open it first")
        self.run = run


class DriverUnknown(ServiceError):
    """There is no driver of that name."""

    def __init__(self, driver: str) -> None:
        super().__init__(f"driver {driver}: this pool has none of that name; list them at /drivers")
        self.driver = driver


class DriverUnavailable(ServiceError):
    """A driver does not answer now; it is being replaced, or is overloaded."""

    def __init__(self, driver: str) -> None:
        super().__init__(f"driver {driver}: it does not answer; try again in a few seconds")
        self.driver = driver


class RunOnTrial(ServiceError):
    """A run that may be what ends the driver waits while another one is tried."""

    def __init__(self, run: str, tried: str) -> None:
        super().__init__(
            f"run {run}: the driver ended again and again, and of the runs that may be the cause {tried} is tried "
            "first; open this one again in a while"
        )
        self.run = run
        self.tried = tried


class NotCertified(ServiceError):
    """None of the certificates that came is for the key of the driver that is to write the log. `key` is that one."""

    def __init__(self, run: str, driver: str, key: str) -> None:
        super().__init__(
            f"run {run}: no certificate is for the key {key} of driver {driver}; certify that key for this run and "
            "open it again"
        )
        self.key = key
        self._given = (run, driver, key)

    def __reduce__(self) -> tuple[type[NotCertified], tuple[str, str, str]]:
        return type(self), self._given


class LogCorrupt(ServiceError):
    """A log holds a record that the run's graph cannot have."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}; verify the log with `decurion ledger verify`")
        self.path = path


class RunWaits(Exception):
    """A run waits for people, and nobody who could answer is here. Nothing is wrong, and nothing is lost."""

    def __init__(self, run: str, path: str, message: str, more: int) -> None:
        others = f", and {more} more" if more else ""
        super().__init__(f"run {run} waits for people at {path}{others}: {short(message, 200)}")
        self.run = run
        self.path = path


class RunLetGo(ServiceError):
    """This driver stopped working on a run that has not ended: another took it over, or the store stayed away."""

    def __init__(self, run: str, why: str) -> None:
        super().__init__(f"run {run} has not ended; what is finished is kept: {why}")
        self.run = run
        self.why = why

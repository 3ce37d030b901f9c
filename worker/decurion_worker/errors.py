"""Errors of the worker. The tree is the policy: where an error hangs says what is done about it.

DecurionError
├── WorkError                    a node's attempt failed; becomes a record, never ends a process
│   ├── Transient                tried again here: 3 times, 1/2/4 s with jitter, Retry-After honoured
│   │   ├── RateLimited
│   │   ├── ModelUnavailable
│   │   └── ModelTimeout
│   ├── Repairable               the model's answer broke its schema: 2 times, the model sees schema and errors
│   │   └── OutputInvalid
│   ├── Replannable              the approach failed: once more, with the list of what was tried
│   ├── Violation                a contract was broken by something that gives the same again
│   │   └── OutputBroken
│   ├── BudgetExceeded           a limit is used up
│   └── Terminal                 nothing helps; a reason a person can act on
│       ├── ExpressionFailure, TimedOut, ModelRefused, AnswerCut, SecretMissing
│       └── DuplicateKey, SourceInvalid, SourceMissing, SourceRefused
├── RunUnknown, DriverUnknown, DriverUnavailable, RunLetGo, BundleMissing    answers of a driver
├── LogCorrupt                   a log holds what its graph cannot have
└── InputError
    ├── BadInput                 the run's input breaks the graph's `input`
    └── BundleInvalid            a compiled graph is none, or is another one

Every error keeps its fields as `args`, so it survives pickling between processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from decurion_crds.canonical import Json
from decurion_crds.errors import DecurionError, InputError


class WorkError(DecurionError):
    """An attempt at a node failed. `klass` is the branch of the tree and `code` the class: both go into the ledger."""

    klass: ClassVar[str] = "Terminal"

    @property
    def code(self) -> str:
        return type(self).__name__


class Transient(WorkError):
    """May work the next time. `retry_after` is what the other side asked for, in seconds."""

    klass = "Transient"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after)
        self.message = message
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message


class RateLimited(Transient):
    """The model server asked to slow down."""


class ModelUnavailable(Transient):
    """The model server did not answer, broke off, or said that it cannot now."""


class ModelTimeout(Transient):
    """The model server did not answer in time."""


class Repairable(WorkError):
    klass = "Repairable"


class OutputInvalid(Repairable):
    """A model's answer breaks its schema. `errors` are the complaints, `raw` the answer."""

    def __init__(self, errors: Sequence[str], raw: str) -> None:
        super().__init__(list(errors), raw)
        self.errors = list(errors)
        self.raw = raw

    def __str__(self) -> str:
        return f"the model's answer does not fit the node's output: {'; '.join(self.errors[:5])}"


class Replannable(WorkError):
    klass = "Replannable"


class Violation(WorkError):
    klass = "Violation"


class OutputBroken(Violation):
    """What a deterministic node returned breaks its declared output."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        super().__init__(path, list(problems))
        self.path = path
        self.problems = list(problems)

    def __str__(self) -> str:
        return f"what it returned does not fit its output: {'; '.join(self.problems[:5])}"


class BudgetExceeded(WorkError):
    klass = "BudgetExceeded"


class Terminal(WorkError):
    klass = "Terminal"


class ExpressionFailure(Terminal):
    """An expression or code failed while it ran."""

    def __init__(self, path: str, name: str, message: str) -> None:
        super().__init__(path, name, message)
        self.path, self.name, self.message = path, name, message

    def __str__(self) -> str:
        return self.message


class TimedOut(Terminal):
    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(path, seconds)
        self.path, self.seconds = path, seconds

    def __str__(self) -> str:
        return f"it ran longer than its timeoutSeconds ({self.seconds:g} s); raise it, or make the node smaller"


class ModelRefused(Terminal):
    """The model server refused the request itself. `status` is HTTP's."""

    def __init__(self, model: str, status: int, reason: str, advice: str) -> None:
        super().__init__(model, status, reason, advice)
        self.model, self.status, self.reason, self.advice = model, status, reason, advice

    def __str__(self) -> str:
        return f"model {self.model} refused the request ({self.status}: {self.reason}); {self.advice}"


class AnswerCut(Terminal):
    """The answer ended at the token limit."""

    def __init__(self, model: str, tokens: int) -> None:
        super().__init__(model, tokens)
        self.model, self.tokens = model, tokens

    def __str__(self) -> str:
        return (
            f"the answer of model {self.model} was cut at its token limit after {self.tokens} tokens; "
            "raise parameters.max_tokens, or ask for less"
        )


class SecretMissing(Terminal):
    def __init__(self, name: str, key: str) -> None:
        super().__init__(name, key)
        self.name, self.key = name, key

    def __str__(self) -> str:
        return (
            f"secret {self.name} has not come with its key {self.key}; check that it exists and carries the label "
            'decurion.dev/use: "true"'
        )


class DuplicateKey(Terminal):
    def __init__(self, path: str, key: Json, first: int, second: int) -> None:
        super().__init__(path, key, first, second)
        self.path, self.key, self.first, self.second = path, key, first, second

    def __str__(self) -> str:
        return f"items {self.first} and {self.second} have the same key {self.key!r}; give each item a key of its own"


class SourceInvalid(Terminal):
    def __init__(self, uri: str, line: int, reason: str) -> None:
        super().__init__(uri, line, reason)
        self.uri, self.line, self.reason = uri, line, reason

    def __str__(self) -> str:
        return f"{self.uri} line {self.line}: {self.reason}; mend the line"


class SourceMissing(Terminal):
    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.uri = uri

    def __str__(self) -> str:
        return f"{self.uri} does not exist; check the address, or put the file there"


class SourceRefused(Terminal):
    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(uri, reason)
        self.uri, self.reason = uri, reason

    def __str__(self) -> str:
        return f"{self.uri} is not read: {self.reason}"


class RunUnknown(DecurionError):
    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return f"no driver here has run {self.run}; open it first"


class DriverUnknown(DecurionError):
    def __init__(self, driver: str) -> None:
        super().__init__(driver)
        self.driver = driver

    def __str__(self) -> str:
        return f"there is no driver {self.driver}; GET /drivers lists them"


class DriverUnavailable(DecurionError):
    def __init__(self, driver: str) -> None:
        super().__init__(driver)
        self.driver = driver

    def __str__(self) -> str:
        return f"driver {self.driver} is being started again; call once more in a few seconds"


class RunLetGo(DecurionError):
    """A driver let go of a run that has not ended. `why` begins with the ledger's error class."""

    def __init__(self, run: str, why: str) -> None:
        super().__init__(run, why)
        self.run, self.why = run, why

    def __str__(self) -> str:
        return f"run {self.run} is not finished, but this process let go of it: {self.why}"


class BundleMissing(DecurionError):
    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest

    def __str__(self) -> str:
        return f"the graph {self.digest} is not stored here; PUT it to /bundles first"


class LogCorrupt(DecurionError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"the record at {self.path} cannot belong to this graph: {self.reason}; verify the ledger"


class BadInput(InputError):
    """`findings` are all faults, one sentence each."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__(list(findings))
        self.findings = list(findings)

    def __str__(self) -> str:
        return "; ".join(self.findings)


class BundleInvalid(InputError):
    def __init__(self, digest: str, reason: str) -> None:
        super().__init__(digest, reason)
        self.digest, self.reason = digest, reason

    def __str__(self) -> str:
        return f"the body is not the graph {self.digest}: {self.reason}"

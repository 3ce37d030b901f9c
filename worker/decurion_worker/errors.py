"""The errors of this package. The upper half of the tree is the retry policy of a node's attempt.

DecurionError                      (decurion_crds.errors)
├── WorkError                      an attempt of a node failed; `klass` and `code` go into the ledger
│   ├── Transient                  tried again here: 3 times, 1/2/4 s with jitter, Retry-After honoured
│   │   ├── RateLimited            the model's server asks to slow down
│   │   ├── ModelUnavailable       no answer, or an answer that is none: refused, reset, 5xx, garbage
│   │   ├── ModelTimeout           no whole answer within the call's deadline
│   │   ├── ToolUnavailable        a tool server could not be reached, broke off, or failed
│   │   └── ToolTimeout            no answer of a tool within the call's deadline
│   ├── Repairable                 asked again, 2 times: the model sees the schema and what is wrong
│   │   ├── OutputInvalid          the answer breaks the node's schema
│   │   │   └── OutputTruncated    the answer stops at the token limit
│   │   └── ToolArgumentsInvalid   the arguments of a call break the tool's schema
│   ├── Replannable                the approach failed: a fresh attempt that knows what was tried
│   │   ├── ToolFailed             a tool reports that it failed
│   │   ├── AgentGaveUp            an agent answers, and does not go on
│   │   ├── FailuresInRow          all that an agent tries fails
│   │   └── RepeatedCalls          an agent makes one and the same call again and again
│   ├── Violation                  a contract is broken: recorded, and not tried again
│   │   ├── OutputBroken           a result that no model wrote breaks the node's schema
│   │   ├── ArtefactMissing        a run leaves no file for one of its artefacts
│   │   └── ToolResultInvalid      what a tool gave is no result, or breaks its schema
│   ├── BudgetExceeded             a limit is used up: stop softly
│   │   ├── LimitUsedUp            of a run, a template, a node or an agent
│   │   │   ├── TokenLimit         its tokens
│   │   │   ├── CostLimit          its dollars
│   │   │   ├── ToolCallLimit      its calls of tools
│   │   │   └── StepLimit          its answers of models
│   │   └── SecondsLimit           an agent did not finish in its time
│   └── Terminal                   nothing helps; the message says what a person can do
│       ├── ModelRefused           the server, or the model, will not answer this request
│       ├── ModelMisconfigured     the LLM resource cannot be used as it is
│       ├── ToolRefused            a tool server will not carry out this call
│       ├── ToolMisconfigured      tools cannot be called here
│       ├── EffectInDoubt          nobody knows whether a call that must not be repeated was carried out
│       ├── Rejected               a person said no
│       ├── ApprovalTimeout        nobody answered in time
│       ├── TooFewEndedWell        a node waits for more of others than can end well
│       ├── SecretMissing          a secret that a model or tool server needs did not come
│       ├── SecretInvalid          a secret cannot be sent in a header
│       ├── ExpressionFailure      an expression or code failed
│       ├── TimedOut               the node exceeded its time
│       ├── LoopExhausted          a loop ran all its rounds in vain
│       ├── OutputTooLarge         an answer exceeds what is read
│       ├── ValueTooLarge          a value is wider than one evaluation may load, or than any value may be
│       ├── SourceMissing          a file or object to read does not exist
│       ├── SourceRefused          a file or object may not, or cannot, be read
│       ├── SourceInvalid          a source, or a line of it, is not what it has to be
│       ├── SourceChanged          a file or object is not what it was when it was listed
│       ├── DuplicateKey           two items of a map have one key
│       ├── WorkspaceRefused       files that no workspace may hold, or that exceed its quota
│       ├── WorkspaceConflict      items of a map made different things of one file
│       ├── RunnerLost             the runner died under this item again and again
│       └── DriverCrashLoop        the driver died with this run again and again
└── ServiceError                   a call to a driver, or a driver, failed; nothing of it is an attempt
    ├── BadInput                   (also InputError) what the caller sent cannot be used
    ├── BundleInvalid              (also InputError) a compiled graph is none, or not the one that was named
    ├── BundleMissing              no compiled graph of that digest is stored
    ├── CannotListen               the ingress cannot have its address
    ├── EarlierRunError            (also InputError) what a run is to take of an earlier one cannot be taken
    │   ├── EarlierMissing         the ledger does not hold that run
    │   ├── EarlierCollected       that run is over, and deleted soon
    │   ├── EarlierOpen            that run has not ended
    │   ├── EarlierDiffers         that run has another graph or input
    │   ├── NothingFailed          that run succeeded, so there is nothing to retry
    │   └── PathNotRun             nothing of that run has this path
    ├── NotCertified               nobody certified the key of this driver for the run
    ├── RunExists                  (also InputError) a new run has the id of one that the ledger holds
    ├── RunUnknown                 this driver has no such run
    ├── DriverUnknown              there is no such driver
    ├── DriverUnavailable          the driver does not answer now
    ├── RunOnTrial                 another run is tried first: one of them may be what ends the driver
    ├── LogCorrupt                 a log holds a record that its graph cannot have
    └── RunLetGo                   the run goes on elsewhere, or later
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from decurion_crds.canonical import Json
from decurion_crds.errors import DecurionError, InputError
from decurion_crds.v1alpha1.limits import dollars

MAX_SHOWN = 3
"""How many problems a message names; all of them are in the attribute."""


class WorkError(DecurionError):
    """An attempt of a node failed.

    `klass` names the branch of the tree, which decides what happens next; `code` names the mistake. Both are persisted
    names. The text is one sentence with the remedy, and never holds a secret.
    """

    klass: ClassVar[str] = "WorkError"
    code: ClassVar[str] = "WorkError"


class Transient(WorkError):
    """Trying again may help. `retry_after` are the seconds that the other side asked to wait, if it did."""

    klass = code = "Transient"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Transient):
    """The model's server asks to slow down (429)."""

    code = "RateLimited"


class ModelUnavailable(Transient):
    """The model's server could not be reached, broke off, failed (409, 425, 5xx), or answered what is no answer."""

    code = "ModelUnavailable"


class ModelTimeout(Transient):
    """No whole answer came within the call's deadline, or the server gave up waiting itself (408, 504)."""

    code = "ModelTimeout"


class ToolUnavailable(Transient):
    """A tool server could not be reached, broke off, or failed (5xx). `sent`: it may have carried the call out."""

    code = "ToolUnavailable"

    def __init__(self, message: str, *, sent: bool, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.sent = sent


class ToolTimeout(Transient):
    """A tool gave no answer in its time. `sent`: its server may have carried the call out."""

    code = "ToolTimeout"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Repairable(WorkError):
    """The model may do better once it sees what is wrong."""

    klass = code = "Repairable"


class OutputInvalid(Repairable):
    """A model's answer breaks the node's schema.

    `errors` has one sentence for each problem, `raw` is the answer as it came.
    """

    code = "OutputInvalid"

    def __init__(self, errors: Sequence[str], raw: str) -> None:
        super().__init__(
            f"the model's answer does not match the node's output: {_listed(errors)}; "
            "state the expected form in the prompt, or use a stronger model"
        )
        self.errors = list(errors)
        self.raw = raw


class OutputTruncated(OutputInvalid):
    """A model's answer stops at the token limit. Nothing cut off is ever repaired locally or used."""

    code = "OutputTruncated"

    def __init__(self, raw: str) -> None:
        message = "the answer stops at the token limit before its end; answer more briefly"
        Repairable.__init__(
            self,
            f"the model's answer stops at the token limit after {len(raw)} characters; "
            "raise the limit in llm.parameters (max_tokens), or ask for a shorter answer",
        )
        self.errors = [message]
        self.raw = raw


class ToolArgumentsInvalid(Repairable):
    """The arguments of a call break the tool's `input`. `problems` has one sentence for each."""

    code = "ToolArgumentsInvalid"

    def __init__(self, path: str, tool: str, problems: Sequence[str]) -> None:
        super().__init__(
            f"{path}: the arguments break what the tool {tool} takes: {_listed(problems)}; correct the arguments"
        )
        self.path = path
        self.tool = tool
        self.problems = list(problems)


class Replannable(WorkError):
    """The approach failed; a fresh attempt that knows the approaches tried may succeed."""

    klass = code = "Replannable"


class ToolFailed(Replannable):
    """A tool reports that it failed; `said` are its own words."""

    code = "ToolFailed"

    def __init__(self, path: str, tool: str, said: str) -> None:
        words = " ".join(said.split())
        super().__init__(
            f"{path}: the tool {tool} reports a failure ({_short(words, 300)}); give it other arguments, or handle the "
            "failure by onFailure"
        )
        self.path = path
        self.tool = tool
        self.said = said


class AgentGaveUp(Replannable):
    """An agent answers with text where a call is due, also when it was told so. `said` is its last text."""

    code = "AgentGaveUp"

    def __init__(self, path: str, said: str) -> None:
        words = " ".join(said.split())
        super().__init__(
            f"{path}: the model does not go on by calling a tool, nor finish; its last words: {_short(words, 300)}; "
            "correct instructions or prompt, or use a stronger model"
        )
        self.path = path
        self.said = said


class FailuresInRow(Replannable):
    """All calls of several turns in a row failed. `last` is what the last one said."""

    code = "FailuresInRow"

    def __init__(self, path: str, times: int, last: str) -> None:
        super().__init__(
            f"{path}: every call of {times} turns in a row failed, the last with: "
            f"{_short(' '.join(last.split()), 300)}; see the turns in the ledger, and correct the tools or the "
            "instructions"
        )
        self.path = path
        self.times = times


class RepeatedCalls(Replannable):
    """An agent made one call with one result again and again."""

    code = "RepeatedCalls"

    def __init__(self, path: str, tool: str, times: int) -> None:
        super().__init__(
            f"{path}: the model called {tool} {times} times with the same arguments and got the same; see the turns in "
            "the ledger, and correct instructions or prompt, or use a stronger model"
        )
        self.path = path
        self.tool = tool
        self.times = times


class Violation(WorkError):
    """A schema, an assurance or a contract is broken by what is not allowed to break it."""

    klass = code = "Violation"


class OutputBroken(Violation):
    """The result of a node that calls no model breaks its `output`. `problems` has one sentence for each."""

    code = "OutputBroken"

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        super().__init__(
            f"{path}: the result breaks the declared output: {_listed(problems)}; correct the node or its output"
        )
        self.path = path
        self.problems = list(problems)


class ArtefactMissing(Violation):
    """A run ends without a file for the artefact `name`."""

    code = "ArtefactMissing"

    def __init__(self, name: str, path: str) -> None:
        super().__init__(
            f"the run leaves no file {path}, which is its artefact {name}; let a node write it, or correct the path of "
            "the artefact"
        )
        self.name = name
        self.path = path


class ToolResultInvalid(Violation):
    """What a tool gave is no result of a tool, or breaks the schema that is declared for it."""

    code = "ToolResultInvalid"


class BudgetExceeded(WorkError):
    """A limit of the run is used up."""

    klass = code = "BudgetExceeded"


class LimitUsedUp(BudgetExceeded):
    """A limit of a run, a template, a node or an agent is used up. `used` and `most` are in the unit of the limit."""

    code = "LimitUsedUp"
    said: ClassVar[str] = "{used:,} were used, and the limit allows {most:,}"

    def __init__(self, path: str, used: int, most: int) -> None:
        told = self.said.format(used=used, most=most, dollars=dollars(used), allowed=dollars(most))
        super().__init__(f"{path}: {told}; raise it, or give it less to do")
        self.path = path
        self.used = used
        self.most = most


class TokenLimit(LimitUsedUp):
    """`limits.tokens` is used up."""

    code = "TokenLimit"
    said = "{used:,} tokens were used, and limits.tokens allows {most:,}"


class CostLimit(LimitUsedUp):
    """`limits.costUSD` is used up."""

    code = "CostLimit"
    said = "{dollars} dollars were used, and limits.costUSD allows {allowed}"


class ToolCallLimit(LimitUsedUp):
    """`limits.toolCalls` is used up."""

    code = "ToolCallLimit"
    said = "{used:,} calls of tools were made, and limits.toolCalls allows {most:,}"


class StepLimit(LimitUsedUp):
    """`limits.steps` is used up: models have answered so often. An agent did not finish in the turn that it was then
    given.
    """

    code = "StepLimit"
    said = "{used:,} answers of models did not bring it to its end, and limits.steps allows {most:,}"


class SecondsLimit(BudgetExceeded):
    """`limits.seconds` of an agent is over, and it did not finish in the turn that it was then given."""

    code = "SecondsLimit"

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(
            f"{path}: the model did not finish within {seconds:g} s; raise limits.seconds of the agent, or give it "
            "less to do"
        )
        self.path = path
        self.seconds = seconds


class Terminal(WorkError):
    """Trying again unchanged cannot help."""

    klass = code = "Terminal"


class ModelRefused(Terminal):
    """The server refused the request (4xx), or the model declined to answer. `status` is the HTTP status, if any."""

    code = "ModelRefused"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ModelMisconfigured(Terminal):
    """An `LLM` resource cannot be used as it is."""

    code = "ModelMisconfigured"


class ToolRefused(Terminal):
    """A tool server did not carry out a call, and would not if asked again."""

    code = "ToolRefused"


class ToolMisconfigured(Terminal):
    """Tools cannot be called here, or an `MCPServer` resource cannot be used as it is."""

    code = "ToolMisconfigured"


class EffectInDoubt(Terminal):
    """A call that must not be repeated was begun, and nothing says whether it was carried out."""

    code = "EffectInDoubt"

    def __init__(self, path: str, tool: str, server: str, why: str) -> None:
        """`server` is empty for a graph, inside which it happened as `why` says."""
        super().__init__(
            f"{path}: an effect inside {tool} is in doubt: {why}"
            if not server
            else f"{path}: the call of the tool {tool} of MCPServer {server} was begun, and it is not known whether it "
            f"was carried out ({why}); look there, and start another run. A tool that may be called again is declared "
            "readOnly or idempotent in the policy of the MCPServer"
        )
        self.path = path
        self.tool = tool


class SecretMissing(Terminal):
    """The run was not given the value of a Secret's key that a model or tool server needs."""

    code = "SecretMissing"

    def __init__(self, name: str, key: str) -> None:
        super().__init__(
            f"Secret {name}: the value of its key {key} did not reach the run; "
            "create it, allow its use, and see the Ready condition of the LLM or MCPServer that names it"
        )
        self.name = name
        self.key = key


class SecretInvalid(Terminal):
    """The value of a Secret's key cannot stand in an HTTP header. The value is not in the message."""

    code = "SecretInvalid"

    def __init__(self, name: str, key: str) -> None:
        super().__init__(
            f"Secret {name}: the value of its key {key} is empty or holds characters that no token has; "
            "store the bare token on one line"
        )
        self.name = name
        self.key = key


class ValueTooLarge(Terminal):
    """A wide value is read whole where it cannot be, or is beyond the limits of values."""

    code = "ValueTooLarge"

    def __init__(self, path: str, what: str, reason: str) -> None:
        super().__init__(f"{path} {what}: {reason}")
        self.path = path
        self.what = what


class ExpressionFailure(Terminal):
    """An expression or code of a node failed. `name` is its place in the node (`when`, `with.facts`, `code`)."""

    code = "ExpressionFailure"

    def __init__(self, path: str, name: str, message: str) -> None:
        super().__init__(f"{path} {name}: {message}")
        self.path = path
        self.name = name


class TimedOut(Terminal):
    """A node took longer than it may."""

    code = "TimedOut"

    def __init__(self, path: str, seconds: float, *, field: str = "timeoutSeconds") -> None:
        super().__init__(f"{path}: not done within {seconds:g} s; raise {field}, or give it less to do")
        self.path = path
        self.seconds = seconds


class Rejected(Terminal):
    """A person said no where the graph goes on only with a yes."""

    code = "Rejected"

    def __init__(self, path: str, by: str, comment: str) -> None:
        why = f" ({_short(comment, 200)})" if comment else ""
        super().__init__(f"{path}: {by} has rejected it{why}; write onReject: continue where a run goes on after that")
        self.path = path
        self.by = by


class TooFewEndedWell(Terminal):
    """Of the nodes that race for another, so many failed or were skipped that the rest is not enough."""

    code = "TooFewEndedWell"

    def __init__(self, path: str, count: int, racers: int, failed: str, why: str) -> None:
        first = why if why.startswith(failed) else f"{failed}: {why}"
        super().__init__(
            f"{path}: {count} of the {racers} nodes that race for it had to end well, and too few can; the first that "
            f"failed is {_short(first, 300)}"
        )
        self.path = path
        self.count = count
        self.racers = racers
        self.failed = failed
        self.why = why


class ApprovalTimeout(Terminal):
    """Nobody decided in time."""

    code = "ApprovalTimeout"

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(
            f"{path}: nobody has decided within {seconds:g} s; raise timeoutSeconds of the approval, or say by "
            "onTimeout what a wait that is over means"
        )
        self.path = path
        self.seconds = seconds


class LoopExhausted(Terminal):
    """A loop ran all its rounds, its `until` was never true, and its `onExhausted` is `fail`."""

    code = "LoopExhausted"

    def __init__(self, path: str, rounds: int) -> None:
        super().__init__(
            f"{path}: {rounds} rounds ran and until was never true; raise maxIterations, loosen until, or write "
            "onExhausted: succeed"
        )


class OutputTooLarge(Terminal):
    """An answer exceeds the bytes that are read of it."""

    code = "OutputTooLarge"

    def __init__(self, where: str, limit: int) -> None:
        super().__init__(f"{where}: the answer exceeds {limit} bytes; ask for less at a time")
        self.limit = limit


class SourceMissing(Terminal):
    """A file or object that is to be read does not exist."""

    code = "SourceMissing"

    def __init__(self, uri: str) -> None:
        super().__init__(f"{uri}: there is no such file or object; put it there, or correct the address")
        self.uri = uri


class SourceRefused(Terminal):
    """A file or object may not be read from here, or cannot be."""

    code = "SourceRefused"

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"{uri}: {why}")
        self.uri = uri


class SourceInvalid(Terminal):
    """A source, or one line of it, is not what it has to be. `line` counts from 1; it is None for the whole."""

    code = "SourceInvalid"

    def __init__(self, uri: str, line: int | None, message: str) -> None:
        where, what = (uri, "it") if line is None else (f"{uri}:{line}", "that line")
        super().__init__(f"{where}: {message}; correct {what}")
        self.uri = uri
        self.line = line


class SourceChanged(Terminal):
    """A file or object is not what it was when the items of a map were listed."""

    code = "SourceChanged"

    def __init__(self, uri: str) -> None:
        super().__init__(
            f"{uri}: it has changed since it was listed; put back what it was, or start another run, which lists anew"
        )
        self.uri = uri


class DuplicateKey(Terminal):
    """Two items of a map have one key. `first` and `second` are their indices."""

    code = "DuplicateKey"

    def __init__(self, path: str, key: Json, first: int, second: int) -> None:
        super().__init__(
            f"{path}: items {first} and {second} have the same key {_short(repr(key))}; "
            "choose a key expression that tells them apart"
        )
        self.path = path
        self.key = key
        self.first = first
        self.second = second


class WorkspaceRefused(Terminal):
    """The files that a node would see, or leave, are refused: `why` is a sentence of the ledger."""

    code = "WorkspaceRefused"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why.removesuffix('.')}")
        self.path = path
        self.why = why


class WorkspaceConflict(Terminal):
    """Items of a map made different things of the file `file`, and of `count` files in all."""

    code = "WorkspaceConflict"

    def __init__(self, path: str, file: str, items: Sequence[int], count: int) -> None:
        named = ", ".join(str(item) for item in items[:MAX_SHOWN])
        more = f", and so it is with {count - 1} more files" if count > 1 else ""
        super().__init__(
            f"{path}: the items {named} do not agree on {file}{more}; let each write files of its own, or write "
            "onConflict: collect"
        )
        self.path = path
        self.file = file
        self.items = tuple(items)
        self.count = count


class RunnerLost(Terminal):
    """The runner that worked on an item died, `times` times."""

    code = "RunnerLost"

    def __init__(self, path: str, times: int) -> None:
        super().__init__(
            f"{path}: its runner was lost {times} times while working on it; see the runner's log and its memory limit"
        )
        self.path = path
        self.times = times


class DriverCrashLoop(Terminal):
    """A run's drivers ended `lives` times in a row before anything of it was committed."""

    code = "DriverCrashLoop"

    def __init__(self, run: str, lives: int) -> None:
        super().__init__(
            f"run {run}: its driver ended {lives} times in a row before it came any further, also when no other run "
            "under suspicion was open; look into the driver's memory and log, make values or width smaller, "
            "and start another run"
        )
        self.run = run
        self.lives = lives


class ServiceError(DecurionError):
    """A call to a driver could not be done, or a driver cannot go on. The class's name is the code of the protocol."""


class BadInput(ServiceError, InputError):
    """What the caller sent cannot be used. `findings` has one sentence for each fault, beginning with its place."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__(_listed(findings))
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

    def __init__(self, run: str, path: str) -> None:
        super().__init__(
            run, f"nothing ran at {path!r}; name a node, a branch or a round, such as /extract or /extract[00003]/read"
        )
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
        super().__init__(f"run {run} waits for people at {path}{others}: {_short(message, 200)}")
        self.run = run
        self.path = path


class RunLetGo(ServiceError):
    """This driver stopped working on a run that has not ended: another took it over, or the store stayed away."""

    def __init__(self, run: str, why: str) -> None:
        super().__init__(f"run {run} has not ended; what is finished is kept: {why}")
        self.run = run
        self.why = why


def _listed(problems: Sequence[str]) -> str:
    shown = "; ".join(problems[:MAX_SHOWN])
    rest = len(problems) - MAX_SHOWN
    return f"{shown}; and {rest} more" if rest > 0 else shown


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[:limit] + "…"

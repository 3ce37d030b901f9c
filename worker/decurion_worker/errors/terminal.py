"""Errors of an attempt of a node that nothing helps against: the message says what a person can do."""

from __future__ import annotations

from collections.abc import Sequence

from decurion_crds.canonical import Json
from decurion_worker.errors.listing import MAX_SHOWN, short
from decurion_worker.errors.work import WorkError


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
        why = f" ({short(comment, 200)})" if comment else ""
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
            f"failed is {short(first, 300)}"
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
            f"{path}: items {first} and {second} have the same key {short(repr(key))}; "
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


class ContextRefused(Terminal):
    """What the context of a node names cannot stand before its prompt."""

    code = "ContextRefused"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


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

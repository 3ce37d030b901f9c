"""Errors of an attempt of a node that somebody can do something about: again, asked anew, or by another way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from decurion_crds.errors import DecurionError
from decurion_crds.v1alpha1.limits import dollars
from decurion_worker.errors.listing import listed, short


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
            f"the model's answer does not match the node's output: {listed(errors)}; "
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
            f"{path}: the arguments break what the tool {tool} takes: {listed(problems)}; correct the arguments"
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
            f"{path}: the tool {tool} reports a failure ({short(words, 300)}); give it other arguments, or handle the "
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
            f"{path}: the model does not go on by calling a tool, nor finish; its last words: {short(words, 300)}; "
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
            f"{short(' '.join(last.split()), 300)}; see the turns in the ledger, and correct the tools or the "
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
            f"{path}: the result breaks the declared output: {listed(problems)}; correct the node or its output"
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

"""Names that others rely on: those that ledgers hold, and those that the package offers."""

import inspect
import re

import decurion_worker.errors as errors
import decurion_worker.models as models
from decurion_crds.errors import DecurionError
from decurion_worker.errors import WorkError

RECORDED = {
    "Transient": {
        "Transient",
        "RateLimited",
        "ModelUnavailable",
        "ModelTimeout",
        "ToolUnavailable",
        "ToolTimeout",
    },
    "Repairable": {"Repairable", "OutputInvalid", "OutputTruncated", "ToolArgumentsInvalid"},
    "Replannable": {"Replannable", "ToolFailed", "AgentGaveUp", "FailuresInRow", "RepeatedCalls"},
    "Violation": {"Violation", "OutputBroken", "ArtefactMissing", "ToolResultInvalid"},
    "BudgetExceeded": {
        "BudgetExceeded",
        "LimitUsedUp",
        "TokenLimit",
        "CostLimit",
        "StepLimit",
        "SecondsLimit",
        "ToolCallLimit",
    },
    "Terminal": {
        "Terminal",
        "ModelRefused",
        "ModelMisconfigured",
        "ToolRefused",
        "ToolMisconfigured",
        "EffectInDoubt",
        "Rejected",
        "ApprovalTimeout",
        "SecretMissing",
        "SecretInvalid",
        "ExpressionFailure",
        "LoopExhausted",
        "TimedOut",
        "OutputTooLarge",
        "ValueTooLarge",
        "SourceMissing",
        "SourceRefused",
        "SourceInvalid",
        "SourceChanged",
        "TooFewEndedWell",
        "DuplicateKey",
        "ContextRefused",
        "WorkspaceConflict",
        "WorkspaceRefused",
        "RunnerLost",
        "DriverCrashLoop",
    },
}
"""What stands as class and code in records of failures: names that no release may change."""


def classes() -> dict[str, type[DecurionError]]:
    return {
        name: found
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, DecurionError) and found.__module__.startswith(errors.__name__)
    }


def test_recorded_names_are_pinned() -> None:
    found: dict[str, set[str]] = {}
    for kind in classes().values():
        if issubclass(kind, WorkError) and kind is not WorkError:
            found.setdefault(kind.klass, set()).add(kind.code)
            assert kind.code == kind.__name__
    assert found == RECORDED


def test_the_tree_at_the_top_of_the_module_is_the_tree_of_its_classes() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│ ]*)[├└]── (\w+)", line)
        if found:
            depth = len(found.group(1)) // 4
            above[depth:] = [found.group(2)]
            drawn[found.group(2)] = above[depth - 1] if depth else "DecurionError"
    assert drawn == {name: kind.__bases__[0].__name__ for name, kind in classes().items()}


def test_public_names_of_the_models_are_pinned() -> None:
    assert set(models.__all__) == {
        "Call",
        "ToolDefinition",
        "with_retries",
        "ChatModel",
        "ChatRequest",
        "ChatResponse",
        "FinishReason",
        "Message",
        "OpenAIModel",
        "ScriptedModel",
        "Usage",
        "call_with_retries",
        "is_text",
        "open_model",
        "parse_output",
        "repair_messages",
    }
    assert all(hasattr(models, name) for name in models.__all__)

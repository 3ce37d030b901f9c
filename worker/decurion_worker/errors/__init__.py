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
│       ├── ContextRefused         what cannot stand before a prompt: too much, or no text
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

from decurion_worker.errors.service import (
    BadInput,
    BundleInvalid,
    BundleMissing,
    CannotListen,
    DriverUnavailable,
    DriverUnknown,
    EarlierCollected,
    EarlierDiffers,
    EarlierMissing,
    EarlierOpen,
    EarlierRunError,
    LogCorrupt,
    NotCertified,
    NothingFailed,
    PathNotRun,
    RunExists,
    RunLetGo,
    RunOnTrial,
    RunUnknown,
    RunWaits,
    ServiceError,
)
from decurion_worker.errors.terminal import (
    ApprovalTimeout,
    ContextRefused,
    DriverCrashLoop,
    DuplicateKey,
    EffectInDoubt,
    ExpressionFailure,
    LoopExhausted,
    ModelMisconfigured,
    ModelRefused,
    OutputTooLarge,
    Rejected,
    RunnerLost,
    SecretInvalid,
    SecretMissing,
    SourceChanged,
    SourceInvalid,
    SourceMissing,
    SourceRefused,
    Terminal,
    TimedOut,
    TooFewEndedWell,
    ToolMisconfigured,
    ToolRefused,
    ValueTooLarge,
    WorkspaceConflict,
    WorkspaceRefused,
)
from decurion_worker.errors.work import (
    AgentGaveUp,
    ArtefactMissing,
    BudgetExceeded,
    CostLimit,
    FailuresInRow,
    LimitUsedUp,
    ModelTimeout,
    ModelUnavailable,
    OutputBroken,
    OutputInvalid,
    OutputTruncated,
    RateLimited,
    Repairable,
    RepeatedCalls,
    Replannable,
    SecondsLimit,
    StepLimit,
    TokenLimit,
    ToolArgumentsInvalid,
    ToolCallLimit,
    ToolFailed,
    ToolResultInvalid,
    ToolTimeout,
    ToolUnavailable,
    Transient,
    Violation,
    WorkError,
)

__all__ = [
    "AgentGaveUp",
    "ApprovalTimeout",
    "ArtefactMissing",
    "BadInput",
    "BudgetExceeded",
    "BundleInvalid",
    "BundleMissing",
    "CannotListen",
    "ContextRefused",
    "CostLimit",
    "DriverCrashLoop",
    "DriverUnavailable",
    "DriverUnknown",
    "DuplicateKey",
    "EarlierCollected",
    "EarlierDiffers",
    "EarlierMissing",
    "EarlierOpen",
    "EarlierRunError",
    "EffectInDoubt",
    "ExpressionFailure",
    "FailuresInRow",
    "LimitUsedUp",
    "LogCorrupt",
    "LoopExhausted",
    "ModelMisconfigured",
    "ModelRefused",
    "ModelTimeout",
    "ModelUnavailable",
    "NotCertified",
    "NothingFailed",
    "OutputBroken",
    "OutputInvalid",
    "OutputTooLarge",
    "OutputTruncated",
    "PathNotRun",
    "RateLimited",
    "Rejected",
    "Repairable",
    "RepeatedCalls",
    "Replannable",
    "RunExists",
    "RunLetGo",
    "RunOnTrial",
    "RunUnknown",
    "RunWaits",
    "RunnerLost",
    "SecondsLimit",
    "SecretInvalid",
    "SecretMissing",
    "ServiceError",
    "SourceChanged",
    "SourceInvalid",
    "SourceMissing",
    "SourceRefused",
    "StepLimit",
    "Terminal",
    "TimedOut",
    "TokenLimit",
    "TooFewEndedWell",
    "ToolArgumentsInvalid",
    "ToolCallLimit",
    "ToolFailed",
    "ToolMisconfigured",
    "ToolRefused",
    "ToolResultInvalid",
    "ToolTimeout",
    "ToolUnavailable",
    "Transient",
    "ValueTooLarge",
    "Violation",
    "WorkError",
    "WorkspaceConflict",
    "WorkspaceRefused",
]

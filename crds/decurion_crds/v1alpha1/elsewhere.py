"""Names that fields have in other tools, and what they are called here."""

from __future__ import annotations

from collections.abc import Collection

_HERE: dict[str, tuple[str, ...]] = {
    "after": ("dependson", "dependencies", "requires", "runafter"),
    "when": ("if", "condition", "onlyif", "unless"),
    "until": ("condition", "while", "stopwhen"),
    "with": ("inputs", "params", "args", "variables", "vars", "env"),
    "ref": ("model", "name", "llm"),
    "model": ("ref", "llm"),
    "items": ("foreach", "withitems", "list", "over"),
    "as": ("itemname", "var", "variable"),
    "concurrency": ("parallelism", "maxparallel", "parallel", "maxconcurrency"),
    "prompt": ("template", "text", "message", "user"),
    "instructions": ("system", "systemprompt"),
    "retry": ("retrystrategy", "retries", "retrypolicy"),
    "maxIterations": ("max", "maxrounds", "times", "limit", "count"),
    "template": ("body", "do", "steps"),
    "nodes": ("steps", "tasks", "dag"),
    "code": ("script", "python", "source", "run"),
    "endpoint": ("url", "baseurl", "host"),
    "url": ("endpoint", "host", "address"),
    "message": ("prompt", "question", "text"),
    "timeoutSeconds": ("deadline", "activedeadlineseconds"),
}
"""Name here → names elsewhere, in small letters and without signs between words."""


def here(name: str, known: Collection[str]) -> str | None:
    """What a field of another tool is called in an object with the fields `known`."""
    plain = name.casefold().replace("_", "").replace("-", "")
    return next((ours for ours, theirs in _HERE.items() if plain in theirs and ours in known), None)

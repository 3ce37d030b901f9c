"""The errors of this package, and the root of every error of the project.

DecurionError                    every exception raised on purpose, in any package
└── InputError                   something that a person wrote, or a model returned, is wrong
    ├── CompileFailed            (findings.py) a manifest or graph has findings of severity error
    ├── ChoiceNeeded             (convert.py) a node's new block needs what neither the old one nor the files say
    ├── SchemaRefused            a schema is invalid, does not resolve, or is not supported
    ├── ValueRefused             a value is no JSON that every part of the system reads alike
    ├── OutputMismatch           a value breaks its schema
    └── MergeRefused             what several nodes wrote to one channel cannot be merged
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class DecurionError(Exception):
    """Root of every exception that the project raises on purpose. Its text is one sentence for the person concerned.

    Errors travel between processes whole, whatever their constructors take.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


def _rebuilt(kind: type[DecurionError], args: tuple[Any, ...], state: dict[str, Any]) -> DecurionError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class InputError(DecurionError):
    """Something that a person wrote, or a model returned, is wrong; trying again unchanged cannot help."""


class SchemaRefused(InputError):
    """A schema is invalid, refers to something that does not exist, or uses what is not supported.

    `path` is the place inside the schema (`properties.reports.items`), empty for the schema as a whole. `suggestion`
    is the pair of what was written and what was probably meant, where that is known. `graph` is the TaskGraph whose
    shared schemas `path` is in, where it is another; `absent` is kind and name of the resource that does not exist,
    where that is what is wrong.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        suggestion: tuple[str, str] | None = None,
        graph: str | None = None,
        absent: str | None = None,
    ) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.message = message
        self.path = path
        self.suggestion = suggestion
        self.graph = graph
        self.absent = absent


class ValueRefused(InputError):
    """A value cannot be stored and read back alike everywhere. `path` is its place as a JSON path
    (`$.facts[3].value`).
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class OutputMismatch(InputError):
    """A value breaks its schema. `problems` has one `path: message` for each violation, at most twenty."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


class MergeRefused(InputError):
    """What several nodes wrote to one channel has no value by the channel's merge rule. The text names the writers."""

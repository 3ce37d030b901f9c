"""What is wrong in a file: one record for each cause, the same in the terminal, in JSON and in a condition.

`CODES` is the closed list of codes. They are stable: documents, tests and `decurion fix` name them.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from decurion_crds.errors import InputError

Severity = Literal["error", "warning"]

CODES: dict[str, str] = {
    "BUDGET": "A limit is above one around it, or the price is missing that it needs.",
    "BUNDLE-TOO-LARGE": "A graph with all that it runs is too large when it is compiled.",
    "CYCLE": "Nodes wait for one another.",
    "DUPLICATE-NAME": "Two things of one scope have the same name.",
    "EXPR-FIELD": "An expression reads a field that its schema does not have.",
    "EXPR-NAME": "An expression uses a name that is not visible there.",
    "EXPR-NONE": "An expression uses a value that may be absent or null without saying what then.",
    "EXPR-SYNTAX": "An expression does not parse.",
    "EXPR-TYPE": "An expression has another type than its place needs.",
    "FILE": "A file is missing or cannot be read.",
    "FIELD-MISSING": "A required field is missing.",
    "FIELD-TYPE": "A field holds a value of another type.",
    "FIELD-UNKNOWN": "A field that does not exist.",
    "FIELD-VALUE": "A field holds a value of the right type that is not allowed there.",
    "KIND": "The apiVersion or kind of a document is missing or unknown.",
    "NAME": "A name breaks the rule for names of its sort.",
    "NOT-SUPPORTED": "A part of the language that is not built yet.",
    "ONE-OF": "None, or several, of the fields of which exactly one is due.",
    "OUTPUT-TYPE": "The result of a node or template breaks its declared output.",
    "READ-RACE": "A channel is read while another node may be writing it.",
    "INPUT": "The input of a run is not what its graph takes.",
    "REF-MISSING": "A resource, template or node that is referred to does not exist.",
    "SENSITIVE": "Something sensitive would be stored or shown in clear, or is named wrongly.",
    "SCHEMA": "A schema is invalid or does not resolve.",
    "SNAPSHOT": "A snapshot for one node could not occur in a run of its graph.",
    "SPEC-TOO-LARGE": "The spec exceeds its bound.",
    "TYPE-DECLARE": "A type cannot be inferred soundly and must be declared.",
    "UNREACHABLE": "A node can never run.",
    "UNUSED": "Something is declared and never used.",
    "WRITE-RACE": "Two unordered nodes write one channel that has no merge rule.",
    "YAML": "A file is not valid YAML, or YAML swallows part of what was written.",
    "YAML001": "A word that two readers of YAML read differently.",
}


MAX_MESSAGE = 1000
MAX_PATH = 400
MAX_WORD = 80
"""Characters of a message, of a path, and of a word of the author's inside a message, that are shown."""


_INNER = ("graph", "absent")


@dataclass(frozen=True, slots=True)
class Fix:
    """`new` goes where `old` first stands at or behind the finding's place in the file."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    `path` goes by names, not by indices, and starts below `spec` (`templates.extractOne.nodes.read.llm.prompt`) or with
    `metadata`. `line` and `column` count from 1 and are known when the resource came from a file. `message` is one
    sentence that says what is wrong and what to do next. Characters that a terminal would obey, or that nobody sees,
    are shown by their numbers in both, and what is very long is shortened in its middle. `graph` is the TaskGraph in
    whose spec the place is, where it is another than the one that was compiled; `absent` is kind and name of a resource
    that does not exist.
    """

    code: str
    path: str
    message: str
    severity: Severity = "error"
    file: str | None = None
    line: int | None = None
    column: int | None = None
    fix: Fix | None = None
    graph: str | None = field(default=None, compare=False)
    absent: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", shortened(printable(self.path), MAX_PATH))
        object.__setattr__(self, "message", shortened(printable(self.message), MAX_MESSAGE))

    def text(self) -> str:
        """`graph.yaml:31:18 nodes.extract.with.facts [EXPR-FIELD] message`, leaving out what is not known."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        if self.file is None and self.graph is not None:
            place = f"TaskGraph {self.graph}:"
        return " ".join(part for part in (printable(place), self.path, f"[{self.code}]", self.message) if part)

    def to_json(self) -> dict[str, Any]:
        found = {key: value for key, value in asdict(self).items() if value is not None and key not in _INNER}
        return found | ({"file": printable(self.file)} if self.file is not None else {})


class CompileFailed(InputError):
    """A manifest or graph has findings of severity error. `findings` holds all of them, warnings included."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(finding.text() for finding in findings))
        self.findings = tuple(findings)


def printable(text: str) -> str:
    """`text` on one line, with control and invisible characters as their numbers (`\\x1b`, `\\u202e`), half a surrogate
    pair included.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _number(c) for c in text)


def shortened(text: str, limit: int) -> str:
    """`text` of at most `limit` characters: its middle left out, since a message ends with the remedy."""
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def quoted(word: object) -> str:
    """What an author wrote, in double quotes for a message. Where it looks like ASCII and is not, it says so."""
    text = str(word)
    strange = next((c for c in text if not c.isascii() and c.isprintable()), None)
    shown = f'"{shortened(text, MAX_WORD)}"'
    if strange is None:
        return shown
    return f"{shown} (in which {strange} is U+{ord(strange):04X}, {unicodedata.name(strange, 'no letter').lower()})"


def _number(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` is probably a misspelling of."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def listed(words: Iterable[str], *, last: str = "and") -> str:
    """`a, b and c`."""
    items = list(words)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}" if items else "none"

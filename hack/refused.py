"""Broken manifests and who refuses them: the files below `tests/crds/refused`, and the page made of them.

    python hack/refused.py          write docs/errors/who-refuses-what.md
    python hack/refused.py --says   write what `decurion validate` now says into the files, too; read the difference

A file begins with comments: `title`, the kind of mistake; `says`, the place (in the file), path, code and message of
the one finding; `first`, who refuses it first on a cluster (kubectl, server, operator or nobody), with its words;
`mend`, the text to replace and its replacement as a person would from the message alone, where there is no fix.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, cast

from decurion_cli.manifests import compile_all, read
from decurion_crds.findings import Finding
from decurion_crds.loader import independent

ROOT = Path(__file__).parent.parent
FILES = ROOT / "tests" / "crds" / "refused"
PAGE = ROOT / "docs" / "errors" / "who-refuses-what.md"

First = Literal["kubectl", "server", "operator", "nobody"]

_HEADER = re.compile(r"# (title|says|first|mend): (.*)\n")
_SUBJECTS = {
    "yaml": "YAML",
    "kinds": "apiVersion and kind",
    "names": "Names",
    "fields": "Fields",
    "references": "References",
    "schemas": "Schemas",
    "expressions": "Expressions",
    "outputs": "Outputs",
    "order": "Order and channels",
    "loops": "Loops",
    "maps": "Maps and templates",
    "workspaces": "Workspaces",
    "budgets": "Budgets",
    "sensitive": "Sensitive values",
    "contexts": "Context drawers",
    "llms": "LLM",
    "tools": "MCPServer and tools",
    "runs": "TaskGraphRun",
    "pools": "WorkerPool",
}
_INTRODUCTION = """\
# Who refuses what

Made by `python hack/refused.py` from the broken manifests in `tests/crds/refused`, one for each kind of mistake; tests
hold every row against `decurion validate`, a real API server and the operator. The codes are explained in the
[index of errors](index.md).

`decurion validate` sees all of them, before anything is sent, with file, line and column. On a cluster a mistake is
told by the first that can see it:

* **kubectl** refuses what is no YAML, and kinds that the cluster does not know. Its words are its own.
* **the API server** refuses what breaks the fields of a CustomResourceDefinition, and names the field. It does so for
  clients that ask for strict validation, as kubectl does; others lose unknown fields silently, so let Argo CD use
  `ServerSideApply=true`.
* **the operator** compiles what is stored, as `decurion validate` does, and says the same code, path and sentence in
  `status.findings` and in the condition `Ready`.

What is marked "nobody" is lost on its way: check files before they are applied.
"""


@dataclass(frozen=True, slots=True)
class Refused:
    """One broken manifest. `words` are part of what `first` says; `says` is the finding without the file's name."""

    name: str
    path: Path
    title: str
    says: str
    first: First
    words: str
    mend: tuple[str, str] | None

    @property
    def subject(self) -> str:
        return self.name.partition("/")[0]

    def mended(self, finding: Finding) -> str:
        """The text of the file after its fix, or after what a person does who has read the message."""
        text = self.path.read_text(encoding="utf-8")
        if finding.fix is None:
            old, new = self.mend or ("", "")
            start = text.index("\napiVersion")
            return text[:start] + text[start:].replace(old, new, 1)
        lines = text.split("\n")
        line, column = lines[(finding.line or 1) - 1], (finding.column or 1) - 1
        at = line.index(finding.fix.old, column)
        lines[(finding.line or 1) - 1] = line[:at] + finding.fix.new + line[at + len(finding.fix.old) :]
        return "\n".join(lines)


def refused() -> list[Refused]:
    """All of them, by subject."""
    order = list(_SUBJECTS)
    found = [_read(path) for path in sorted(FILES.glob("*/*.yaml"))]
    return sorted(found, key=lambda one: order.index(one.subject))


def findings_of(path: Path) -> list[Finding]:
    """What `decurion validate` finds in a file."""
    manifests = read([path])
    found = list(manifests.findings)
    for result in compile_all(manifests, as_used=True).values():
        found += [one for one in independent(result.findings, manifests.findings) if one not in found]
    return found


def said(finding: Finding) -> str:
    return finding.text().removeprefix(f"{finding.file}:")


def page() -> str:
    parts = [_INTRODUCTION]
    for subject, group in groupby(refused(), key=lambda one: one.subject):
        rows = [_row(one) for one in group]
        head = "| mistake | `decurion validate` says | first on a cluster |\n| --- | --- | --- |\n"
        parts.append(f"## {_SUBJECTS[subject]}\n\n{head}" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the page of broken manifests.")
    parser.add_argument("--says", action="store_true", help="write into the files what is said of them now")
    if parser.parse_args(arguments).says:
        for one in refused():
            errors = [finding for finding in findings_of(one.path) if finding.severity == "error"]
            if len(errors) != 1:
                sys.stderr.write(f"{one.path}: {len(errors)} errors, and one is due\n")
                return 1
            text = one.path.read_text(encoding="utf-8")
            before, after = text.split(f"# says: {one.says}\n", 1)
            one.path.write_text(f"{before}# says: {said(errors[0])}\n{after}", encoding="utf-8")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def _read(path: Path) -> Refused:
    header: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        match = _HEADER.fullmatch(line)
        if match is None:
            break
        header[match[1]] = match[2]
    first, _, words = header["first"].partition(" ")
    mend = json.loads(header["mend"]) if "mend" in header else None
    return Refused(
        name=path.relative_to(FILES).with_suffix("").as_posix(),
        path=path,
        title=header["title"],
        says=header["says"],
        first=cast(First, first),
        words=json.loads(words) if words else "",
        mend=(mend[0], mend[1]) if mend else None,
    )


def _row(one: Refused) -> str:
    rest = one.says.partition(" ")[2]
    path, code, message = re.fullmatch(r"(?:(.*) )?\[([A-Z0-9-]+)\] (.*)", rest).groups()  # type: ignore[union-attr]
    where = f"`{path}` " if path else ""
    who = {"kubectl": "kubectl", "server": "API server", "operator": "operator", "nobody": "nobody"}[one.first]
    words = f": {_cell(one.words)}" if one.words else ", the same"
    mistake = f"[{_cell(one.title)}](../../tests/crds/refused/{one.name}.yaml)"
    return f"| {mistake} | {where}`{code}` {_cell(message)} | {who}{words} |"


def _cell(text: str) -> str:
    return re.sub(r"([|<>{}*_`\[\]])", r"\\\1", text)


if __name__ == "__main__":
    sys.exit(main())

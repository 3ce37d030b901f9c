"""The pages of the documentation and their fenced blocks, and what the info string of a block says about its test.

```yaml                       whole manifests: `decurion validate --strict` takes them as they are; lines without
                              an apiVersion stand so in a file of examples/ or in another block
```yaml file=graph.yaml       the same, and the page's commands find the file
```yaml uses=models.yaml      validated together with that file of the page
```yaml spec                  what stands below `spec:` of a graph: validated with the models of `around.yaml`
```yaml refused               broken on purpose: the next block, a text, is what `decurion validate` says of it
```console                    `$ command` lines run one after the other in one folder and one shell for the page;
                              lines below a command are what it prints, … stands for anything
```console exit=2             a command of the block ends so
```console cluster            runs where kubectl reaches the API server of the tests
```python                     runs in the folder of the page
```json                       is read as JSON
```text                       a picture, or output of a block that runs; findings in it need one of the following
```… tested-by=FILE::TEST     not run here, for that test shows it
```… no-test="reason"         not run at all, for a reason that a reader of the page's source sees
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`]*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `line` is that of its first line of text, from 1."""

    page: Path
    line: int
    language: str
    text: str
    flags: frozenset[str] = frozenset()
    options: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def excused(self) -> bool:
        return "no-test" in self.options or "tested-by" in self.options


def pages() -> list[Path]:
    """Every page that people read."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return [*found[:2], *sorted(found[2:]), *sorted((ROOT / "examples").glob("*/README.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order. Raises `ValueError` for one that does not end."""
    found: list[Block] = []
    begun: tuple[int, re.Match[str]] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if begun is None:
            if fence:
                begun, lines = (number, fence), []
        elif fence and not fence["info"].strip() and len(fence["fence"]) >= len(begun[1]["fence"]):
            found.append(_block(page, begun[0] + 1, begun[1]["info"], lines))
            begun = None
        else:
            lines.append(line.removeprefix(begun[1]["indent"]))
    if begun is not None:
        raise ValueError(f"{page}:{begun[0]}: this block does not end")
    return found


def _block(page: Path, line: int, info: str, lines: list[str]) -> Block:
    language, *words = shlex.split(info) or [""]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    flags = frozenset(word for word in words if "=" not in word)
    return Block(page, line, language, "\n".join(lines) + "\n", flags, options)


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block with the output that is shown below each. Raises `ValueError`."""
    found: list[tuple[str, str]] = []
    for line in block.text.splitlines():
        if found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        elif line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        else:
            raise ValueError(f"{block.where}: output stands before the first command; begin commands with $")
    return found

"""Context drawers of a node: what its model sees beside its prompt, gathered, written out, and told to the ledger.

Nothing stands in a request but the author's own texts and what is named here: values of channels and texts of files
before the prompt, by `render`, and what the node said in earlier rounds as messages of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from decurion_crds.canonical import Json, canonical
from decurion_crds.compiled import Context, Expr, Text
from decurion_crds.globs import Globs
from decurion_ledger.workspace import Draft
from decurion_worker.context import Execution
from decurion_worker.errors import ContextRefused
from decurion_worker.files import refusals
from decurion_worker.models import Message

RECORDED = "$context"
"""The name beside those of `with` under which a snapshot says what its node's model saw."""
MAX_FILES = 64
MAX_TEXT = 256 * 1024
"""Bytes of all that stands before a prompt."""
_CHANNEL = '<channel name="{name}">\n{text}\n</channel>'
_FILE = '<file path="{path}">\n{text}\n</file>'


@dataclass(frozen=True, slots=True)
class Drawers:
    """What was gathered: channels with their values, files with their texts, prompts with their answers."""

    ledger: Mapping[str, Json]
    files: Sequence[tuple[str, str, str]]
    """Path, SHA-256 and text of each."""
    history: Sequence[tuple[str, str]]

    def recorded(self) -> dict[str, Json]:
        """What the record of the node says of it: of files their digests, since the texts are in the files."""
        told = {
            "ledger": dict(self.ledger),
            "artefacts": [{"path": path, "sha256": sha} for path, sha, _ in self.files],
            "history": [{"prompt": prompt, "answer": answer} for prompt, answer in self.history],
        }
        return {name: value for name, value in told.items() if value}

    def before(self, prompt: str) -> tuple[Message, ...]:
        """The messages of earlier rounds, and the one with the prompt."""
        said: list[Message] = []
        for asked, answer in self.history:
            said += [Message("user", asked), Message("assistant", answer)]
        return (*said, Message("user", "\n\n".join(part for part in (render(self), prompt) if part)))


def messages(execution: Execution, prompt: str) -> tuple[Message, ...]:
    """What a model is asked beside what the system says: `prompt`, and before it what the node's context names."""
    drawers = execution.drawers
    return drawers.before(prompt) if drawers is not None else (Message("user", prompt),)


def render(drawers: Drawers) -> str:
    """Channels and files as they stand before a prompt."""
    parts = [_CHANNEL.format(name=name, text=_text(value)) for name, value in drawers.ledger.items()]
    parts += [_FILE.format(path=path, text=text) for path, _, text in drawers.files]
    return "\n\n".join(parts)


async def gather(execution: Execution, env: Mapping[str, Json], prompt: Text | None) -> Drawers | None:
    """The drawers of a node; None for one that names none. `prompt` is that of its block.

    Raises `ContextRefused`, `WorkspaceRefused`, `ExpressionFailed`.
    """
    context = execution.node.context
    if context is None:
        return None
    drawers = Drawers(
        ledger=await _ledger(execution, context, env),
        files=await _files(execution, context),
        history=await _history(execution, prompt),
    )
    size = len(render(drawers).encode())
    if size > MAX_TEXT:
        raise ContextRefused(
            execution.path,
            f"what stands before the prompt has {size:,} bytes, and at most {MAX_TEXT:,} may; name fewer channels or "
            "files, or sum them up in a node",
        )
    return drawers


async def _ledger(execution: Execution, context: Context, env: Mapping[str, Json]) -> dict[str, Json]:
    run = execution.context
    exprs = {f"context.ledger.{name}": _channel(name) for name in context.ledger}
    values = await run.evaluate(exprs, env) if exprs else {}
    return {name.rpartition(".")[2]: await run.load(value, name=name) for name, value in values.items()}


def _channel(name: str) -> Expr:
    return Expr(src=f"state.{name}", py=f'state["{name}"]', reads=(f"state.{name}",), path=("state", name))


async def _files(execution: Execution, context: Context) -> list[tuple[str, str, str]]:
    if not context.artefacts:
        return []
    path, globs, held = execution.path, Globs(context.artefacts), execution.context.files
    version = await held.view(execution.scope, execution.files, path=path)
    draft = Draft(held.objects, version, read=globs, write=Globs(()), limits=held.limits)
    found: list[tuple[str, str, str]] = []
    with refusals(path):
        names = await draft.files(globs, most=MAX_FILES + 1)
        if len(names) > MAX_FILES:
            raise ContextRefused(path, f"context.artefacts names more than {MAX_FILES} files; name fewer")
        left = MAX_TEXT
        for name in names:
            content = await draft.read(name) or b""
            left -= len(content)
            found.append((name, hashlib.sha256(content).hexdigest(), _decoded(path, name, content)))
            if left < 0:
                raise ContextRefused(
                    path, f"the files of context.artefacts have more than {MAX_TEXT:,} bytes ({name}); name fewer"
                )
    return found


def _decoded(path: str, name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ContextRefused(path, f"{name} is no text in UTF-8; name files that are, in context.artefacts") from None


async def _history(execution: Execution, prompt: Text | None) -> list[tuple[str, str]]:
    """Prompts are written anew from what the records of earlier rounds say that the node had read."""
    if prompt is None:
        return []
    said = []
    for one in execution.history:
        read = {name: value for name, value in (one.input or {}).items() if name != RECORDED}
        answer = await execution.context.load(one.output, name="context.history")
        said.append((await execution.context.render(prompt, read), _text(answer)))
    return said


def _text(value: Json) -> str:
    """A text as it is, the text of an output that is nothing else, any other value as JSON."""
    if isinstance(value, dict) and value.keys() == {"text"} and isinstance(value["text"], str):
        return value["text"]
    return value if isinstance(value, str) else canonical(value).decode()

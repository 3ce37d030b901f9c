"""Asking whoever sits at the terminal, or taking the answers that were given with the command."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
import typer

from decurion_crds.errors import InputError
from decurion_crds.findings import did_you_mean, listed, printable

if TYPE_CHECKING:
    from decurion_crds.compiled import CompiledGraph
    from decurion_worker.approving import Answer, Verdict
    from decurion_worker.engine import Asked


def answers_of(pairs: Sequence[str]) -> dict[str, bool]:
    """`NODE=yes|no` pairs; NODE is a path, the name of a node, or `*`. Raises `InputError`."""
    found = {}
    for pair in pairs:
        node, equals, word = pair.rpartition("=")
        if not equals or not node or word not in ("yes", "no"):
            raise InputError(f"--approve {pair}: write NODE=yes or NODE=no; NODE is a path, a node's name, or *")
        found[node] = word == "yes"
    return found


def check_answers(given: Mapping[str, bool], graph: CompiledGraph | None) -> None:
    """That every name of an answer is that of a node that asks, where the graph is known. Raises `InputError`."""
    if graph is None:
        return
    asking = {node.name for scope in (graph.root, *graph.templates.values()) for node in scope.nodes if node.approval}
    for name in given:
        last = name.rpartition("/")[2].partition("[")[0]
        if name != "*" and last not in asking:
            meant = did_you_mean(last, asking)
            hint = f'did you mean "{meant}"?' if meant else f"it asks at {listed(sorted(asking))}"
            raise InputError(f'--approve {name}: no node "{last}" of the graph asks people; {hint}')


def form_of(pairs: Sequence[str]) -> dict[str, Any] | None:
    """`k=v`, a text, and `k:=v`, JSON, as an object; None where there are none. Raises `InputError`."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.removesuffix(":"):
            raise InputError(f"--form {pair}: write NAME=TEXT, or NAME:=JSON")
        try:
            found[name.removesuffix(":")] = orjson.loads(value) if name.endswith(":") else value
        except orjson.JSONDecodeError as error:
            raise InputError(
                f"--form {pair}: what follows := is no JSON ({error}); write NAME=TEXT for text"
            ) from error
    return found if pairs else None


class Desk:
    """Answers what a run of this process asks: by what was given with the command, else by asking at the terminal.

    `given` maps paths, names of nodes or `*` to decisions. `pause` hides what else is shown while somebody types.
    """

    def __init__(self, given: dict[str, bool], *, pause: Callable[[], AbstractContextManager[None]]) -> None:
        self._given = given
        self._pause = pause
        self.unused = set(given)
        """Names of `given` that nothing had that was asked until now."""

    async def __call__(self, asked: Sequence[Asked], answer: Callable[[Answer], Awaitable[Verdict]]) -> bool:
        """Answer one request at least; False when nobody is there who could."""
        for one in asked:
            decision = self._decided(one)
            if decision is not None:
                verdict = await answer(_answer(one, decision, None))
                if not verdict.accepted:
                    raise InputError(verdict.why)
                return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        with self._pause():
            await _at_the_terminal(asked[0], answer)
        return True

    def _decided(self, one: Asked) -> bool | None:
        for name in (one.path, one.node.name, "*"):
            if name in self._given:
                self.unused.discard(name)
                return self._given[name]
        return None


def _answer(one: Asked, approve: bool, form: dict[str, Any] | None) -> Answer:
    from decurion_worker.approving import Answer

    decision = "Approve" if approve else "Reject"
    return Answer(uuid4().hex, one.request, one.digest, decision, getpass.getuser(), form=form)  # type: ignore[arg-type]


async def _at_the_terminal(one: Asked, answer: Callable[[Answer], Awaitable[Verdict]]) -> None:
    """Ask until an answer is taken."""
    while True:
        typer.echo(f"\n{one.path} asks: {printable(one.message)}", err=True)
        word = (await _typed("approve? [yes/no] ")).lower()
        if word not in ("y", "yes", "n", "no"):
            continue
        approve = word in ("y", "yes")
        form = await _form(one.block.form) if approve and one.block.form is not None else None
        verdict = await answer(_answer(one, approve, form))
        if verdict.accepted:
            return
        typer.echo(printable(verdict.why), err=True)


async def _form(schema: dict[str, Any]) -> dict[str, Any]:
    """What is typed for the fields of a form; an optional one may be left empty."""
    found: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        optional = name not in schema.get("required", ())
        text = await _typed(f"{printable(name)}{' (optional)' if optional else ''}: ")
        if text or not optional:
            found[name] = _value(text, field)
    return found


def _value(text: str, schema: Any) -> Any:
    """A text where one is due, else the JSON that was typed; what is no JSON stays a text and is complained about."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    if kinds == "string" or (kinds is None and isinstance(schema, dict) and "enum" in schema):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


async def _typed(prompt: str) -> str:
    def read() -> str:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise InputError("the terminal was closed before an answer")
        return line.strip()

    return await asyncio.to_thread(read)

"""Exit codes, and how an error becomes one.

0: done. 1: the run failed, or what was compared differs. 2: the input is wrong. 3: something around is (store, secret,
network); the message ends with the line that goes on from here, where there is one. 4: the run waits for people. 130:
interrupted from the keyboard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from decurion_crds.errors import DecurionError, InputError
from decurion_crds.findings import CompileFailed, printable

OK, RUN_FAILED, BAD_INPUT, ENVIRONMENT, WAITING, INTERRUPTED = 0, 1, 2, 3, 4, 130
DIFFERENT = RUN_FAILED


def fail(message: str, code: int) -> NoReturn:
    """Say `message` on stderr, without what a terminal would obey, and leave with `code`."""
    lines = [printable(line) for line in message.split("\n")]
    typer.echo("decurion: " + "\n".join(lines), err=True)
    raise typer.Exit(code)


@contextmanager
def exits(*, resume: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turns the project's errors, and those of files that were named, into messages and exit codes.

    `resume` gives the line that goes on from where an error struck, if there is one.
    """
    try:
        yield
    except CompileFailed as error:
        for finding in error.findings:
            typer.echo(finding.text(), err=True)
        raise typer.Exit(BAD_INPUT) from error
    except InputError as error:
        fail(str(error) + _on(resume()), BAD_INPUT)
    except KeyboardInterrupt:
        fail("interrupted" + ("; what is finished is kept" + _on(resume()) if resume() else ""), INTERRUPTED)
    except DecurionError as error:
        fail(str(error) + _on(resume()), ENVIRONMENT)
    except OSError as error:
        if error.filename is None:
            raise
        reason = f"{error.filename}: {error.strerror or type(error).__name__}"
        fail(f"{reason}; name another place, or see that this one may be read and written" + _on(resume()), ENVIRONMENT)


def _on(line: str) -> str:
    return f"\ngo on with: {line}" if line else ""

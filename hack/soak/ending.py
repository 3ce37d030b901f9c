"""A soak that is told to end, by Ctrl-C or SIGTERM, says what it has seen until then."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def until_told(seeds: Iterable[int]) -> Iterator[int]:
    """`seeds`, until a signal asks for the end: the seed that is being looked at is the last one."""
    told: list[int] = []
    before = {number: signal.signal(number, lambda number, _: told.append(number)) for number in _SIGNALS}
    try:
        for seed in seeds:
            if told:
                return
            yield seed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pass_on(parts: Sequence[subprocess.Popen[str]]) -> None:
    """What asks this process to end asks its `parts`, and they are waited for."""
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: [part.send_signal(number) for part in parts])

"""`python hack/chaos --minutes 60 --seed 1`: real parts under seeded blows, every run checked when it has ended.

Several runs of seeded graphs are kept going on a pool over SeaweedFS and a model server. Blows (SIGKILL, and SIGSTOP
for a minute) fall on runners, driver, ingress and store when a run has so many committed records, so that a seed says
which blow meets which record. Of each run: it ended as declared, every path is committed once, the model was not asked
again for anything that was durable when a blow fell, the state hash is that of an undisturbed run in this process, and
the verifier finds nothing. One JSON line a run goes to standard output or `--report`, a summary to standard error; the
status is 1 when anything was violated, or a run did not end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import httpx  # noqa: E402
from cases import compiled, draw  # noqa: E402
from course import Calls, Course  # noqa: E402
from parts import Parts, started  # noqa: E402

GRACE = 10.0
"""A run that has not ended after so many stops is a violation: nothing that was done to it takes longer to mend."""
MAX_MEGABYTES = 4096


class Chaos:
    """Keeps `runs` going until `seconds` are over, then sees the last of them to their ends."""

    def __init__(self, parts: Parts, options: argparse.Namespace, report: TextIO) -> None:
        self.parts = parts
        self.options = options
        self.report = report
        self.chance = random.Random(options.seed)
        self.calls = Calls(parts.model)
        self.graphs = compiled(parts.model.endpoint)
        self.courses: dict[str, Course] = {}
        self.checker = ThreadPoolExecutor(1)
        self.checking: dict[Future[list[str]], Course] = {}
        self.number = 0
        self.violations = 0
        self.struck: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.resident = 0

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.courses or self.checking or time.monotonic() < until:
            while len(self.courses) < self.options.runs and time.monotonic() < until and self._has_room():
                self._begin()
            self.parts.tend()
            self._look()
            self._strike()
            for course in list(self.courses.values()):
                self._settle(course)
            for check in [check for check in self.checking if check.done()]:
                self._report(self.checking.pop(check), check.result())
            time.sleep(0.05)
        self.checker.shutdown()

    def _begin(self) -> None:
        self.number += 1
        case = draw(self.number, self.chance, self.parts.kinds, width=self.options.width)
        course = Course(case, self.graphs[case.graph])
        self.courses[case.name] = course
        course.open(self.parts)

    def _has_room(self) -> bool:
        """Disk is bounded: beyond the bound nothing new is begun, and the rest is seen to its end."""
        used = (
            sum(f.stat().st_size for f in self.options.folder.rglob("*") if f.is_file()) if self.number % 20 == 0 else 0
        )
        return used < MAX_MEGABYTES << 20

    def _look(self) -> None:
        """What the pool says of the runs; those that no driver has are opened again, as the operator would."""
        try:
            shown = self.parts.client.changes()["runs"]
            held = {run for driver in self.parts.client.drivers() for run in driver["runs"]}
        except httpx.HTTPError:
            return
        for name, course in self.courses.items():
            course.last = shown.get(name, course.last)
            if name not in held and not course.ended:
                course.open(self.parts)

    def _strike(self) -> None:
        for course in self.courses.values():
            blow = course.due()
            if blow is None:
                continue
            if not self.parts.store_sleeps:
                for one in self.courses.values():
                    one.note_durable(self.parts, self.calls)
            if course.strike(self.parts, blow):
                self.struck[blow.kind] += 1
                self.resident = max(self.resident, self.parts.resident())
            return

    def _settle(self, course: Course) -> None:
        course.seconds = time.monotonic() - course.begun
        overdue = course.seconds > 60 + GRACE * self.options.stop_seconds
        if not course.ended and not overdue:
            return
        del self.courses[course.case.name]
        if course.ended:
            check = self.checker.submit(course.violations, self.parts, Counter(self.calls.counts()))
            self.checking[check] = course
        else:
            self._report(course, ["it did not end"])

    def _report(self, course: Course, found: list[str]) -> None:
        self.violations += len(found)
        self.phases[str(course.last.get("phase"))] += 1
        self.report.write(json.dumps(course.line(found)) + "\n")
        self.report.flush()

    def summary(self) -> dict[str, Any]:
        return {
            "runs": self.number,
            "phases": dict(self.phases),
            "blows": dict(self.struck),
            "violations": self.violations,
            "modelCalls": sum(self.calls.counts().values()),
            "driverMiB": self.resident,
            "seed": self.options.seed,
        }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/chaos", description="Real parts under seeded blows.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executor", choices=("ray", "local"), default="ray")
    parser.add_argument("--runs", type=int, default=3, help="runs kept going at once")
    parser.add_argument("--width", type=int, default=64, help="branches of the widest run")
    parser.add_argument("--lease", type=float, default=20.0, help="seconds; also decides how often drivers are pinged")
    parser.add_argument("--stop-seconds", type=float, default=60.0, help="how long what is stopped stays so")
    parser.add_argument("--delay", type=float, default=0.3, help="seconds of each model call")
    parser.add_argument("--report", type=Path, help="file for the JSON lines; standard output without it")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    with TemporaryDirectory(prefix="chaos-") as folder:
        options.folder = Path(folder)
        report = options.report.open("a") if options.report else sys.stdout
        with started(
            options.folder,
            executor=options.executor,
            lease=options.lease,
            stop_seconds=options.stop_seconds,
            delay=options.delay,
        ) as parts:
            chaos = Chaos(parts, options, report)
            chaos.run(options.minutes * 60)
            summary = chaos.summary()
        if report is not sys.stdout:
            report.write(json.dumps({"summary": summary}) + "\n")
            report.close()
    print(json.dumps({"summary": summary}), file=sys.stderr)
    return 1 if summary["violations"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

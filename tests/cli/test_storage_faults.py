"""Stores that fail under a run of the command: one sentence, exit 3, and the line it ends with goes on later.

The run is a process; a model server counts its calls from outside. After the cause is gone the resumed run has the
state hash of an undisturbed one, every path is committed once, and nothing durable was asked of the model again.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from buckets import Bucket, own_bucket
from cluster.process import wait_until
from cluster.s3 import Identity, S3Server
from decurion_crds.canonical import digest
from decurion_ledger import Credentials, Store, open_store, read_log
from decurion_ledger.errors import RunNotFound
from decurion_ledger.layout import run_prefix
from dropping import DroppingGateway
from model_server import ModelServer, start_model_server

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {{name: m}}
spec: {{protocol: openai, model: test, endpoint: {endpoint}}}
---
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {{name: pages}}
spec:
  input: {{words: {{type: array, items: {{type: string}}}}, copies: {{type: integer}}}}
  nodes:
    - name: each
      with: {{copies: input.copies}}
      map: {{items: input.words, as: word, template: one}}
    - name: total
      with: {{lengths: "[one.length for one in nodes.each.output.items]"}}
      code: |
        {{"letters": sum(lengths)}}
      output: {{letters: {{type: integer}}}}
  output: {{letters: nodes.total.output.letters}}
  templates:
    - name: one
      input: {{word: {{type: string}}, copies: {{type: integer}}}}
      nodes:
        - name: ask
          with: {{word: input.word}}
          llm: {{ref: m, prompt: "Spell {{{{ word }}}}"}}
          output: {{spelled: {{type: string}}}}
        - name: page
          with: {{word: input.word, spelled: nodes.ask.output.spelled, copies: input.copies}}
          code: |
            {{"text": (word + spelled) * copies}}
          output: {{text: {{type: string}}}}
        - name: count
          with: {{text: nodes.page.output.text}}
          code: |
            {{"length": len(text)}}
          output: {{length: {{type: integer}}}}
      output: {{length: nodes.count.output.length}}
"""
BRANCHES = 48
STRUCK = 8
"""Segments that a log has when the store is struck: some branches are through, most have not begun."""


@dataclass
class Bench:
    """A folder with the graph, and the variables of the command. `copies` is how wide the pages are."""

    folder: Path
    model: ModelServer
    states: dict[int, str]
    run: str = field(default_factory=lambda: f"r-{secrets.token_hex(4)}")

    def begin(self, ledger: str, *more: str, copies: int, run: str = "", **env: str) -> subprocess.Popen[str]:
        words = {"words": [f"word{i:02d}" for i in range(BRANCHES)], "copies": copies}
        return self._start(
            "run", "graph.yaml", "-q", "--branches", "4", "--run-id", run or self.run, "--ledger", ledger,
            "--input", json.dumps(words), *more, env=env,
        )  # fmt: skip

    def do(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        process = self._start(*args, env=env)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def _start(self, *args: str, env: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "decurion_cli", *args],
            cwd=self.folder,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def undisturbed(self, *, copies: int) -> str:
        """The state hash of the same run on a store that does not fail."""
        if copies not in self.states:
            process = self.begin("whole", copies=copies, run="undisturbed")
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            last = log_of(open_store(str(self.folder / "whole")), "undisturbed")[-1]
            self.states[copies] = last.envelope["state"]
        return self.states[copies]


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with start_model_server(delay=0.25) as server:
        yield server


@pytest.fixture(scope="module")
def states() -> dict[int, str]:
    """State hashes of undisturbed runs, by the width of their pages."""
    return {}


@pytest.fixture
def bench(tmp_path: Path, model: ModelServer, states: dict[int, str]) -> Bench:
    (tmp_path / "graph.yaml").write_text(GRAPH.format(endpoint=model.endpoint))
    return Bench(tmp_path, model, states)


def log_of(store: Store, run: str) -> list[Any]:
    async def read() -> list[Any]:
        try:
            return [record async for _, record in read_log(store, run)]
        except RunNotFound:
            return []
        finally:
            await store.aclose()

    return asyncio.run(read())


def struck_at(bench: Bench, opened: Callable[[], Store], process: subprocess.Popen[str]) -> None:
    """Stop the process once its log has `STRUCK` segments; `told` lets it go on."""

    async def there() -> None:
        store = opened()
        prefix = f"{run_prefix(bench.run)}log/"
        async with asyncio.timeout(60):
            while len([info async for info in store.list(prefix)]) < STRUCK:
                assert process.poll() is None, process.communicate()[1]
                await asyncio.sleep(0.02)
        await store.aclose()

    asyncio.run(there())
    process.send_signal(signal.SIGSTOP)


def told(bench: Bench, process: subprocess.Popen[str], ledger: str, reason: str) -> list[str]:
    """The line that goes on, after the process has ended with the one sentence that holds `reason`."""
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith(f"decurion: run {bench.run} has not ended; what is finished is kept: ")
    assert reason in lines[0]
    assert lines[0].count(". ") == 0
    assert lines[1] == f"go on with: decurion run --resume {bench.run} --ledger {shlex.quote(ledger)}"
    return shlex.split(lines[1].removeprefix("go on with: decurion "))


def calls_of_durable(bench: Bench, log: list[Any]) -> dict[str, int]:
    """How often the model was asked for each answer that is durable."""
    counts = bench.model.keys()
    keys = [
        digest("effect/v0", bench.run.encode(), b"\0", record.path.encode(), b"\0", b"0")
        for record in log
        if record.type == "commit" and record.envelope.get("usage")
    ]
    return {key: counts[key] for key in keys}


def resumed(bench: Bench, line: list[str], opened: Callable[[], Store], *, state: str, **env: str) -> None:
    """The line goes on to the end that an undisturbed run has, and does nothing twice."""
    before = log_of(opened(), bench.run)
    calls = calls_of_durable(bench, before)
    assert calls, "nothing was durable when the store failed"
    assert set(calls.values()) == {1}
    done = bench.do(*line, "-q", **env)
    assert done.returncode == 0, done.stderr
    after = log_of(opened(), bench.run)
    assert [r.core_hash for r in after[: len(before)]] == [r.core_hash for r in before]
    assert after[-1].envelope["state"] == state
    paths = Counter(record.path for record in after if record.core is not None and record.type != "genesis")
    assert max(paths.values()) == 1
    counts = bench.model.keys()
    assert {key: counts[key] for key in calls} == calls
    verified = bench.do("ledger", "verify", line[-1], bench.run, **env)
    assert verified.returncode == 0, verified.stdout + verified.stderr


# ---------------------------------------------------------------------------- a disk


def test_a_disk_that_fills_up_with_the_run_s_own_pages(bench: Bench, small_disk: Path) -> None:
    state = bench.undisturbed(copies=4000)
    process = bench.begin(str(small_disk), copies=4000)
    line = told(bench, process, str(small_disk), "No space left on device; make room, or raise the limit.")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    resumed(bench, line, lambda: open_store(str(small_disk)), state=state)


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_a_disk_that_others_fill_up(bench: Bench, small_disk: Path) -> None:
    state = bench.undisturbed(copies=2)
    ledger = small_disk / "ledger"
    process = bench.begin(str(ledger), copies=2)
    struck_at(bench, lambda: open_store(str(ledger)), process)
    ballast = small_disk / "ballast"
    fill(ballast)
    line = told(bench, process, str(ledger), "No space left on device; make room, or raise the limit.")
    again = bench.do(*line, "-q")
    assert again.returncode == 3
    assert "No space left on device" in again.stderr
    ballast.unlink()
    resumed(bench, line, lambda: open_store(str(ledger)), state=state)


def test_a_folder_that_is_taken_away(bench: Bench) -> None:
    state = bench.undisturbed(copies=2)
    ledger = bench.folder / "ledger"
    process = bench.begin(str(ledger), copies=2)
    struck_at(bench, lambda: open_store(str(ledger)), process)
    ledger.rename(bench.folder / "away")
    line = told(bench, process, str(ledger), "the folder is gone; mount or restore the folder that holds the ledger.")
    assert not ledger.exists()
    (bench.folder / "away").rename(ledger)
    resumed(bench, line, lambda: open_store(str(ledger)), state=state)


# ---------------------------------------------------------------------------- a bucket


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[Bucket]:
    with own_bucket(s3_server) as made:
        yield made


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("secret", "the secret key is not that of the access key (SignatureDoesNotMatch, 403)"),
        ("actions", "the credentials may not do this (AccessDenied, 403)"),
    ],
)
def test_credentials_that_are_revoked(bench: Bench, bucket: Bucket, change: str, reason: str) -> None:
    state = bench.undisturbed(copies=2)
    process = bench.begin(bucket.uri, copies=2, **bucket.env)
    struck_at(bench, bucket.opened, process)
    who = bucket.who
    revoked = {
        "secret": Identity(who.access_key, "another-secret"),
        "actions": Identity(who.access_key, who.secret_key, ("Read", "List")),
    }[change]
    bucket.grant(revoked, works=False)
    line = told(
        bench, process, bucket.uri, f"{reason}; give credentials that may read and write under the ledger's root."
    )
    bucket.grant(who, works=True)
    resumed(bench, line, bucket.opened, state=state, **bucket.env)


def test_a_bucket_that_is_deleted(bench: Bench, bucket: Bucket) -> None:
    state = bench.undisturbed(copies=2)
    process = bench.begin(bucket.uri, copies=2, **bucket.env)
    struck_at(bench, bucket.opened, process)
    kept: dict[str, bytes] = {}
    same = 0

    def settled() -> bool:
        """What was on its way when the process stopped has arrived: a busy server takes its time."""
        nonlocal same
        before = dict(kept)
        kept.update(bucket.objects())
        same = same + 1 if before == kept else 0
        return same == 5

    wait_until(settled, seconds=30, what="a bucket at rest", every=0.3)
    bucket.admin.delete_bucket(Bucket=bucket.name)
    line = told(
        bench, process, bucket.uri, "the bucket does not exist (NoSuchBucket, 404); create or restore the bucket"
    )
    bucket.admin.create_bucket(Bucket=bucket.name)
    for key, data in kept.items():
        bucket.admin.put_object(Bucket=bucket.name, Key=key, Body=data)
    resumed(bench, line, bucket.opened, state=state, **bucket.env)


def test_a_server_that_stays_away_is_waited_for_as_long_as_is_said(bench: Bench, tmp_path: Path) -> None:
    server = S3Server(tmp_path / "s3")
    try:
        server.start()
        uri = server.uri("ledger")
        state = bench.undisturbed(copies=2)
        process = bench.begin(uri, "--store-patience", "6", copies=2, **server.env)

        def opened() -> Store:
            keys = Credentials(server.access_key, server.secret_key)
            return open_store(uri, endpoint_url=server.endpoint_url, credentials=keys)

        struck_at(bench, opened, process)
        server.stop()
        line = told(bench, process, uri, "Could not connect to the endpoint URL")
        server.start()
        resumed(bench, line, opened, state=state, **server.env)
    finally:
        server.stop()


# ---------------------------------------------------------------------------- a store that is refused


def test_a_gateway_that_drops_the_condition_is_refused_by_a_run_and_found_by_the_check(
    bench: Bench, s3_server: S3Server
) -> None:
    uri = s3_server.uri(f"dropped-{time.monotonic_ns()}")
    with DroppingGateway(s3_server) as gateway:
        env = {**s3_server.env, "AWS_ENDPOINT_URL_S3": gateway.endpoint_url}
        process = bench.begin(uri, copies=2, **env)
        err = process.communicate(timeout=60)[1]
        assert process.returncode == 3, err
        assert len(err.splitlines()) == 1
        assert err.startswith(f"decurion: {uri}: a second conditional write took the place of the first: If-None-Match")
        checked = bench.do("storage", "check", uri, "--clients", "2", "-o", "json", **env)
        assert checked.returncode == 1, checked.stderr
        answer = json.loads(checked.stdout)
        assert answer["fit"] is False
        failed = {one["name"] for one in answer["properties"] if one["verdict"] == "fail"}
        assert {"exclusive creation", "races"} <= failed
    keys = Credentials(s3_server.access_key, s3_server.secret_key)
    assert log_of(open_store(uri, endpoint_url=s3_server.endpoint_url, credentials=keys), bench.run) == []


def test_the_check_tells_what_a_folder_keeps(bench: Bench) -> None:
    checked = bench.do("storage", "check", "place")
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr == ""
    lines = checked.stdout.splitlines()
    assert lines[-1] == "place is fit for a ledger."
    assert all(line.startswith(("pass ", "not offered ")) for line in lines[:-1])
    assert list((bench.folder / "place" / "checks").iterdir()) == []


def test_a_place_that_cannot_be_used_is_told_in_a_sentence(bench: Bench, bucket: Bucket) -> None:
    env = bucket.env
    for uri, changed, reason in (
        (f"s3://no-{bucket.name}/x", {}, "the bucket does not exist"),
        (bucket.uri, {"AWS_SECRET_ACCESS_KEY": "wrong"}, "the secret key is not that of the access key"),
        ("/proc/nowhere", {}, "No such file or directory"),
    ):
        done = bench.do("storage", "check", uri, "-q", **{**env, **changed})
        assert done.returncode == 3, done.stdout
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1
    (bench.folder / "in.json").write_text('{"words": [], "copies": 1}')
    run = bench.do("run", "graph.yaml", "-q", "--input", "@in.json", "--ledger", f"s3://no-{bucket.name}/x", **env)
    assert run.returncode == 3
    assert "the bucket does not exist" in run.stderr
    assert len(run.stderr.splitlines()) == 1

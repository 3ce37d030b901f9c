"""The main job as its user sees it: manifests applied with kubectl, a run fanned out over Ray, its ledger in S3, its
nodes' states on the resource. Real API server, real operator process, real Ray, real S3 server; a model server of ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from inputs import EXAMPLE, documents, graph_input

from cluster.api_server import ApiServer
from cluster.process import wait_until
from cluster.s3 import S3Server
from decurion_crds.canonical import digest
from decurion_ledger import Credentials, open_store, read_log, verify
from model_server import start_model_server
from operator_process import OperatorProcess
from pool import Pool

pytestmark = [pytest.mark.s3, pytest.mark.ray, pytest.mark.cluster]

LEASE = 3.0
SECRET = "sk-planted-3f9c1b7a"

GRAPH = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: words}
spec:
  input: {words: {type: array, items: {type: string}}}
  nodes:
    - name: each
      map: {items: input.words, as: word, template: one, concurrency: 8}
    - name: total
      with: {texts: "[one.text for one in nodes.each.output.items]"}
      code: |
        {"words": len(texts), "first": texts[0] if texts else ""}
      output: {words: {type: integer}, first: {type: string}}
  output: {words: nodes.total.output.words, first: nodes.total.output.first}
  templates:
    - name: one
      input: {word: {type: string}}
      nodes:
        - name: ask
          with: {word: input.word}
          llm: {ref: fast, prompt: "Echo {{ word }}"}
        - name: again
          with: {text: nodes.ask.output.text}
          llm: {ref: fast, prompt: "Echo {{ text }}"}
      output: {text: nodes.again.output.text}
"""


@dataclass
class Stage:
    """Everything that a run on a cluster needs, and what a person does with it."""

    api: ApiServer
    namespace: str
    operator: OperatorProcess
    pool: Pool
    s3: S3Server
    model: Any
    folder: Path
    states: dict[str, str] = field(default_factory=dict)

    def kubectl(self, *args: str | Path) -> str:
        return str(self.api.kubectl("--namespace", self.namespace, *args))

    def apply(self, text: str, *flags: str) -> None:
        file = self.folder / f"{secrets.token_hex(4)}.yaml"
        file.write_text(text)
        self.kubectl("apply", *flags, "--filename", file)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", kind, name, "-o", "json")))

    def status(self, run: str) -> dict[str, Any]:
        return dict(self.get("tgr", run).get("status", {}))

    def until(self, run: str, reached: Callable[[dict[str, Any]], bool], *, seconds: float = 60) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def there() -> bool:
            nonlocal found
            found = self.status(run)
            return reached(found)

        wait_until(there, seconds=seconds, what=f"run {run}", every=0.2)
        return found

    def start(self, run: str, words: int = 60, **spec: Any) -> None:
        values = {"graph": "words", "pool": "ray", "input": {"words": [f"w{i}" for i in range(words)]}, **spec}
        self.apply(_run(run, values))

    def wait(self, run: str, seconds: int = 120) -> dict[str, Any]:
        self.kubectl("wait", "--for=condition=Succeeded", f"tgr/{run}", f"--timeout={seconds}s")
        return self.status(run)

    def uid(self, run: str) -> str:
        return str(self.get("tgr", run)["metadata"]["uid"])

    def store(self, ledger: str = "") -> Any:
        return open_store(
            ledger or self.pool.ledger,
            endpoint_url=self.s3.endpoint_url,
            region="us-east-1",
            credentials=Credentials(self.s3.access_key, self.s3.secret_key),
        )

    def log(self, run: str) -> list[Any]:
        uid = self.uid(run)

        async def read() -> list[Any]:
            return [record async for _, record in read_log(self.store(), uid)]

        return asyncio.run(read())

    def committed(self, run: str, count: int) -> None:
        """Return when the run has so many durable records, as its pool tells."""
        self.pool.client().follow(self.uid(run), until=lambda p: p["committed"] >= count, timeout=90)

    def durable_calls(self, run: str) -> dict[str, int]:
        uid = self.uid(run)
        paths = [r.path for r in self.log(run) if r.type == "commit" and r.envelope.get("usage")]
        keys = [digest("effect/v0", uid.encode(), b"\0", path.encode(), b"\0", b"0") for path in paths]
        counts = self.model.keys()  # after the log: what is durable was called before
        return {key: counts[key] for key in keys}

    def check(self, run: str, before: dict[str, int] | None = None) -> list[Any]:
        """A run that was struck: its log is in order, nothing durable ran again, its state is that of a quiet run."""
        log = self.log(run)
        paths = Counter(r.path for r in log if r.core is not None and r.type != "genesis")
        assert max(paths.values()) == 1
        assert asyncio.run(verify(self.store(), self.uid(run))) == []
        if before is not None:
            assert before, "nothing was durable when the blow fell"
            counts = self.model.keys()
            assert {key: counts[key] for key in before} == before, "the model was asked again for what was durable"
        return log


@pytest.fixture(scope="module")
def stage(
    api_server: ApiServer, _resource_definitions: None, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("kubectl")
    namespace = f"spine-{secrets.token_hex(4)}"
    api_server.kubectl("create", "namespace", namespace)
    operator = OperatorProcess(folder, kubeconfig=api_server.kubeconfig, namespace=namespace)
    with start_model_server(delay=0.2, token=SECRET) as model:
        pool = Pool(
            folder / "pool",
            ledger=s3_server.uri(namespace),
            executor="ray",
            env=s3_server.env,
            runners=2,
            branches=1024,
            lease=LEASE,
            ping=1.5,
        )
        with pool:
            made = Stage(api_server, namespace, operator, pool, s3_server, model, folder)
            operator.start()
            try:
                made.apply(_definitions(made))
                made.apply(GRAPH)
                made.kubectl("wait", "--for=condition=Ready", "tg/words", "tgw/ray", "--timeout=60s")
                yield made
            finally:
                operator.stop()
                api_server.kubectl("delete", "namespace", namespace, "--wait=false")


def _definitions(stage: Stage) -> str:
    return f"""
apiVersion: v1
kind: Secret
metadata: {{name: pool, labels: {{decurion.dev/use: "true"}}}}
stringData: {{token: {stage.pool.token}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: model, labels: {{decurion.dev/use: "true"}}}}
stringData: {{key: {SECRET}}}
---
apiVersion: decurion.dev/v1alpha1
kind: WorkerPool
metadata: {{name: ray}}
spec:
  mode: External
  url: {stage.pool.url}
  auth: {{secretKeyRef: {{name: pool, key: token}}}}
---{_model(stage, "fast")}
"""


def _model(stage: Stage, name: str) -> str:
    return f"""
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {{name: {name}}}
spec:
  protocol: openai
  model: test
  endpoint: {stage.model.endpoint}
  auth: {{secretKeyRef: {{name: model, key: key}}}}
"""


def _run(name: str, spec: dict[str, Any]) -> str:
    kind = {"apiVersion": "decurion.dev/v1alpha1", "kind": "TaskGraphRun"}
    return json.dumps({**kind, "metadata": {"name": name}, "spec": spec})


@pytest.fixture(scope="module")
def quiet(stage: Stage) -> dict[str, Any]:
    """A run that nothing happens to."""
    stage.start("quiet")
    return stage.wait("quiet")


def test_kubectl_wait_returns_when_the_run_has_succeeded(stage: Stage, quiet: dict[str, Any]) -> None:
    assert quiet["phase"] == "Succeeded"
    assert quiet["progress"] == "61/61"
    assert quiet["output"]["words"] == 60
    nodes = {node["name"]: node for node in quiet["nodes"]}
    assert nodes["each"]["succeeded"] == 60
    assert nodes["total"]["phase"] == "Succeeded"
    listed = stage.kubectl("get", "tgr")
    assert "Succeeded" in listed
    assert "61/61" in listed


def test_the_records_name_two_runner_processes_and_verify(stage: Stage, quiet: dict[str, Any]) -> None:
    log = stage.check("quiet")
    assert len({r.envelope["worker"] for r in log if r.type == "commit" and "usage" in r.envelope}) == 2


def _laptop(stage: Stage, files: list[Path], given: str) -> tuple[list[Any], Any]:
    """The log and the output of `decurion run` of these files, on a ledger folder of its own."""
    ledger = stage.folder / f"laptop-{secrets.token_hex(4)}"
    command = [sys.executable, "-m", "decurion_cli", "run", *map(str, files), "--input", given, "--ledger", str(ledger)]
    env = {**os.environ, "DECURION_SECRET_MODEL_KEY": SECRET}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr

    async def read() -> list[Any]:
        run = next(iter((ledger / "runs").glob("*/*"))).name
        return [record async for _, record in read_log(open_store(str(ledger)), run)]

    return asyncio.run(read()), json.loads(done.stdout)


def test_the_same_manifests_give_the_same_hashes_on_a_laptop(stage: Stage, quiet: dict[str, Any]) -> None:
    file = stage.folder / "laptop.yaml"
    file.write_text(GRAPH + "---" + _model(stage, "fast"))
    words = json.dumps({"words": [f"w{i}" for i in range(60)]})
    log, output = _laptop(stage, [file], words)
    cluster = {r.path: r.core_hash for r in stage.log("quiet") if r.core and r.type != "genesis"}
    assert {r.path: r.core_hash for r in log if r.core and r.type != "genesis"} == cluster
    assert log[-1].envelope["state"] == quiet["stateHash"]
    assert output == quiet["output"]


def test_no_secret_is_in_a_resource_or_in_the_store(stage: Stage, quiet: dict[str, Any]) -> None:
    shown = stage.kubectl("get", "tgr,tg,tgm,tgw,events", "-o", "yaml")
    assert SECRET not in shown
    assert stage.pool.token not in shown

    async def stored() -> bytes:
        store = stage.store()
        found = b""
        async for key in store.list(""):
            found += await store.get(key if isinstance(key, str) else key.key)
        return found

    raw = asyncio.run(stored())
    assert raw
    assert SECRET.encode() not in raw
    logs = stage.operator.log.read_bytes() + (stage.folder / "pool" / "pool.log").read_bytes()
    assert SECRET.encode() not in logs
    assert stage.pool.token.encode() not in logs


def test_a_killed_operator_changes_nothing_for_the_run(stage: Stage, quiet: dict[str, Any]) -> None:
    stage.start("operator-killed")
    stage.until("operator-killed", lambda s: s.get("phase") == "Running")
    stage.committed("operator-killed", 30)
    stage.operator.kill()
    before = stage.durable_calls("operator-killed")
    stage.operator.start()
    end = stage.wait("operator-killed")
    stage.check("operator-killed", before)
    assert end["stateHash"] == quiet["stateHash"]


def test_a_killed_driver_is_opened_again_by_the_operator(stage: Stage, quiet: dict[str, Any]) -> None:
    stage.start("driver-killed")
    stage.until("driver-killed", lambda s: s.get("phase") == "Running")
    victim = stage.pool.client().drivers()[0]["pid"]
    stage.committed("driver-killed", 30)
    os.kill(victim, signal.SIGKILL)
    before = stage.durable_calls("driver-killed")
    end = stage.wait("driver-killed")
    stage.check("driver-killed", before)
    assert end["stateHash"] == quiet["stateHash"]
    assert end["attempt"] == 2


def test_a_killed_runner_is_replaced(stage: Stage, quiet: dict[str, Any]) -> None:
    stage.start("runner-killed")
    stage.until("runner-killed", lambda s: s.get("phase") == "Running")
    victim = stage.pool.client().drivers()[0]["runners"][0]
    stage.committed("runner-killed", 30)
    os.kill(int(victim.split("-")[-2]), signal.SIGKILL)
    before = stage.durable_calls("runner-killed")
    end = stage.wait("runner-killed")
    stage.check("runner-killed", before)
    assert end["stateHash"] == quiet["stateHash"]
    assert end["attempt"] == 1


def test_a_driver_that_stops_for_three_leases_is_replaced(stage: Stage, quiet: dict[str, Any]) -> None:
    stage.start("driver-stopped")
    stage.until("driver-stopped", lambda s: s.get("phase") == "Running")
    stopped = stage.pool.client().drivers()[0]
    stage.committed("driver-stopped", 30)
    os.kill(stopped["pid"], signal.SIGSTOP)
    before = stage.durable_calls("driver-stopped")
    end = stage.wait("driver-stopped")
    stage.check("driver-stopped", before)
    assert end["stateHash"] == quiet["stateHash"]
    assert stage.pool.client().drivers()[0]["incarnation"] != stopped["incarnation"]


def test_a_store_that_is_away_for_three_leases_is_waited_for(stage: Stage, quiet: dict[str, Any]) -> None:
    stage.start("store-away")
    stage.until("store-away", lambda s: s.get("phase") == "Running")
    runners = stage.pool.client().drivers()[0]["runners"]
    stage.committed("store-away", 30)
    stage.s3.server.pause()
    try:
        stage.until("store-away", lambda s: s.get("reason") == "StoreUnavailable")
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > 3 * LEASE, seconds=4 * LEASE, what="three leases")
    finally:
        stage.s3.server.resume()
    before = stage.durable_calls("store-away")
    end = stage.wait("store-away")
    stage.check("store-away", before)
    assert end["stateHash"] == quiet["stateHash"]
    assert end["attempt"] == 1
    assert stage.pool.client().drivers()[0]["runners"] == runners


def test_an_edited_graph_does_not_change_a_run_whose_operator_and_driver_die(
    stage: Stage, quiet: dict[str, Any]
) -> None:
    stage.start("graph-edited")
    begun = stage.until("graph-edited", lambda s: s.get("phase") == "Running")
    victim = stage.pool.client().drivers()[0]["pid"]
    stage.committed("graph-edited", 30)
    stage.apply(GRAPH.replace("Echo {{ text }}", "Say {{ text }} louder"))
    stage.operator.kill()
    os.kill(victim, signal.SIGKILL)
    before = stage.durable_calls("graph-edited")
    stage.operator.start()
    try:
        end = stage.wait("graph-edited")
        stage.check("graph-edited", before)
        assert end["graphDigest"] == begun["graphDigest"] == quiet["graphDigest"]
        assert end["stateHash"] == quiet["stateHash"]
    finally:
        stage.apply(GRAPH)


def test_cancel_ends_a_run(stage: Stage) -> None:
    stage.start("cancelled", words=400)
    stage.until("cancelled", lambda s: s.get("phase") == "Running")
    stage.kubectl("patch", "tgr", "cancelled", "--type=merge", "-p", '{"spec": {"cancel": "Cancel"}}')
    end = stage.until("cancelled", lambda s: s.get("phase") == "Cancelled")
    assert end["finishedAt"]
    assert any(c["type"] == "Succeeded" and c["status"] == "False" for c in end["conditions"])


def test_kubectl_wait_still_returns_after_the_ttl_was_patched(stage: Stage, quiet: dict[str, Any]) -> None:
    stage.kubectl("patch", "tgr", "quiet", "--type=merge", "-p", '{"spec": {"ttlSecondsAfterFinished": 86400}}')
    stage.kubectl("wait", "--for=condition=Succeeded", "tgr/quiet", "--timeout=30s")


def test_a_second_manager_replaces_the_graph_whole(stage: Stage) -> None:
    first = GRAPH.replace("name: words", "name: moved", 1)
    second = first.replace("name: total", "name: summary").replace("nodes.total.", "nodes.summary.")
    stage.apply(first, "--server-side", "--field-manager=one")
    stage.apply(second, "--server-side", "--field-manager=two", "--force-conflicts")
    assert [n["name"] for n in stage.get("tg", "moved")["spec"]["nodes"]] == ["each", "summary"]
    stage.kubectl("wait", "--for=condition=Ready", "tg/moved", "--timeout=30s")


WIDE = """
apiVersion: decurion.dev/v1alpha1
kind: TaskGraph
metadata: {name: wide}
spec:
  input: {count: {type: integer}}
  nodes:
    - name: plan
      with: {count: input.count}
      code: |
        {"words": [f"w{i}" for i in range(count)]}
      output: {words: {type: array, items: {type: string}}}
    - name: each
      map: {items: nodes.plan.output.words, as: word, template: one}
  output: {words: len(nodes.each.output.items)}
  templates:
    - name: one
      input: {word: {type: string}}
      nodes:
        - name: ask
          with: {word: input.word}
          llm: {ref: slow, prompt: "Echo {{ word }}"}
      output: {text: nodes.ask.output.text}
"""


def test_the_filings_example_gives_the_same_on_the_cluster_and_on_a_laptop(stage: Stage) -> None:
    """24 real filings, five facts each, from an object of the pool's bucket; the same by `decurion run` from a file."""
    prefix = f"{stage.namespace}-filings"
    uri = stage.s3.uri(prefix)

    async def upload() -> None:
        store = stage.store(uri)
        await store.put("documents.jsonl", documents())
        await store.put("input.json", graph_input(f"{uri}/documents.jsonl"))

    asyncio.run(upload())
    llm = _model(stage, "small")
    stage.kubectl("apply", "--filename", EXAMPLE / "graph.yaml")
    stage.apply(llm)
    stage.kubectl("wait", "--for=condition=Ready", "tg/filings", "--timeout=60s")
    run = {"graph": "filings", "pool": "ray", "inputFrom": {"uri": f"{uri}/input.json"}}
    stage.apply(_run("filings", run))
    seen: set[str] = set()

    def ended(status: dict[str, Any]) -> bool:
        seen.add(status.get("progress", ""))
        return status.get("phase") in ("Succeeded", "Failed")

    end = stage.until("filings", ended, seconds=300)
    assert end["phase"] == "Succeeded", end
    assert any(p.endswith("/25") and p != "25/25" for p in seen), "progress was not shown"
    log = stage.check("filings")
    assert len({r.envelope["worker"] for r in log if r.type == "commit" and "usage" in r.envelope}) >= 2

    lines, given = stage.folder / "documents.jsonl", stage.folder / "input.json"
    lines.write_bytes(documents())
    given.write_bytes(graph_input(str(lines)))
    (stage.folder / "small.yaml").write_text(llm)
    laptop, output = _laptop(stage, [EXAMPLE / "graph.yaml", stage.folder / "small.yaml"], f"@{given}")
    cluster = {r.path: r.core_hash for r in log if r.core and r.type != "genesis"}
    assert {r.path: r.core_hash for r in laptop if r.core and r.type != "genesis"} == cluster
    assert laptop[-1].envelope["state"] == end["stateHash"]
    assert len(output["rows"]) == 120


@pytest.fixture
def calm_pool(stage: Stage) -> Iterator[Pool]:
    """A pool with the lease of production: on busy cores a burst of 2,000 starts may take longer than three seconds."""
    pool = Pool(
        stage.folder / "calm",
        ledger=stage.s3.uri(f"{stage.namespace}-calm"),
        executor="ray",
        env=stage.s3.env,
        runners=2,
    )
    with pool:
        stage.kubectl("create", "secret", "generic", "calm", f"--from-literal=token={pool.token}")
        stage.kubectl("label", "secret", "calm", "decurion.dev/use=true")
        auth = "{secretKeyRef: {name: calm, key: token}}"
        spec = f"{{mode: External, url: '{pool.url}', auth: {auth}}}"
        stage.apply(f"{{apiVersion: decurion.dev/v1alpha1, kind: WorkerPool, metadata: {{name: calm}}, spec: {spec}}}")
        stage.kubectl("wait", "--for=condition=Ready", "tgw/calm", "--timeout=60s")
        yield pool


def test_two_thousand_branches_cost_few_writes_and_little_status(stage: Stage, calm_pool: Pool) -> None:
    with start_model_server(delay=1.0) as model:
        spec = f"{{protocol: openai, model: slow, endpoint: {model.endpoint}}}"
        stage.apply(f"{{apiVersion: decurion.dev/v1alpha1, kind: LLM, metadata: {{name: slow}}, spec: {spec}}}")
        stage.apply(WIDE)
        stage.kubectl("wait", "--for=condition=Ready", "tg/wide", "--timeout=60s")
        store = stage.store(calm_pool.ledger)
        before = asyncio.run(_objects(store))
        watched = stage.folder / "watched.jsonl"
        with watched.open("wb") as out:
            watch = subprocess.Popen(
                [
                    str(stage.api.kubectl_command), "--namespace", stage.namespace, "get", "tgr", "--watch",
                    "--output-watch-events", f"--output=jsonpath={_SHOWN}",
                ],
                stdout=out,
                env=stage.api.env,
            )  # fmt: skip
            try:
                stage.start("wide", graph="wide", pool="calm", input={"count": 2000})
                end = stage.wait("wide")
                wait_until(lambda: b"wide" in watched.read_bytes(), seconds=20, what="the watch")
            finally:
                watch.terminate()
                watch.wait(20)
        assert end["output"] == {"words": 2000}
        assert len(json.dumps(end)) < 32 * 1024
        writes = {line.split()[2] for line in watched.read_text().splitlines() if " wide " in line}
        assert len(writes) <= 30, f"{len(writes)} API writes"
        puts = asyncio.run(_objects(store)) - before
        assert puts <= 60, f"{puts} objects were written"
        assert sum(model.keys().values()) == 2000


_SHOWN = "{.type} {.object.metadata.name} {.object.metadata.resourceVersion} {.object.status.progress}{'\\n'}"


async def _objects(store: Any) -> int:
    """Objects in the pool's store. Nothing in it is written twice, so their growth is the number of PUTs."""
    return len([key async for key in store.list("")])


def test_a_deleted_run_stops_in_its_driver(stage: Stage) -> None:
    stage.start("deleted", words=400)
    stage.until("deleted", lambda s: s.get("phase") == "Running")
    uid = stage.uid("deleted")
    stage.kubectl("delete", "tgr", "deleted")
    client = stage.pool.client()
    wait_until(
        lambda: all(uid not in d["runs"] for d in client.drivers()), seconds=150, what="the orphan's end", every=1.0
    )

"""Graphs over files: `itemsFrom.prefix` lists them once, `load` reads one when its node runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.s3 import S3Server
from crashes import Process, body, cut, new_store, read, results, sound
from decurion_ledger import Record, Store, open_store
from decurion_ledger.errors import Unavailable
from decurion_ledger.patience import Patience
from decurion_ledger.stores import MemoryStore, ObjectInfo, Range
from decurion_worker.runner import RunnerSettings
from decurion_worker.session import RunSession
from decurion_worker.sources import Sources
from manifests import compiled
from others_objects import Bucket

WORDS = """
  input: {folder: {type: string}}
  nodes:
    - name: each
      map: {itemsFrom: {prefix: input.folder, glob: "**/*.txt"}, as: file, template: one}
  output: {found: nodes.each.output.items, failures: nodes.each.output.failures}
  templates:
    - name: one
      input: {file: {type: object, required: [key, uri], properties: {key: {type: string}, uri: {type: string}}}}
      nodes:
        - name: count
          with: {key: input.file.key}
          load: {text: {from: input.file}}
          transform: {key: key, words: len(text.split())}
      output: {key: nodes.count.output.key, words: nodes.count.output.words}
"""
TOLERANT = WORDS.replace("template: one}", "template: one, tolerate: {percent: 100}}")
ONE = """
  input: {uri: {type: string}}
  nodes:
    - name: only
      load: {it: {from: input.uri, MORE}}
      transform: {it: it}
  output: {it: nodes.only.output.it}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    for name, text in (("b.txt", "one"), ("a/c.txt", "one two"), ("a/note.md", "no"), ("a.txt", "")):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


async def done(spec: str, given: Any, *, store: Store | None = None, **process: Any) -> tuple[RunSession, list[Record]]:
    store = store or new_store()
    async with Process(store, **process) as running:
        session = await running.run(compiled(spec), given)
    return session, await sound(store)


async def loaded(uri: str, more: str, **process: Any) -> RunSession:
    return (await done(ONE.replace("MORE", more), {"uri": uri}, **process))[0]


def told(session: RunSession) -> tuple[str, str]:
    (failure,) = session.projection()["failures"]
    assert "\n" not in failure["message"]
    return failure["class"], failure["message"]


async def test_each_file_of_a_folder_has_a_branch_named_by_its_key(folder: Path) -> None:
    session, log = await done(WORDS, {"folder": folder.as_uri()})
    found = [{"key": "a.txt", "words": 0}, {"key": "a/c.txt", "words": 2}, {"key": "b.txt", "words": 1}]
    assert session.engine.output == {"found": found, "failures": []}
    assert [r.type for r in log if r.path == "/each!open"] == ["scope_opened"]
    (folder / "_first.txt").write_text("one")
    _, later = await done(WORDS, {"folder": str(folder)})
    assert {r.path for r in log} < {r.path for r in later}


async def test_a_folder_without_such_files_has_no_branches(folder: Path) -> None:
    session, _ = await done(WORDS.replace("*.txt", "*.pdf"), {"folder": str(folder)})
    assert session.engine.output == {"found": [], "failures": []}


async def test_a_run_that_goes_on_does_not_list_again(folder: Path) -> None:
    first = new_store()
    whole, log = await done(WORDS, {"folder": str(folder)}, store=first)
    opened = next(i for i, r in enumerate(body(log), start=1) if r.type == "scope_opened")
    for records in range(len(body(log)) + 1):
        store = await cut(log, records, blobs=first)
        late = folder / "late.txt"
        if records >= opened:
            late.write_text("it came late")
        async with Process(store) as process:
            session = await process.run(None, epoch=1)
        late.unlink(missing_ok=True)
        at = f"cut after {records} records"
        assert session.facts.state_hash == whole.facts.state_hash, at
        assert results(await sound(store)) == results(log), at


async def test_a_file_that_changed_since_it_was_listed_fails_its_branch_only(folder: Path) -> None:
    first = new_store()
    _, log = await done(TOLERANT, {"folder": str(folder)}, store=first)
    opened = next(i for i, r in enumerate(body(log), start=1) if r.type == "scope_opened")
    store = await cut(log, opened, blobs=first)
    (folder / "b.txt").write_text("two")
    (folder / "a.txt").unlink()
    async with Process(store) as process:
        session = await process.run(None, epoch=1)
    assert session.engine.output["found"] == [{"key": "a/c.txt", "words": 2}]
    failures = [(f["key"], f["error"]) for f in session.engine.output["failures"]]
    assert failures == [("a.txt", "SourceMissing"), ("b.txt", "SourceChanged")]
    assert any("it has changed since it was listed" in json.dumps(r.envelope) for r in await read(store))


@pytest.mark.parametrize(
    ("content", "more", "value"),
    [
        ("täxt\n".encode(), "as: text", "täxt\n"),
        ("\ufefftext".encode(), "maxBytes: 7", "text"),
        (b"\xff\x00", "as: bytes", "/wA="),
        (b'{"num": 1.0}', "as: json, schema: {num: {type: integer}}", {"num": 1}),
        (b" [1, null]", "as: json", [1, None]),
        (b"", "as: text", ""),
    ],
)
async def test_what_is_loaded_is_as_the_load_says(tmp_path: Path, content: bytes, more: str, value: Any) -> None:
    (tmp_path / "f").write_bytes(content)
    session = await loaded((tmp_path / "f").as_uri(), more)
    assert session.engine.output == {"it": value}


@pytest.mark.parametrize(
    ("content", "more", "code", "words"),
    [
        (b"12345678", "maxBytes: 7", "SourceRefused", "it has 8 bytes, more than 7; raise maxBytes, or split it"),
        (b"a\xff", "as: text", "SourceRefused", "it is no UTF-8 text (byte 1); write as: bytes, or convert it"),
        (b"{", "as: json", "SourceInvalid", "it is no JSON"),
        (b'{"num": "x"}', "as: json, schema: {num: {type: integer}}", "SourceInvalid", "num"),
        (b"12345678901234567890", "as: json", "SourceInvalid", "correct it"),
        (None, "as: text", "SourceMissing", "there is no such file or object"),
    ],
)
async def test_what_cannot_be_loaded_is_told(
    tmp_path: Path, content: bytes | None, more: str, code: str, words: str
) -> None:
    if content is not None:
        (tmp_path / "f").write_bytes(content)
    failed, said = told(await loaded((tmp_path / "f").as_uri(), more))
    assert failed == code
    assert words in said


async def test_what_was_loaded_is_in_the_record_and_decides_its_hash(tmp_path: Path) -> None:
    hashes = set()
    for text in ("one", "two", "one"):
        (tmp_path / "f").write_text(text)
        _, log = await done(ONE.replace("MORE", "as: text"), {"uri": (tmp_path / "f").as_uri()})
        (record,) = [r for r in log if r.path == "/only" and r.core is not None]
        hashes.add(record.core["input"])
    assert len(hashes) == 2


async def test_a_pool_does_not_load_files_of_its_machine(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("secret")
    for uri in ((tmp_path / "f").as_uri(), str(tmp_path / "f")):
        code, said = told(await loaded(uri, "as: text", sources=Sources(open_store, files=False)))
        assert code == "SourceRefused"
        assert "put it into the pool's store as s3://" in said


class Away(MemoryStore):
    """A store that does not answer the first two requests of each kind."""

    def __init__(self) -> None:
        super().__init__("in")
        self._lost = {"get": 2, "head": 2, "list": 2}

    def _lose(self, verb: str) -> None:
        self._lost[verb] -= 1
        if self._lost[verb] >= 0:
            raise Unavailable(f"{verb} {self.uri}", "SlowDown (503)")

    async def get(self, key: str, range: Range | None = None) -> bytes:
        self._lose("get")
        return await super().get(key, range)

    async def head(self, key: str) -> ObjectInfo:
        self._lose("head")
        return await super().head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        self._lose("list")
        async for one in super().list(prefix, after):
            yield one


async def test_a_store_that_asks_to_wait_is_asked_again() -> None:
    away = Away()
    await away.put("docs/a.txt", b"one two three")
    runner = RunnerSettings(branches=8, processes=1, patience=Patience(first=0.001, longest=0.001))
    session, _ = await done(
        WORDS, {"folder": "memory://in/docs"}, runner=runner, sources=Sources(lambda uri: away, files=False)
    )
    assert session.engine.output["found"] == [{"key": "a.txt", "words": 3}]
    assert session.facts.attempt == 1


async def test_objects_of_a_bucket_are_items_and_are_loaded(s3_server: S3Server) -> None:
    bucket = Bucket(s3_server, "files-of-a-graph")
    bucket.put("a b/1.txt", "a b/2.txt", "a b/3.md")
    session, log = await done(WORDS, {"folder": bucket.uri}, sources=bucket.sources())
    assert session.engine.output["found"] == [{"key": "a b/1.txt", "words": 2}, {"key": "a b/2.txt", "words": 2}]
    (opened,) = [r for r in log if r.type == "scope_opened"]
    assert opened.core is not None
    bucket.put("a b/2.txt", content=b"changed")
    session, log = await done(TOLERANT, {"folder": bucket.uri}, sources=bucket.sources())
    (again,) = [r for r in log if r.type == "scope_opened"]
    assert again.core is not None
    assert again.core["delta"] != opened.core["delta"], "the etags decide the hash of the list"


async def test_a_map_may_be_given_what_all_its_branches_load(tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text('{"eur": 2}')
    spec = """
  input: {uri: {type: string}, sums: {type: array, items: {type: integer}}}
  schemas: {Rates: {type: object, required: [eur], properties: {eur: {type: integer}}}}
  nodes:
    - name: each
      load: {rates: {from: input.uri, as: json, schema: Rates}}
      map: {items: input.sums, as: sum, template: one}
  output: {out: nodes.each.output.items}
  templates:
    - name: one
      input: {sum: {type: integer}, rates: Rates}
      nodes: [{name: x, with: {s: input.sum, r: input.rates.eur}, transform: {$value: s * r}}]
      output: {$value: nodes.x.output}
"""
    session, _ = await done(spec, {"uri": (tmp_path / "rates.json").as_uri(), "sums": [1, 5]})
    assert session.engine.output == {"out": [2, 10]}

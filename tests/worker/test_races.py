"""Races inside other things: in the branches of maps, before one another, and when something else ends the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crashes import RUN, Process, body, cut, new_store, sound, until
from decurion_ledger import Record
from decurion_ledger.patience import Patience
from decurion_worker.earlier import Earlier, Races, Seen, read_earlier, select
from decurion_worker.session import RunSession
from manifests import compiled
from test_approvals import frozen
from test_earlier import AGAIN, again, first, taken
from test_joins import GIVEN, KINDS, begun, decide, race, won
from test_runs import done

SLOW = """---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: slow}
spec:
  protocol: scripted
  scripted: {replies: [{match: never, reply: x, delaySeconds: 1800}, {reply: 'yes'}]}
"""
CHAIN = """
  input: {go: {type: string}}
  state: [{name: log, schema: {type: array, items: {type: string}}, merge: append}]
  nodes:
    - name: source                   # only `slow` needs it
      with: {go: input.go}
      llm: {ref: slow, prompt: "never {{ go }}"}
      timeoutSeconds: 3000
    - name: shown                    # the output reads it
      with: {go: input.go}
      transform: {text: go}
    - name: noted                    # it writes
      with: {go: input.go}
      transform: {text: go}
      writes: {log: "[output.text]"}
    - name: slow
      after: [source, shown, noted]
      transform: {text: "'slow'"}
    - name: quick
      approval: {message: "Go on?"}
    - name: first
      join: {mode: any}
      after: [slow, quick]
      transform: {text: "'first'"}
  output: {text: nodes.first.output.text, shown: nodes.shown.output.text, log: state.log}
"""


async def test_what_only_a_loser_needs_is_given_up_too() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(compiled(CHAIN.removeprefix("\n") + SLOW), {"go": "now"})
        await until(lambda: any(lease.key == "/source" for lease in session.leases.values()), what="the call")
        await decide(session)
        await until(session.ended.is_set, what="the end of the run")
    log = await sound(store)
    assert session.engine.output == {"text": "first", "shown": "now", "log": ["now"]}
    (race_won,) = [r for r in log if r.type == "race_won"]
    assert race_won.envelope["lost"] == ["source", "slow"]
    phases = {row["name"]: row["phase"] for row in session.projection()["nodes"]}
    assert (phases["source"], phases["shown"], phases["noted"]) == ("Skipped", "Succeeded", "Succeeded")


async def test_a_fork_that_decides_a_race_again_takes_nothing_that_was_given_up_in_it() -> None:
    store, graph = new_store(), compiled(CHAIN.removeprefix("\n") + SLOW)
    async with Process(store) as process:
        session = await process.open(graph, {"go": "now"})
        await decide(session)
        await until(session.ended.is_set, what="the end of the run")
    earlier = await read_earlier(store, Earlier(RUN, "fork", "/quick"), patience=Patience())
    assert earlier.taking(graph, {"go": "now"}).paths == {"/shown", "/noted"}


def test_what_was_given_up_before_its_otherwise_is_decided_again() -> None:
    spec = """
  input: {go: {type: string}}
  nodes:
    - name: slow
      with: {go: input.go}
      code: go
      output: {type: string}
      onFailure: otherwise
      otherwise: {$value: "''"}
    - {name: quick, with: {go: input.go}, transform: {text: go}}
    - {name: told, join: {mode: any}, after: [slow, quick], transform: {text: "'told'"}}
  output: {text: nodes.told.output.text}
"""
    graph, ended = compiled(spec.removeprefix("\n")), Seen(failed=False, has_value=True)
    index = {"/slow": Seen(failed=True, has_value=False), "/slow!otherwise": Seen(failed=False, has_value=False)}
    index |= {"/quick": ended, "/told": ended}
    races = Races(lost={"/slow"}, winners={"/told": ["quick"]})
    chosen = select(index, graph, graph, same=lambda node: True, races=races)
    assert chosen.paths == {"/quick", "/told"}


def test_a_fork_at_the_winner_of_a_race_runs_what_waited_for_it_again() -> None:
    spec = """
  input: {go: {type: string}}
  nodes:
    - {name: other, when: "input.go == 'no'", with: {go: input.go}, transform: {text: go}, otherwise: {text: "''"}}
    - {name: winner, with: {go: input.go}, transform: {text: go}}
    - name: told
      join: {mode: any}
      after: [other, winner]
      with: {a: nodes.winner.output}
      transform: {text: "str(a)"}
  output: {text: nodes.told.output.text}
"""
    graph = compiled(spec.removeprefix("\n"))
    index = dict.fromkeys(("/other", "/winner", "/told", "/!output"), Seen(failed=False, has_value=True))
    for races in (Races(winners={"/told": ["winner"]}), Races()):
        chosen = select(index, graph, graph, same=lambda node: True, path="/winner", races=races)
        assert chosen.paths == {"/other"}


async def test_a_fork_takes_a_branch_with_a_race_as_it_counted() -> None:
    spec = """
  input: {words: {type: array, items: {type: string}}}
  nodes:
    - name: all
      map: {items: input.words, as: word, template: one}
  output: {words: nodes.all.output.items}
  templates:
    - name: one
      input: {word: {type: string}}
      nodes:
        - {name: asked, approval: {message: "Go on?"}}
        - {name: quick, with: {word: input.word}, transform: {text: word}}
        - {name: told, join: {mode: any}, after: [asked, quick], transform: {text: "'told'"}}
      output: {text: nodes.told.output.text}
"""
    store = new_store()
    await first(store, compiled(spec.removeprefix("\n")), {"words": ["a", "b"]})
    session = await again(store, Earlier(RUN, "fork", "/all[00001]"))
    assert session.engine.output == {"words": [{"text": "told"}] * 2}
    log = await sound(store, AGAIN)
    assert {"/all[00000]/asked", "/all[00000]!output"} <= set(taken(log))
    assert "/all[00000]/asked!open" not in taken(log)


MAPPED = """
  input: {{words: {{type: array, items: {{type: string}}}}}}
  nodes:
    - name: all
      map: {{items: input.words, as: word, template: one, {more}}}
  output: {{words: nodes.all.output.items}}
  templates:
    - name: one
      input: {{word: {{type: string}}}}
      nodes:
        - name: model
          with: {{word: input.word}}
          llm: {{ref: slow, prompt: "{{{{ word }}}}"}}
          timeoutSeconds: 3000
        - name: inner
          map: {{items: "[input.word, 'never']", as: word, template: ask}}
        - name: code
          with: {{word: input.word}}
          transform: {{text: word}}
        - name: first
          join: {{mode: quorum, count: {count}}}
          after: [model, inner, code]
          with: {{model: nodes.model.output}}
          transform: {{text: "'model' if model else 'code'"}}
      output: {{$value: nodes.first.output.text}}
    - name: ask
      input: {{word: {{type: string}}}}
      nodes:
        - name: ask
          with: {{word: input.word}}
          llm: {{ref: slow, prompt: "{{{{ word }}}}"}}
          timeoutSeconds: 3000
      output: {{text: nodes.ask.output.text}}
"""


def mapped(count: int, more: str = "") -> Any:
    spec = MAPPED.format(count=count, more=more or "concurrency: 50")
    return compiled(spec.removeprefix("\n") + SLOW)


async def test_every_branch_of_a_map_has_its_own_race() -> None:
    for more in ("concurrency: 1", "concurrency: 3"):
        session, log = await done(mapped(1, more), {"words": ["never"] * 6}, runners=2)
        assert session.engine.output == {"words": ["code"] * 6}
        races = [r for r in log if r.type == "race_won"]
        assert sorted(r.path for r in races) == [f"/all[0000{n}]/first" for n in range(6)]
        assert all(r.envelope["winners"] == ["code"] for r in races)


async def test_two_of_three_in_every_branch() -> None:
    session, log = await done(mapped(2), {"words": ["go", "run"]})
    assert session.engine.output == {"words": ["model", "model"]}
    assert {tuple(sorted(r.envelope["lost"])) for r in log if r.type == "race_won"} == {("inner",)}


NESTED = """
  input: {texts: {type: array, items: {type: string}}}
  nodes:
    - name: quick
      approval: {message: "Go on?"}
    - name: a
      with: {text: "'never'"}
      llm: {ref: slow, prompt: "{{ text }}"}
      timeoutSeconds: 3000
    - name: b
      with: {text: "'never'"}
      llm: {ref: slow, prompt: "{{ text }}"}
      timeoutSeconds: 3000
    - name: inner                    # a race that is itself given up, with those that race in it
      join: {mode: any}
      after: [a, b]
      transform: {text: "'inner'"}
    - name: outer
      join: {mode: any}
      after: [inner, quick]
      transform: {text: "'outer'"}
  output: {text: nodes.outer.output.text}
"""


async def test_a_race_that_loses_another_is_given_up_with_its_racers() -> None:
    store = new_store()
    async with Process(store) as process:
        session = await process.open(compiled(NESTED.removeprefix("\n") + SLOW), GIVEN)
        await decide(session)
        await until(session.ended.is_set, what="the end of the run")
    (race_won,) = [r for r in await sound(store) if r.type == "race_won"]
    assert race_won.envelope["lost"] == ["a", "b", "inner"]
    assert session.engine.output == {"text": "outer"}


async def test_a_run_that_is_cancelled_between_the_race_and_its_skips_ends_in_order() -> None:
    _, whole, blobs = await won("a map that is driven")
    records = [r.type for r in body(whole)].index("race_won") + 1
    kept = [*body(whole)[:records], _cancel()]
    store = await cut([*whole[:2], *kept], len(kept), blobs=blobs)
    async with Process(store) as process:
        session = await process.open(None, epoch=1)
        await until(session.ended.is_set, what="the end of the run")
    log = await sound(store)
    assert session.why == ""
    assert session.projection()["phase"] == "Cancelled"
    assert not [r for r in log if r.type == "skip"]


def _cancel() -> Record:
    return Record.event("cancel", "/", {"run": "run-1", "form": "Cancel", "reason": "enough", "at": "2026-01-01"})


FINALLY = """
  input: {}
  nodes:
    - name: work
      transform: {x: "1"}
  finally:
    - name: bad
      code: |
        raise ValueError("no")
        {"x": 1}
      output: {x: {type: integer}}
      retry: {repair: 0}
    - name: good
      transform: {x: "2"}
    - name: told
      join: {mode: any}
      after: [bad, good]
      with: {good: nodes.good.output}
      transform: {x: "good.x if good else 0"}
  output: {x: nodes.work.output.x}
"""


async def test_there_are_races_in_finally_where_failures_of_racers_are_none_of_the_run() -> None:
    session, log = await done(compiled(FINALLY.removeprefix("\n")), {})
    assert session.projection()["phase"] == "Succeeded"
    assert [r.path for r in log if r.type == "race_won"] == ["/finally/told"]


async def test_who_has_given_up_a_race_lets_no_late_answer_of_it_in() -> None:
    """The runner of a loser is told, and its lease is void."""
    store = new_store()
    async with Process(store) as process:
        process.driver.now = frozen
        session: RunSession = await process.open(race(KINDS["llm"]), GIVEN)
        await begun(session, "llm")
        (lease,) = [one.id for one in session.leases.values() if one.key == "/slow"]
        revoked: list[str] = []
        before = session.on_revoked

        def note(told: RunSession, leases: Any) -> None:
            revoked.extend(one for found in leases.values() for one in found)
            before(told, leases)

        session.on_revoked = note
        await decide(session)
        await until(session.ended.is_set, what="the end of the run")
    assert revoked == [lease]


RETRIED = """
  input: {uri: {type: string}}
  nodes:
    - name: slow
      map: {items: "['go', 'never']", as: word, template: ask}
    - name: quick
      with: {uri: input.uri}
      transform: {uri: uri}
    - name: first
      join: {mode: any}
      after: [slow, quick]
      with: {quick: nodes.quick.output}
      transform: {uri: "quick.uri if quick else ''"}
    - name: rows
      map: {itemsFrom: {jsonl: nodes.first.output.uri, schema: {type: string}}, as: word, template: ask}
  output: {words: "[one.text for one in nodes.rows.output.items]"}
  templates:
    - name: ask
      input: {word: {type: string}}
      nodes:
        - name: ask
          with: {word: input.word}
          llm: {ref: slow, prompt: "{{ word }}"}
          timeoutSeconds: 3000
      output: {text: nodes.ask.output.text}
"""


async def test_a_retry_takes_over_who_won_and_gives_up_the_rest_again(tmp_path: Path) -> None:
    store, source = new_store(), tmp_path / "rows.jsonl"
    session = await first(store, compiled(RETRIED.removeprefix("\n") + SLOW), {"uri": source.as_uri()})
    assert session.projection()["phase"] == "Failed"
    source.write_text('"go"\n')
    retried = await again(store, Earlier(RUN, "retry"))
    log = await sound(store, AGAIN)
    assert retried.engine.output == {"words": ["yes"]}
    assert {"/quick", "/first"} <= taken(log).keys()
    assert not [path for path in taken(log) if path.startswith("/slow")]
    assert [(r.path, r.envelope["winners"]) for r in log if r.type == "race_won"] == [("/first", ["quick"])]
    assert [r.path for r in log if r.type == "skip"] == ["/slow"]

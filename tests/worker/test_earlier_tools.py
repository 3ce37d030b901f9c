"""Forks of runs that call tools: what another server gave does not hold."""

from __future__ import annotations

import pytest

from crashes import RUN, new_store, sound
from decurion_crds.compiled import CompiledGraph
from decurion_ledger.patience import Patience
from decurion_worker.earlier import Earlier, read_earlier
from manifests import compiled
from test_earlier import AGAIN, again, first, ran
from tool_server import ToolServer, resource

GRAPH = """
  input: {}
  nodes:
    - name: each
      map: {items: "['a', 'b']", as: query, template: ask}
    - name: asked
      agent: {model: scripted, tools: [{template: ask}], prompt: "Go on."}
      output: {text: {type: string}}
    - name: beside
      transform: {text: "'beside'"}
    - name: end
      with: {found: nodes.each.output.items, beside: nodes.beside.output.text}
      transform: {size: len(found)}
  output: {size: nodes.end.output.size}
  templates:
    - name: ask
      input: {query: {type: string}}
      nodes:
        - name: before
          with: {query: input.query}
          transform: {query: query}
        - name: look
          with: {query: nodes.before.output.query}
          tool: {server: tools, name: lookup, arguments: {query: "{{ query }}", limit: 1}}
      output: {hits: nodes.look.output.hits}
---
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: scripted}
spec:
  protocol: scripted
  scripted:
    replies:
      - {match: Go on, calls: [{tool: ask, arguments: {query: c}}]}
      - {match: hits, calls: [{tool: finish, arguments: {text: done}}]}
"""
CALLED = {"/each!open", "/each!join", "/asked"}


def graph(url: str, tenant: str = "", token: str = "") -> CompiledGraph:
    more = f"  headers: [{{name: X-Tenant, value: {tenant}}}]\n" if tenant else ""
    more += f"  auth: {{secretKeyRef: {{name: {token}, key: k}}}}\n" if token else ""
    return compiled(
        GRAPH.removeprefix("\n") + resource(url).replace("  timeoutSeconds: 5\n", f"{more}  timeoutSeconds: 5\n")
    )


async def test_a_fork_under_another_server_calls_that_one() -> None:
    store = new_store()
    with ToolServer() as real, ToolServer() as rehearsal:
        await first(store, graph(rehearsal.url), {})
        assert (rehearsal.calls["lookup"], real.calls["lookup"]) == (3, 0)
        await again(store, Earlier(RUN, "fork", "/beside"), graph(rehearsal.url))
        assert not ran(await sound(store, AGAIN)) & CALLED
        assert rehearsal.calls["lookup"] == 3
        await again(store, Earlier(RUN, "fork", "/beside"), graph(real.url), run="run-3")
        assert ran(await sound(store, "run-3")) >= CALLED
        assert (rehearsal.calls["lookup"], real.calls["lookup"]) == (3, 3)


OTHERS = [("two", "", False), ("", "", False), ("one", "other", True)]


@pytest.mark.parametrize(("tenant", "token", "holds"), OTHERS)
async def test_a_plain_header_tells_servers_apart_and_a_token_does_not(tenant: str, token: str, holds: bool) -> None:
    store = new_store()
    with ToolServer() as server:
        await first(store, graph(server.url, "one"), {})
        earlier = await read_earlier(store, Earlier(RUN, "fork", "/beside"), patience=Patience())
        paths = earlier.taking(graph(server.url, tenant, token), {}).paths
    assert (paths >= CALLED) is holds
    assert bool(paths & CALLED) is holds

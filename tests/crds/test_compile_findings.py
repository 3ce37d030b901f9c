"""What compilation refuses, each with the smallest graph that shows it: code, path, place, remedy."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import decurion_crds.compile
import decurion_crds.expressions
from decurion_crds.compile import Checker, Compilation, compile_graph
from decurion_crds.findings import CODES, Finding
from decurion_crds.loader import load_text
from decurion_crds.v1alpha1 import LLM, TaskGraph

FAST = """
apiVersion: decurion.dev/v1alpha1
kind: LLM
metadata: {name: fast}
spec: {protocol: scripted, scripted: {default: {text: hi}}}
"""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Checker() as opened:
        yield opened


def compiled(checker: Checker, spec: str) -> Compilation:
    """Compiles a spec, given as YAML; line 1 is its first line."""
    body = textwrap.indent(textwrap.dedent(spec).strip("\n"), "  ")
    text = f"spec:\n{body}\napiVersion: decurion.dev/v1alpha1\nkind: TaskGraph\nmetadata: {{name: g}}\n---{FAST}"
    loaded = load_text(text, "g.yaml")
    models, found = loaded.parse()
    assert [finding.text() for finding in found] == []
    [(document, graph)] = [(d, model) for d, model in models if isinstance(model, TaskGraph)]
    llms = {model.name: model for _, model in models if isinstance(model, LLM)}

    def positions(place: tuple[str | int, ...], offset: int | None = None) -> tuple[str, int, int]:
        file, line, column = document.locate(place, offset)
        return file, line - 1, column - 2

    return compile_graph(graph, llms=llms, positions=positions, checker=checker)


def errors(result: Compilation) -> list[Finding]:
    return [finding for finding in result.findings if finding.severity == "error"]


CASES: dict[str, tuple[str, str, str, str]] = {
    "budget": (
        """
        limits: {steps: 3}
        nodes:
          - {name: a, limits: {steps: 4}, transform: {v: '1'}}
        output: {v: nodes.a.output.v}
        """,
        "BUDGET",
        "3:31 nodes.a.limits.steps",
        "limits.steps is 4, above the 3 of graph g around it, which end it before; lower it, or raise the other",
    ),
    "sensitive answer": (
        """
        nodes:
          - {name: a, sensitive: true, approval: {message: Shall we}}
        output: {x: nodes.a.output.approved}
        """,
        "SENSITIVE",
        "2:26 nodes.a.sensitive",
        "what people answer stands in an Approval, in clear for all who may read it; remove it, and ask for nothing "
        "sensitive",
    ),
    "cycle": (
        """
        nodes:
          - {name: a, with: {x: nodes.b.output.v}, transform: {v: x}, output: {v: {type: integer}}}
          - {name: b, with: {x: nodes.a.output.v}, transform: {v: x}, output: {v: {type: integer}}}
        output: {v: nodes.b.output.v}
        """,
        "CYCLE",
        "2:25 nodes.a.with.x",
        "a → b → a wait for one another: a reads nodes.b (nodes.a.with.x), b reads nodes.a (nodes.b.with.x)",
    ),
    "cycle through after": (
        """
        nodes:
          - {name: a, after: [b], transform: {v: "1"}}
          - {name: b, with: {x: nodes.a.output.v}, transform: {v: x}}
        output: {v: nodes.b.output.v}
        """,
        "CYCLE",
        "2:22 nodes.a.after",
        "a after names b (nodes.a.after)",
    ),
    "a node that reads itself": (
        """
        nodes:
          - {name: a, with: {x: nodes.a.output.v}, transform: {v: x}, output: {v: {type: integer}}}
        output: {v: nodes.a.output.v}
        """,
        "CYCLE",
        "2:25 nodes.a.with.x",
        "a waits for itself",
    ),
    "templates in a circle": (
        """
        input: {xs: {type: array, items: {type: integer}}}
        nodes: [{name: a, map: {items: input.xs, template: t}}]
        output: {v: nodes.a.output.total}
        templates:
          - name: t
            input: {item: {type: integer}}
            nodes: [{name: b, map: {items: "[input.item]", template: t}}]
            output: {v: nodes.b.output.total}
        """,
        "CYCLE",
        "7:62 templates.t.nodes.b.map.template",
        "templates contain one another (t → t)",
    ),
    "missing LLM": (
        "nodes: [{name: a, llm: {ref: fastt, prompt: hi}}]\noutput: {v: nodes.a.output.text}",
        "REF-MISSING",
        "1:30 nodes.a.llm.ref",
        'there is no LLM "fastt"; did you mean "fast"?',
    ),
    "missing template": (
        """
        nodes: [{name: a, map: {items: "[1]", template: nope}}]
        output: {v: nodes.a.output.total}
        templates: [{name: one, nodes: [{name: b, transform: {v: "1"}}], output: {v: nodes.b.output.v}}]
        """,
        "REF-MISSING",
        "1:49 nodes.a.map.template",
        'there is no template "nope"; the templates are one',
    ),
    "missing node in after": (
        "nodes: [{name: a, after: [bb], transform: {v: '1'}}, {name: b, transform: {v: '1'}}]\n"
        "output: {v: nodes.a.output.v, w: nodes.b.output.v}",
        "REF-MISSING",
        "1:27 nodes.a.after[0]",
        'there is no node "bb"; did you mean "b"?',
    ),
    "missing node in an expression": (
        "nodes: [{name: plan, transform: {v: '1'}}]\noutput: {v: 1 + nodes.plann.output.v}",
        "REF-MISSING",
        "2:23 output.v",
        "there is no node plann; did you mean plan?",
    ),
    "channel that is not declared": (
        "nodes: [{name: a, transform: {v: '1'}, writes: {total: output.v}}]\noutput: {v: nodes.a.output.v}",
        "REF-MISSING",
        "1:49 nodes.a.writes.total",
        "declare it in state",
    ),
    "channel that is read and not declared": (
        "nodes: [{name: a, with: {x: state.totl}, transform: {v: x}, writes: {total: '1'}}]\n"
        "state: [{name: total, schema: {type: integer}, initial: 0}]\noutput: {v: nodes.a.output.v, t: state.total}",
        "EXPR-FIELD",
        "1:35 nodes.a.with.x",
        "there is no channel totl; did you mean total?",
    ),
    "two writers": (
        """
        state: [{name: total, schema: {type: integer}, initial: 0}]
        nodes:
          - {name: a, transform: {v: "1"}, writes: {total: output.v}}
          - {name: b, transform: {v: "2"}, writes: {total: output.v}}
        output: {v: state.total}
        """,
        "WRITE-RACE",
        "4:52 nodes.b.writes.total",
        "a and b write total in no order, so the result depends on time; order them by after, "
        "or declare merge: sum, min or max for the channel",
    ),
    "reader unordered with writers": (
        """
        state: [{name: rows, schema: {type: array, items: {type: integer}}, merge: append}]
        nodes:
          - {name: a, transform: {v: "1"}, writes: {rows: "[output.v]"}}
          - {name: b, transform: {v: "2"}, writes: {rows: "[output.v]"}}
          - {name: c, with: {rows: state.rows}, transform: {m: len(rows)}}
        output: {v: nodes.c.output.m}
        """,
        "READ-RACE",
        "5:28 nodes.c.with.rows",
        "c reads rows while a and b may be writing it; name a and b in after",
    ),
    "reader that writes too": (
        """
        state: [{name: total, schema: {type: integer}, initial: 0}]
        nodes:
          - {name: a, transform: {v: "1"}, writes: {total: state.total + 1}}
          - {name: b, after: [a], transform: {v: "1"}, writes: {total: output.v}}
          - {name: c, with: {x: nodes.a.output.v}, transform: {v: x}, writes: {total: state.total + 2}}
        output: {v: state.total, c: nodes.c.output.v, b: nodes.b.output.v}
        """,
        "WRITE-RACE",
        "5:79 nodes.c.writes.total",
        "b and c write total in no order",
    ),
    "expression that does not parse": (
        'nodes: [{name: a, transform: {v: "1 +"}}]\noutput: {v: nodes.a.output.v}',
        "EXPR-SYNTAX",
        "1:38 nodes.a.transform.v",
        "invalid syntax",
    ),
    "unknown name": (
        "input: {m: {type: integer}}\nnodes: [{name: a, with: {m: inptu.m}, transform: {v: m}}]\n"
        "output: {v: nodes.a.output.v}",
        "EXPR-NAME",
        "2:29 nodes.a.with.m",
        "inptu is not known here; did you mean input?",
    ),
    "scope name inside a block": (
        "input: {m: {type: integer}}\nnodes: [{name: a, transform: {v: input.m}}]\noutput: {v: nodes.a.output.v}",
        "EXPR-NAME",
        "2:34 nodes.a.transform.v",
        "input is not seen inside a block; read it in with",
    ),
    "unknown field of a path": (
        "input: {r: {type: object, properties: {id: {type: string}}, required: [id]}}\n"
        "nodes: [{name: a, with: {x: input.r.idd}, transform: {v: x}}]\noutput: {v: nodes.a.output.v}",
        "EXPR-FIELD",
        "2:37 nodes.a.with.x",
        'object {id} has no field "idd"; did you mean "id"?',
    ),
    "unknown field in an expression": (
        "schemas: {R: {type: object, properties: {id: {type: string}}, required: [id]}}\n"
        "input: {rs: {type: array, items: R}}\n"
        "nodes: [{name: a, with: {x: '[r.idd for r in input.rs]'}, transform: {v: x}}]\noutput: {v: nodes.a.output.v}",
        "EXPR-FIELD",
        "3:33 nodes.a.with.x",
        'R has no field "idd"; did you mean "id"?',
    ),
    "unknown field of an output": (
        "nodes: [{name: a, llm: {ref: fast, prompt: hi}}]\noutput: {v: nodes.a.output.txt}",
        "EXPR-FIELD",
        "2:28 output.v",
        'did you mean "text"?',
    ),
    "field of a list": (
        "input: {rs: {type: array, items: {type: string}}}\n"
        "nodes: [{name: a, with: {x: input.rs.id}, transform: {v: x}}]\n"
        "output: {v: nodes.a.output.v}",
        "EXPR-FIELD",
        "2:38 nodes.a.with.x",
        "read the field of its items: [x.id for x in input.rs]",
    ),
    "optional path in a place that needs a value": (
        "input: {'m?': {type: integer}}\n"
        "nodes: [{name: a, with: {x: input.m}, transform: {v: x}, output: {v: {type: integer}}}]\n"
        "output: {v: nodes.a.output.v}",
        "EXPR-NONE",
        "2:54 nodes.a.transform.v",
        "x may be None here",
    ),
    "optional used in an expression": (
        "input: {'m?': {type: integer}}\nnodes: [{name: a, with: {x: input.m + 1}, transform: {v: x}}]\n"
        "output: {v: nodes.a.output.v}",
        "EXPR-NONE",
        "2:29 nodes.a.with.x",
        "input.m may be None here; write (input.m or …)",
    ),
    "output of a node that may be skipped": (
        "input: {m: {type: integer}}\n"
        "nodes: [{name: a, when: input.m > 1, transform: {v: '1'}},\n"
        "  {name: b, with: {x: nodes.a.output.v}, transform: {v: x}}]\noutput: {v: nodes.b.output.v}",
        "EXPR-NONE",
        "3:23 nodes.b.with.x",
        "nodes.a.output may be None here",
    ),
    "output of a node that is skipped with another": (
        "input: {m: {type: integer}}\n"
        "nodes: [{name: a, when: input.m > 1, transform: {v: '1'}}, {name: b, after: [a], transform: {v: '2'}}]\n"
        "output: {v: nodes.b.output.v, w: nodes.a.output}",
        "EXPR-NONE",
        "3:13 output.v",
        "nodes.b.output may be None here",
    ),
    "channel before its first write": (
        "state: [{name: t, schema: {type: integer}}]\n"
        "nodes: [{name: a, with: {x: state.t + 1}, transform: {v: x}}, {name: b, after: [a], transform: {v: '2'}, "
        "writes: {t: output.v}}]\noutput: {v: nodes.a.output.v, w: state.t}",
        "EXPR-NONE",
        "2:29 nodes.a.with.x",
        "state.t may be None here",
    ),
    "None in a prompt": (
        "input: {'m?': {type: string}}\n"
        "nodes: [{name: a, with: {x: input.m}, llm: {ref: fast, prompt: 'Say {{ x }}'}}]\n"
        "output: {v: nodes.a.output.text}",
        "EXPR-NONE",
        "2:72 nodes.a.llm.prompt",
        "x may be None here",
    ),
    "None of an expression in a prompt": (
        "input: {'m?': {type: string}, q: {type: string}}\n"
        "nodes: [{name: a, with: {x: input.m, q: input.q},\n"
        "    llm: {ref: fast, prompt: \"{{ q }} {{ x if q else 'a' }}\"}}]\n"
        "output: {v: nodes.a.output.text}",
        "EXPR-NONE",
        "3:42 nodes.a.llm.prompt",
        "x if q else 'a' may be None here",
    ),
    "condition that is no truth value": (
        "input: {xs: {type: array, items: {type: integer}}}\n"
        "nodes: [{name: a, when: input.xs, transform: {v: '1'}}]\noutput: {v: nodes.a.output}",
        "EXPR-TYPE",
        "2:25 nodes.a.when",
        "list of integer where boolean is due",
    ),
    "comparison with no member": (
        "input: {k: {enum: [a, b]}}\nnodes: [{name: a, when: \"input.k == 'c'\", transform: {v: '1'}}]\n"
        "output: {v: nodes.a.output}",
        "EXPR-TYPE",
        "2:26 nodes.a.when",
        'this is never "c"; it is one of a or b',
    ),
    "written value of another type": (
        "state: [{name: t, schema: {type: integer}, initial: 0}]\n"
        "nodes: [{name: a, transform: {v: \"'x'\"}, writes: {t: output.v}}]\noutput: {v: state.t}",
        "EXPR-TYPE",
        "2:54 nodes.a.writes.t",
        '"x" where integer is due',
    ),
    "code that breaks its output": (
        """
        input: {m: {type: integer}}
        nodes:
          - name: a
            with: {m: input.m}
            code: |
              k = m + 1
              {"v": str(k)}
            output: {v: {type: integer}}
        output: {v: nodes.a.output.v}
        """,
        "OUTPUT-TYPE",
        "7:13 nodes.a.code",
        'the field "v" is an integer, and this is a string',
    ),
    "code without output": (
        "nodes: [{name: a, code: '1'}]\noutput: {v: nodes.a.output}",
        "TYPE-DECLARE",
        "1:9 nodes.a",
        "code needs an output",
    ),
    "code that uses what there is not": (
        "nodes: [{name: a, code: 'import os\n\n1', output: {type: integer}}]\noutput: {v: nodes.a.output}",
        "EXPR-SYNTAX",
        "1:25 nodes.a.code",
        "the module os is not available in code",
    ),
    "transform that breaks its output": (
        "nodes: [{name: a, transform: {v: 1 / 2}, output: {v: {type: integer}}}]\noutput: {v: nodes.a.output.v}",
        "OUTPUT-TYPE",
        "1:34 nodes.a.transform.v",
        "number where integer is due",
    ),
    "transform with a field too many": (
        "nodes: [{name: a, transform: {v: '1', wv: '2'}, output: {v: {type: integer}}}]\noutput: {v: nodes.a.output.v}",
        "OUTPUT-TYPE",
        "1:39 nodes.a.transform.wv",
        'the output has no field "wv"; did you mean "v"?',
    ),
    "transform with a field too few": (
        "nodes: [{name: a, transform: {v: '1'}, output: {v: {type: integer}, w: {type: integer}}}]\n"
        "output: {v: nodes.a.output.v}",
        "OUTPUT-TYPE",
        "1:30 nodes.a.transform",
        'the field "w" of the output is missing',
    ),
    "transform whose type cannot be relied on": (
        "nodes: [{name: a, transform: {v: \"{'a': 1, 'b': 'x'}\"}}]\noutput: {v: nodes.a.output.v}",
        "TYPE-DECLARE",
        "1:34 nodes.a.transform.v",
        "dict[str, int | str]); declare the node's output",
    ),
    "name of with whose type cannot be relied on": (
        "input: {o: {type: object}}\nnodes: [{name: a, with: {x: input.o.b + 1}, transform: {v: x}}]\n"
        "output: {v: nodes.a.output.v}",
        "TYPE-DECLARE",
        "2:29 nodes.a.with.x",
        "compute it in a transform node with an output",
    ),
    "otherwise of another type": (
        "input: {m: {type: integer}}\n"
        "nodes: [{name: a, when: input.m > 1, transform: {v: '1'},\n"
        "  otherwise: {v: \"'x'\"}, output: {v: {type: integer}}}]\n"
        "output: {v: nodes.a.output.v}",
        "OUTPUT-TYPE",
        "3:19 nodes.a.otherwise.v",
        '"x" where integer is due',
    ),
    "items that are no list": (
        """
        input: {m: {type: integer}}
        nodes: [{name: a, map: {items: input.m, template: t}}]
        output: {v: nodes.a.output.total}
        templates: [{name: t, input: {item: {type: integer}}, nodes: [{name: b, transform: {v: "1"}}],
                     output: {i: input.item, v: nodes.b.output.v}}]
        """,
        "EXPR-TYPE",
        "2:32 nodes.a.map.items",
        "integer where list of integer is due",
    ),
    "items of another type than the template takes": (
        """
        input: {xs: {type: array, items: {type: object, properties: {id: {type: string}}, required: [id]}}}
        nodes: [{name: a, map: {items: input.xs, template: t}}]
        output: {v: nodes.a.output.total}
        templates:
          - name: t
            input: {item: {type: object, properties: {id: {type: string}, text: {type: string}}, required: [id, text]}}
            nodes: [{name: b, with: {t: input.item.text}, transform: {v: t}}]
            output: {v: nodes.b.output.v}
        """,
        "EXPR-TYPE",
        "2:32 nodes.a.map.items",
        "[].text: missing",
    ),
    "name that the template does not take": (
        """
        input: {xs: {type: array, items: {type: integer}}}
        nodes: [{name: a, with: {facter: "2"}, map: {items: input.xs, template: t}}]
        output: {v: nodes.a.output.total}
        templates:
          - name: t
            input: {item: {type: integer}, "factor?": {type: integer}}
            nodes: [{name: b, with: {i: input.item, f: input.factor}, transform: {v: i * (f or 1)}}]
            output: {v: nodes.b.output.v}
        """,
        "FIELD-UNKNOWN",
        "2:26 nodes.a.with.facter",
        'has no input "facter"; did you mean "factor"?',
    ),
    "name that the template needs": (
        """
        input: {xs: {type: array, items: {type: integer}}}
        nodes: [{name: a, map: {items: input.xs, template: t}}]
        output: {v: nodes.a.output.total}
        templates:
          - name: t
            input: {item: {type: integer}, factor: {type: integer}}
            nodes: [{name: b, with: {i: input.item, f: input.factor}, transform: {v: i * f}}]
            output: {v: nodes.b.output.v}
        """,
        "FIELD-MISSING",
        "2:9 nodes.a.with",
        'the template t needs the input "factor"; give it by with',
    ),
    "item under another name than the template takes": (
        """
        input: {xs: {type: array, items: {type: integer}}}
        nodes: [{name: a, map: {items: input.xs, as: numer, template: t}}]
        output: {v: nodes.a.output.total}
        templates:
          - name: t
            input: {"number?": {type: integer}}
            nodes: [{name: b, with: {i: input.number}, transform: {v: i or 1}}]
            output: {v: nodes.b.output.v}
        """,
        "FIELD-UNKNOWN",
        "2:46 nodes.a.map.as",
        'has no input "numer"; did you mean "number"?',
    ),
    "key that is no text": (
        """
        input: {xs: {type: array, items: {type: number}}}
        nodes: [{name: a, map: {items: input.xs, key: item, template: t}}]
        output: {v: nodes.a.output.total}
        templates: [{name: t, input: {item: {type: number}},
                     nodes: [{name: b, with: {i: input.item}, transform: {v: i}}], output: {v: nodes.b.output.v}}]
        """,
        "EXPR-TYPE",
        "2:47 nodes.a.map.key",
        "number where string or integer is due",
    ),
    "lines of another type than the template takes": (
        """
        nodes: [{name: a, map: {itemsFrom: {jsonl: "'s3://b/k'", schema: {type: string}}, template: t}}]
        output: {v: nodes.a.output.total}
        templates: [{name: t, input: {item: {type: number}},
                     nodes: [{name: b, with: {i: input.item}, transform: {v: i}}], output: {v: nodes.b.output.v}}]
        """,
        "EXPR-TYPE",
        "1:66 nodes.a.map.itemsFrom.schema",
        "string where number is due",
    ),
    "output of a template whose type cannot be relied on": (
        """
        input: {xs: {type: array, items: {type: integer}}}
        nodes: [{name: a, map: {items: input.xs, template: t}}]
        output: {v: nodes.a.output.total}
        templates:
          - name: t
            input: {item: {type: integer}}
            nodes: [{name: b, with: {i: input.item}, transform: {v: i}}]
            output: {v: "{'a': nodes.b.output.v, 'b': 'x'}"}
        """,
        "TYPE-DECLARE",
        "8:17 templates.t.output.v",
        "compute it in a transform node",
    ),
    "shared schema that does not exist": (
        "schemas: {Report: {type: string}}\ninput: {r: Reprt}\n"
        "nodes: [{name: a, with: {r: input.r}, transform: {v: r}}]\n"
        "output: {v: nodes.a.output.v, r: nodes.a.output.v}",
        "SCHEMA",
        "2:12 input.r",
        'did you mean "Report"?',
    ),
    "shared schema that is wrong, told once": (
        "schemas: {R: {type: objekt}}\ninput: {r: R, s: R}\n"
        "nodes: [{name: a, with: {r: input.r, s: input.s}, transform: {v: r, w: s}}]\noutput: {v: nodes.a.output.v}",
        "SCHEMA",
        "1:14 schemas.R",
        'there is no type "objekt"; did you mean "object"?',
    ),
    "appending what is no list": (
        "state: [{name: t, schema: {type: integer}, merge: append}]\n"
        "nodes: [{name: a, transform: {v: '1'}, writes: {t: '[output.v]'}}]\noutput: {v: state.t}",
        "SCHEMA",
        "1:27 state.t.schema",
        "merge: append joins lists",
    ),
    "initial value of another type": (
        "state: [{name: t, schema: {type: integer}, initial: x}]\n"
        "nodes: [{name: a, transform: {v: '1'}, writes: {t: output.v}}]\noutput: {v: state.t}",
        "FIELD-VALUE",
        "1:53 state.t.initial",
        "it breaks the channel's schema",
    ),
    "name of a function": (
        "nodes: [{name: a, with: {json: '1'}, transform: {v: json}}]\noutput: {v: nodes.a.output.v}",
        "NAME",
        "1:32 nodes.a.with.json",
        '"json" is a function of expressions',
    ),
    "item with the name of another": (
        """
        input: {xs: {type: array, items: {type: integer}}}
        nodes: [{name: a, with: {item: "1"}, map: {items: input.xs, template: t}}]
        output: {v: nodes.a.output.total}
        templates: [{name: t, input: {item: {type: integer}},
                     nodes: [{name: b, with: {i: input.item}, transform: {v: i}}], output: {v: nodes.b.output.v}}]
        """,
        "DUPLICATE-NAME",
        "2:43 nodes.a.map.as",
        "rename one of them",
    ),
    "whole result beside others": (
        "nodes: [{name: a, transform: {$value: '1', w: '2'}}]\noutput: {v: nodes.a.output}",
        "FIELD-VALUE",
        '1:39 nodes.a.transform["$value"]',
        "$value is the whole result and stands alone",
    ),
    "node that never runs": (
        "nodes: [{name: a, when: 'False', transform: {v: '1'}}]\noutput: {v: nodes.a.output}",
        "UNREACHABLE",
        "1:25 nodes.a.when",
        "a can never run: its when is always false",
    ),
    "all nodes at once": (
        "nodes: [{name: a, transform: {v: '1'}}]\noutput: {v: len(nodes)}",
        "EXPR-FIELD",
        "2:13 output.v",
        "name one, as in nodes.NAME.output",
    ),
    "generator as a value": (
        "input: {xs: {type: array, items: {type: integer}}}\n"
        "nodes: [{name: a, with: {x: '(x for x in input.xs)'}, transform: {v: x}}]\noutput: {v: nodes.a.output.v}",
        "EXPR-TYPE",
        "2:30 nodes.a.with.x",
        "which JSON does not have; write a list, in square brackets",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(checker: Checker, name: str) -> None:
    spec, code, place, said = CASES[name]
    result = compiled(checker, spec)
    [finding] = errors(result)
    assert result.compiled is None
    assert finding.code == code
    assert f"{finding.line}:{finding.column} {finding.path}" == place
    assert said in finding.message


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("input.rs[0].c == 3", "this is never 3; it is one of 1 or 2"),
        ("input.rs[0].c == '1'", 'this is never "1"; it is one of 1 or 2'),
        ("input.rs[0].k == 1", "this is never 1; it is one of ask or tell"),
        ("input.rs[0].c in [1, 3]", "this is never 3; it is one of 1 or 2"),
        ("input.rs[0].k in {'ask': 1, 'tel': 2}", 'this is never "tel"; did you mean "tell"?'),
        ("'go' in [r.k for r in input.rs]", 'this never holds "go"; it holds ask or tell'),
        ("[r for r in input.rs if r.c == 3]", "this is never 3; it is one of 1 or 2"),
        ("input.rs[0].c == 2.0 and 'a' in input.rs[0].k and 'ask' in {r.k for r in input.rs}", None),
    ],
)
def test_a_comparison_that_never_holds_is_one_finding(checker: Checker, expression: str, said: str | None) -> None:
    result = compiled(
        checker,
        f"""
        input: {{rs: {{type: array, items: R}}}}
        nodes: [{{name: a, with: {{rs: input.rs}}, transform: {{v: len(rs)}}}}]
        output:
          size: nodes.a.output.v
          x: {json.dumps(expression)}
        schemas:
          R: {{type: object, required: [k, c], properties: {{k: {{enum: [ask, tell]}}, c: {{enum: [1, 2]}}}}}}
        """,
    )
    found = [(finding.code, finding.path, finding.message) for finding in result.findings]
    assert found == ([("EXPR-TYPE", "output.x", said)] if said else [])


def test_a_tuple_of_constants_holds_each_of_them(checker: Checker) -> None:
    result = compiled(
        checker,
        """
        input: {kind: {enum: [ask, tell]}}
        nodes:
          - name: a
            with: {kind: input.kind}
            code: |
              known = ("ask", 1)
              {"known": "ask" in known, "one": 1 in known, "kind": kind}
            output: {known: {type: boolean}, one: {type: boolean}, kind: {type: string}}
        output: {v: nodes.a.output}
        """,
    )
    assert [finding.text() for finding in result.findings] == []


def test_every_code_that_the_compiler_gives_has_a_case() -> None:
    """Sizes are shown in test_compile_controls and test_compile_refs, what is not built yet in test_models."""
    sources = [path.read_text() for path in Path(decurion_crds.compile.__file__).parent.glob("*.py")]
    sources += [path.read_text() for path in Path(decurion_crds.expressions.__file__).parent.glob("*.py")]
    given = {code for code in CODES if any(f'"{code}"' in source for source in sources)}
    elsewhere = {"UNUSED", "SPEC-TOO-LARGE", "BUNDLE-TOO-LARGE", "NOT-SUPPORTED"}
    assert {code for _, code, _, _ in CASES.values()} == given - elsewhere


def test_all_causes_are_told_at_once_and_what_depends_on_them_is_not(checker: Checker) -> None:
    result = compiled(
        checker,
        """
        input: {xs: {type: array, items: {type: integer}}}
        nodes:
          - {name: a, with: {x: input.xz}, transform: {v: "[i + 1 for i in x]"}}
          - {name: b, with: {x: nodes.a.output.v}, transform: {v: "{'a': x}"}, output: {v: {type: integer}}}
          - {name: c, with: {x: "[i.k for i in nodes.a.output.v]"}, transform: {v: x}}
          - {name: d, with: {x: nodes.b.output.w}, transform: {v: x}}
          - name: e
            with: {x: nodes.d.output.v.y, z: nodes.c.output.v}
            llm: {ref: slow, prompt: "{{ x }} {{ q }} {{ z }}"}
        output: {v: nodes.e.output.text}
        """,
    )
    assert [(finding.code, finding.path) for finding in errors(result)] == [
        ("EXPR-FIELD", "nodes.a.with.x"),
        ("OUTPUT-TYPE", "nodes.b.transform.v"),
        ("EXPR-FIELD", "nodes.d.with.x"),
        ("REF-MISSING", "nodes.e.llm.ref"),
        ("EXPR-NAME", "nodes.e.llm.prompt"),
    ]


@pytest.mark.parametrize(
    ("spec", "path", "said"),
    [
        (
            "nodes: [{name: a, transform: {v: '1'}}, {name: b, transform: {v: '1'}}]\noutput: {v: nodes.a.output.v}",
            "nodes.b",
            "nothing reads nodes.b.output",
        ),
        (
            "input: {m: {type: integer}}\nnodes: [{name: a, with: {m: input.m}, transform: {v: '1'}}]\n"
            "output: {v: nodes.a.output.v}",
            "nodes.a.with.m",
            "transform does not use m",
        ),
        (
            "nodes: [{name: a, transform: {v: '1'}}]\noutput: {v: nodes.a.output.v}\n"
            "templates: [{name: t, nodes: [{name: b, transform: {v: '1'}}], output: {v: nodes.b.output.v}}]",
            "templates.t",
            "nothing uses the template t",
        ),
        (
            "schemas: {R: {type: string}, Q: R}\ninput: {q: {type: array, items: Q}, r: R}\n"
            "nodes: [{name: a, with: {q: input.q, r: input.r}, transform: {v: '[*q, r]'}}]\n"
            "output: {v: nodes.a.output.v}",
            None,
            None,
        ),
        (
            "schemas: {R: {type: string}}\nnodes: [{name: a, transform: {v: '1'}}]\noutput: {v: nodes.a.output.v}",
            "schemas.R",
            "no schema uses R",
        ),
        (
            "state: [{name: t, schema: {type: integer}}]\n"
            "nodes: [{name: a, transform: {v: '1'}, writes: {t: output.v}}]\n"
            "output: {v: nodes.a.output.v}",
            "state.t",
            "nothing reads state.t",
        ),
        (
            "nodes: [{name: a, transform: {v: '1'}}]\noutput: {v: \"{'a': nodes.a.output.v, 'b': 'x'}\"}",
            "output.v",
            "cannot be relied on",
        ),
    ],
)
def test_warned(checker: Checker, spec: str, path: str | None, said: str | None) -> None:
    result = compiled(checker, spec)
    assert result.compiled is not None
    assert [finding.path for finding in result.findings] == ([path] if path else [])
    assert all(said in finding.message for finding in result.findings if said)


def test_without_positions_findings_have_none(checker: Checker) -> None:
    spec = {"nodes": [{"name": "a", "llm": {"ref": "nope", "prompt": "x"}}], "output": {"v": "nodes.a.output.txt"}}
    graph = TaskGraph.model_validate(
        {"apiVersion": "decurion.dev/v1alpha1", "kind": "TaskGraph", "metadata": {"name": "g"}, "spec": spec}
    )
    found = compile_graph(graph, llms={}, checker=checker).findings
    assert [(finding.code, finding.file, finding.line) for finding in found] == [
        ("REF-MISSING", None, None),
        ("EXPR-FIELD", None, None),
    ]

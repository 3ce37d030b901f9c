"""What the test model server answers: decided by the request alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

MAX_DEPTH = 20


def instance(schema: Any, seed: str, *, root: Any = None, depth: int = 0) -> Any:
    """A value that matches `schema`, chosen by `seed`: of an `enum` one member, of a union one branch.

    Covers what nodes declare: types, enum, const, bounds of numbers, lengths, items, unions and local references; a
    `pattern` is not met.
    """
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].lstrip("#/").split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")]
        return instance(target, seed, root=root, depth=depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][pick(seed, len(schema["enum"]))]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            branches = schema[word]
            return instance(branches[pick(seed, len(branches))], seed, root=root, depth=depth + 1)
    if "allOf" in schema:
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            merged |= part
        return instance(merged, seed, root=root, depth=depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), "null")
    return _of_type(kind, schema, seed, root=root, depth=depth)


def _of_type(kind: str, schema: Mapping[str, Any], seed: str, *, root: Any, depth: int) -> Any:
    match kind:
        case "object":
            return {
                name: instance(below, f"{seed}/{name}", root=root, depth=depth + 1)
                for name, below in schema.get("properties", {}).items()
            }
        case "array":
            items = schema.get("items", {"type": "string"})
            count = max(schema.get("minItems", 0), min(1, schema.get("maxItems", 1)))
            return [instance(items, f"{seed}/{i}", root=root, depth=depth + 1) for i in range(count)]
        case "string":
            text = f"text {hashlib.sha256(seed.encode()).hexdigest()[:8]}"
            return text.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength", 1000)]
        case "integer" | "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            value = low + 1 + pick(seed, 100)
            high = schema.get("maximum", schema.get("exclusiveMaximum"))
            value = value if high is None or value < high else (low + high) / 2
            return int(value) if kind == "integer" else float(value)
        case "boolean":
            return bool(pick(seed, 2))
        case _:
            return None


def pick(seed: str, count: int) -> int:
    """A number below `count`, the same for the same `seed` in every process."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) % count


class Answers:
    """What to answer: the script's reply, a value of the schema, or the prompt itself."""

    def __init__(self, script: Sequence[tuple[str, Any]]) -> None:
        """`script` has pairs of a regular expression, searched in the last message of the user, and the reply."""
        self._script = [(re.compile(match, re.DOTALL), reply) for match, reply in script]

    def message(self, body: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """Text and calls. A reply `{"calls": [{"name", "arguments"}]}` asks for tools; without a script a model that
        has a tool `finish` calls that.
        """
        prompt = _last_said(body)
        for match, reply in self._script:
            if match.search(prompt):
                if isinstance(reply, dict) and reply.keys() == {"calls"}:
                    return "", reply["calls"]
                return reply if isinstance(reply, str) else orjson.dumps(reply).decode(), []
        for tool in body.get("tools") or ():
            if tool["function"]["name"] == "finish":
                return "", [{"name": "finish", "arguments": instance(tool["function"]["parameters"], prompt)}]
        wanted = body.get("response_format") or {}
        if wanted.get("type") == "json_schema":
            return orjson.dumps(instance(wanted["json_schema"]["schema"], prompt)).decode(), []
        return prompt, []


def _last_said(body: Mapping[str, Any]) -> str:
    """The last message of the user or of tools."""
    return next((m.get("content") or "" for m in reversed(body["messages"]) if m["role"] in ("user", "tool")), "")

"""The usual accidents of expressions in YAML, told in the author's terms: most end with quoting the expression."""

from __future__ import annotations

import re

from decurion_crds.findings import printable
from decurion_crds.loader.source import Source, Spot

_PAIRS = {")": "(", "]": "[", "}": "{"}
_QUOTE = "put the whole text into double quotes, or write it as a block with |"
_HELM = re.compile(r"\{\{-|-\}\}|\{\{ *(\.|\$|if |else|end|with |range |include |template |toYaml |define )")
_REFUSED = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufeff")
_GLUED = re.compile(r"\s*(?:- )?([A-Za-z]\w*):[^\s:/]\S*$")


def unbalanced(text: str) -> bool:
    """Whether brackets or double quotes of `text` are left open, as when a part of an expression was cut off."""
    stack: list[str] = []
    quote = ""
    previous = ""
    for character in text:
        if quote:
            quote = "" if character == quote and previous != "\\" else quote
        elif character == '"' or (character == "'" and not previous.isalnum()):
            quote = character
        elif character in "([{":
            stack.append(character)
        elif character in _PAIRS and (not stack or stack.pop() != _PAIRS[character]):
            return True
        previous = character
    return bool(stack) or quote == '"'


def cut_by_comment(source: Source, spot: Spot, value: str) -> str | None:
    """What to say when a plain scalar ends at a ` #` in the middle of an expression."""
    if source.behind(spot).lstrip().startswith("#") and unbalanced(value):
        return f"YAML takes the rest from # on for a comment; {_QUOTE}"
    return None


def cut_by_comma(source: Source, spot: Spot) -> str:
    return f"between braces YAML cuts {_excerpt(source.between(spot))} at the comma; {_QUOTE}"


def question_mark(source: Source, spot: Spot) -> str:
    """For `{note?: …}`: the parser in kubectl ends a word at the mark."""
    word = source.between(spot)
    return f'between braces kubectl does not read {_excerpt(word)}; write it in quotes, as "{_excerpt(word)}"'


def tag(source: Source, spot: Spot, name: str) -> str:
    """For `!has(x)` and the like."""
    if name.startswith("tag:"):
        return f"the tag !!{name.rpartition(':')[2]} is not read here; remove it and write the value as a text"
    word = _excerpt(source.line(spot.line)[spot.column - 1 :]) or name
    return f"YAML takes the text that starts with ! for a tag ({word}); write not instead of !, or {_QUOTE}"


def anchor(source: Source, spot: Spot) -> str:
    """For `x: &rows`."""
    return f"YAML takes the text that starts with & for an anchor ({_excerpt(source.line(spot.line))}); {_QUOTE}"


def composite_key(source: Source, spot: Spot) -> str:
    """For `prompt: {{ x }}` and `{[a, b]: c}`."""
    if source.line(spot.line)[max(spot.column - 2, 0) :].startswith("{{"):
        return f"YAML takes {{{{ for two objects; {_QUOTE}"
    return f"a key is a text, and this is an object or a list; {_QUOTE}"


def character(source: Source) -> tuple[Spot, str]:
    """The place of the first character that no YAML may hold, and what to say of it."""
    found = _REFUSED.search(source.text, 1)
    if found is None:
        return source.first, "this is no YAML; save it as plain UTF-8 text"
    line = source.first.line + source.text.count("\n", 0, found.start())
    column = found.start() - source.text.rfind("\n", 0, found.start())
    code = ord(found[0])
    remedy = f'remove it, or write "{printable(found[0])}" in double quotes' if code else "save it as plain UTF-8 text"
    return Spot(line, column, line, column + 1), f"the character U+{code:04X} may not stand in YAML; {remedy}"


def syntax(source: Source, spot: Spot, problem: str, context: str) -> str:
    """One sentence for what libyaml found."""
    line = source.line(spot.line)
    if any(_HELM.search(source.line(number)) for number in (spot.line - 1, spot.line)):
        return (
            "this looks like a template of Helm; render it first (helm template), or, if the braces belong to the "
            f"text, {_QUOTE}"
        )
    if line.startswith("%") or "directive" in problem or "document start" in problem or "incompatible" in problem:
        return "kubectl reads no YAML directives; remove the line that starts with %"
    tabbed = line[: len(line) - len(line.lstrip())] + line[spot.column - 1 : spot.column]
    if "\t" in tabbed or "'\\t'" in problem or "tab" in problem:
        return "YAML does not allow tabs for indentation; use spaces"
    if "unexpected ':'" in problem:
        return f"a : between braces needs a space behind it; add the space, or {_QUOTE}"
    glued = "mapping values are not allowed" in problem or "could not find expected ':'" in problem
    if glued and (key := _glued(source, spot)):
        return f"a : after a name needs a space behind it; write {key}: …"
    if "did not find expected key" in problem and "block mapping" in context and line.lstrip().startswith("- "):
        return "an item of a list stands among the fields of an object; indent it as its list, or remove the -"
    if "mapping values are not allowed" in problem:
        return f'a ": " inside a text ends it for YAML; {_QUOTE}'
    if "cannot start any token" in problem:
        return f"a text cannot start with {_excerpt(line[spot.column - 1 :], 1)}; {_QUOTE}"
    if "found unexpected end of stream" in problem or "unexpected end" in problem:
        return "a quote or bracket that is opened here is never closed; close it"
    where = f" {context}" if context else ""
    said = f"this is no YAML: {problem}{where}"
    hint = "check the indentation and brackets here and above"
    if "flow" in context or "block mapping" in context or "tag" in problem or "alias" in context or "anchor" in context:
        hint = f"if an expression or a text stands here, {_QUOTE}"
    return f"{said}; {hint}"


def _glued(source: Source, spot: Spot) -> str | None:
    """The name before a : that no blank follows, in the line where a text began that goes on to `spot`."""
    found = _GLUED.match(source.line(spot.line - 1)) if spot.line > 1 else None
    return found[1] if found else None


def _excerpt(text: str, limit: int = 40) -> str:
    text = text.strip()
    return text if len(text) <= limit else text[:limit] + ("…" if limit > 1 else "")

"""The words of the expression language: which builtins, functions and modules there are.

They are a subset of what Monty runs and its checker knows; tests hold both against the real interpreter.
"""

from __future__ import annotations

BUILTINS = frozenset(
    {
        "abs", "all", "any", "bool", "chr", "dict", "divmod", "enumerate", "float", "frozenset", "int",
        "isinstance", "len", "list", "max", "min", "next", "ord", "pow", "range", "repr", "reversed", "round", "set",
        "sorted", "str", "sum", "tuple", "zip",
    }
)  # fmt: skip
"""Builtins of Python that an expression may use. All are pure."""

FUNCTIONS = frozenset({"date", "json", "parse_json", "truncate"})
"""Our own functions, see `prelude.py`."""

CODE_REFUSED = frozenset(
    {
        "breakpoint", "compile", "delattr", "eval", "exec", "exit", "globals", "help", "input", "locals", "main",
        "memoryview", "open", "quit", "setattr", "vars",
    }
)  # fmt: skip
"""What `code` may not use: it reaches outside a call, or hides names from the checker."""

MODULES = frozenset(
    {
        "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal", "functools",
        "hashlib", "itertools", "json", "math", "random", "re", "time", "tomllib", "typing", "unicodedata",
    }
)  # fmt: skip
"""Modules that `code` may import."""

FRESH_MODULES = frozenset({"random", "time"})
"""Modules whose use makes a call depend on clock or randomness."""

FRESH_ATTRIBUTES = frozenset({"now", "today", "utcnow"})
"""Methods of `datetime` that read the clock."""

FRESH_BUILTINS = frozenset({"hash", "id"})
"""Builtins whose result depends on what a session did before."""

MUTATORS = frozenset(
    {
        "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault",
        "sort", "update",
    }
)  # fmt: skip
"""Methods that change the value they are called on. An expression may not: its values are shared with others."""

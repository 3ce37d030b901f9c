"""The tools of the server `workspace`: they work on the files of the node that calls them, and on nothing else.

A call changes a copy that is the node's own until it ends well. So a call is no effect: a runner that takes the node
over makes it again, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping

from decurion_crds.canonical import Json
from decurion_crds.globs import Globs
from decurion_ledger.errors import BadTree, OutOfScope, WorkspaceTooLarge
from decurion_ledger.workspace import Draft
from decurion_worker.context import Execution
from decurion_worker.errors import ToolRefused
from decurion_worker.tools import ToolAnswer

MOST = 10_000
"""Paths that one answer lists."""


async def call_workspace(execution: Execution, name: str, arguments: Mapping[str, Json]) -> ToolAnswer:
    """What a tool gives; that a file cannot be read or written is a failure of the tool. Raises `BlobCorrupt`, or the
    store's error.
    """
    draft = execution.draft
    if draft is None:
        raise ToolRefused(f"{execution.path}: the node has no files; add workspace to it")
    try:
        return ToolAnswer("", await _TOOLS[name](draft, arguments))
    except (BadTree, OutOfScope, WorkspaceTooLarge, _Missed) as error:
        return ToolAnswer(str(error), failed=True)


class _Missed(Exception):
    """A tool cannot do what it is asked; the text says why and what to do."""


async def _text(draft: Draft, path: str) -> str:
    content = await draft.read(path)
    if content is None:
        raise _Missed(f"there is no file {path}; the tool glob lists what there is")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _Missed(f"{path} is no UTF-8 text (byte {error.start}); it cannot be read as one") from error


async def _read(draft: Draft, given: Mapping[str, Json]) -> Json:
    return {"text": await _text(draft, given["path"])}


async def _write(draft: Draft, given: Mapping[str, Json]) -> Json:
    content = given["text"].encode()
    draft.write(given["path"], content)
    return {"bytes": len(content)}


async def _write_files(draft: Draft, given: Mapping[str, Json]) -> Json:
    for one in given["files"]:
        draft.write(one["path"], one["text"].encode())
    return {"count": len(given["files"])}


async def _edit(draft: Draft, given: Mapping[str, Json]) -> Json:
    path, old, new = given["path"], given["old"], given["new"]
    text = await _text(draft, path)
    count = text.count(old) if old else 0
    if count == 0:
        raise _Missed(f"the text to replace does not stand in {path}; read the file, and copy what stands there")
    if count > 1 and not given.get("all"):
        raise _Missed(f"the text to replace stands {count} times in {path}; write more of what is around it, or all")
    draft.write(path, text.replace(old, new).encode())
    return {"replaced": count}


async def _delete(draft: Draft, given: Mapping[str, Json]) -> Json:
    there = await draft.read(given["path"]) is not None
    draft.remove(given["path"])
    return {"deleted": there}


async def _list(draft: Draft, given: Mapping[str, Json]) -> Json:
    folder = (given.get("folder") or "").strip("/")
    prefix = f"{folder}/" if folder not in ("", ".") else ""
    below = [path[len(prefix) :] for path in await draft.files() if path.startswith(prefix)]
    names = {path.partition("/")[0] + ("/" if "/" in path else "") for path in below}
    return {"names": sorted(names)[:MOST]}


async def _glob(draft: Draft, given: Mapping[str, Json]) -> Json:
    return {"paths": await draft.files(Globs((given["pattern"],)), most=MOST)}


_TOOLS = {
    "read": _read,
    "write": _write,
    "write_files": _write_files,
    "edit": _edit,
    "delete": _delete,
    "list": _list,
    "glob": _glob,
}

"""Workspaces: the files of a run, what a node may do with them, and what becomes of what the items of a map did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from decurion_crds.findings import quoted
from decurion_crds.v1alpha1.base import (
    MAX_ENTRIES,
    Expression,
    Model,
    ResourceName,
    Rule,
    atomic,
    named,
)

MAX_GLOB = 256
GLOB = r"^[^/]"
WORKSPACE_BYTES = 1024 * 1024 * 1024
WORKSPACE_FILES = 100_000


def _glob(pattern: str) -> str:
    if any(part in ("", ".", "..") for part in pattern.split("/")):
        text = (
            f"{quoted(pattern)} is no path in the workspace: it is relative, with no empty part, no . and no ..; write "
            "one such as src/**"
        )
        raise PydanticCustomError("name", "{text}", {"text": text, "code": "FIELD-VALUE"})
    return pattern


Glob = Annotated[
    str, AfterValidator(_glob), Field(min_length=1, max_length=MAX_GLOB, json_schema_extra={"pattern": GLOB})
]
_GLOBS = "* and ? stand for characters of one name, [abc] for one of these, ** for folders"


class NodeWorkspace(Model):
    """Which files of the run a node sees and changes."""

    read: Annotated[list[Glob], atomic(max_length=MAX_ENTRIES)] | None = Field(
        None, description=f"Files that it may read: {_GLOBS}. Absent, all of them."
    )
    write: Annotated[list[Glob], atomic(max_length=MAX_ENTRIES)] = Field(
        default_factory=list,
        description="Files that it may write, change and remove, which it may read, too. Nodes that run side by side "
        "may not write the same. Absent, none.",
    )

    later: ClassVar[Mapping[str, str]] = {
        "mount": "remove it; files are read and written by the tools of the server workspace",
    }


class MapWorkspace(Model):
    """What becomes of the files that the items of a map wrote, each on its own."""

    merge: Literal["disjoint", "threeWay", "prefer", "namespace"] = Field(
        "disjoint",
        description="disjoint: no two items may change one file. threeWay: two may, if they make the same of it. "
        "prefer: the first item that changed a file wins. namespace: each item's files go into a folder of its own, "
        "NODE/00000, NODE/00001 and so on. Default disjoint.",
    )
    on_conflict: Literal["fail", "collect"] = Field(
        "fail",
        description="With disjoint and threeWay. fail: the map fails. collect: such files stay as they were, "
        "output.conflicts names them, and what each item made of them is in .conflicts/NODE. Default fail.",
    )

    rules = (
        Rule(
            cel="!has(self.onConflict) || self.onConflict != 'collect' || !has(self.merge) || "
            "self.merge in ['disjoint', 'threeWay']",
            message="merge leaves no conflict to collect; remove onConflict, or write merge: threeWay",
            check=lambda map_: map_.on_conflict != "collect" or map_.merge in ("disjoint", "threeWay"),
        ),
    )


class Artefact(Model):
    """Files that a run leaves for others."""

    name: ResourceName = Field(description="Name, as in decurion artefact get RUN NAME.")
    path: Glob = Field(description="The file, or a glob for several. One at least has to be there when the run ends.")
    type: str | None = Field(
        None,
        max_length=128,
        pattern=r"^[a-z0-9.+-]+/[A-Za-z0-9.+-]+$",
        description="Media type, such as text/markdown. Absent, what the name of the file says.",
    )


class RunWorkspace(Model):
    """The files of a run."""

    from_: Expression | None = Field(
        None,
        description="URI of a folder whose files the run begins with: a text, as in \"'s3://bucket/source'\", or a "
        "name of the input, as in input.source. Absent, it begins with none.",
    )
    max_bytes: int = Field(
        WORKSPACE_BYTES, ge=1, le=1 << 40, description="Most bytes of all files together. Default 1 GiB."
    )
    max_files: int = Field(WORKSPACE_FILES, ge=1, le=10_000_000, description="Most files. Default 100000.")
    artefacts: Annotated[list[Artefact], named(max_length=MAX_ENTRIES)] = Field(
        default_factory=list,
        description="What of the files is for others, by name; the run fails where one is missing.",
    )

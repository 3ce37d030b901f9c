"""Files in a graph: `itemsFrom` of maps and `load` of nodes."""

from __future__ import annotations

from decurion_crds.compile.draft import LoadDraft, NodeDraft
from decurion_crds.compile.report import Report, Spot
from decurion_crds.compiled import LISTED_FILE, Load, Schema
from decurion_crds.expressions.shapes import branches, is_any, mismatch, words
from decurion_crds.v1alpha1 import ItemsFrom
from decurion_crds.v1alpha1 import Load as Written

TEXT: Schema = {"type": "string"}


def check_items_from(block: ItemsFrom, spot: Spot, report: Report) -> None:
    """That a schema is there where it is needed, and only there. What the API server cannot say: it sees no schemas."""
    if block.jsonl is not None and block.schema_ is None:
        message = "jsonl needs a schema of its lines; add it, as in schema: {id: {type: string}}"
        report.add("FIELD-MISSING", spot, message)
    elif block.jsonl is None and block.prefix is not None and block.schema_ is not None:
        message = "the items of prefix are {key, uri, size, etag}; remove schema, and load the files to check contents"
        report.add("FIELD-VALUE", spot.below("schema"), message)


def check_load(block: Written, spot: Spot, report: Report, *, taken: bool) -> None:
    """That a load has a name of its own and a schema only for a JSON value."""
    if taken:
        message = "with has the same name, and the block sees one of them; rename one"
        report.add("DUPLICATE-NAME", spot.key(), message)
    if block.schema_ is not None and block.as_ != "json":
        message = f"a schema goes with as: json, and as: {block.as_} gives a text; remove schema, or write as: json"
        report.add("FIELD-VALUE", spot.below("schema"), message)


def check_template(node: NodeDraft, declared: Schema, report: Report) -> None:
    """That what runs for each file of a folder takes such an item."""
    block, use = node.model.map, node.body
    if block is None or use is None or mismatch(LISTED_FILE, declared) is None:
        return
    message = (
        f"the items of prefix are objects {{key, uri, size, etag}}, and the {use.shown} declares {words(declared)} for "
        f"{block.as_}; declare an object with some of these"
    )
    report.add("EXPR-TYPE", node.spot.below("map", "itemsFrom", "prefix"), message)


def check_place(found: Schema | None, draft: LoadDraft, report: Report) -> None:
    """That `from`, whose type is `found`, names a file: by a text, or by an object with uri."""
    if found is None or is_any(found):
        return
    for branch in branches(found):
        if branch.get("type") == "object":
            fields, required = branch.get("properties", {}), branch.get("required", ())
            if not fields or ("uri" in required and mismatch(fields["uri"], TEXT) is None):
                continue
        elif is_any(branch) or mismatch(branch, TEXT) is None:
            continue
        message = (
            f"a file is named by its URI, a text, or by an object with the field uri, and this is {words(branch)}; "
            "give one of these"
        )
        report.add("EXPR-TYPE", draft.site.spot, message)
        return


def load_of(draft: LoadDraft) -> Load:
    model = draft.model
    schema = draft.schema if model.as_ == "json" else {}
    return Load.model_validate(
        {"from": draft.site.parsed.expr, "as": model.as_, "schema": schema, "maxBytes": model.max_bytes}
    )

"""Manifests from files: YAML as kubectl reads it, with the place of every value."""

from decurion_crds.loader.bodies import Hoisted, hoist, unhoist, with_inputs
from decurion_crds.loader.documents import Document, Loaded, independent, load, load_text, load_texts
from decurion_crds.v1alpha1.parse import KEY, AnyResource

__all__ = [
    "KEY",
    "AnyResource",
    "Document",
    "Hoisted",
    "Loaded",
    "hoist",
    "independent",
    "load",
    "load_text",
    "load_texts",
    "unhoist",
    "with_inputs",
]

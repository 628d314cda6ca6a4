"""Entries of plug-ins in the registries: op classes, lowerings, decompositions, graph passes and MLIR passes.

Imports neither torch nor MLIR; a registry whose module has not been imported counts as empty.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from buddy.compiler.graph import decompositions
from buddy.compiler.graph.operation import op_classes
from buddy.compiler.graph.transform import transforms
from buddy.compiler.protocol.recipe import digest

Kind = Literal["op class", "lowering", "decomposition", "graph pass", "MLIR pass"]
# The key of an entry: a lowering is `linalg.AddOp`, a decomposition its target.
Key = tuple[Kind, str]

_OURS = "buddy.compiler."
DIALECTS = ("linalg", "math", "tosa")


def plugin_registrations() -> dict[Key, Any]:
    """Returns the entries of all registries that are defined outside of this package."""
    return {key: entry for key, entry in _all_entries() if not is_ours(entry)}


def is_ours(entry: Any) -> bool:
    """True if a class or function is defined in this package."""
    return str(getattr(entry, "__module__", "")).startswith(_OURS)


def code_hash(entries: Iterable[Any]) -> str:
    """Returns a hash of the files that define `entries`; "" if there are no entries."""
    files = sorted({_file(entry) for entry in entries})
    return digest(*[_content(file) for file in files]) if files else ""


def _all_entries() -> Iterator[tuple[Key, Any]]:
    for name, cls in op_classes().items():
        yield ("op class", name), cls
    for dialect in DIALECTS:
        for name, lowering in getattr(sys.modules.get(f"{_OURS}ops.{dialect}"), "ops_registry", {}).items():
            yield ("lowering", f"{dialect}.{name}"), lowering
    for target, rule in decompositions.registered().items():
        yield ("decomposition", target), rule
    for name, transform in transforms().items():
        yield ("graph pass", name), transform
    base = sys.modules.get(f"{_OURS}passes.base")
    for name, found in (base.registered() if base is not None else {}).items():
        yield ("MLIR pass", name), found


def _file(entry: Any) -> str:
    code = getattr(entry, "__code__", None)
    return code.co_filename if code else str(getattr(sys.modules.get(entry.__module__), "__file__", ""))


def _content(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return file

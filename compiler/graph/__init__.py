"""The Buddy graph: nodes, element types, transforms and the partition into functions.

Imports neither torch nor MLIR. Start with `types` (element types, metas), `node` (`Op`, the base of all op classes) and
`graph` (`Graph`, a list of nodes, and its edits). `operations/` has the op classes, `transform/` the graph passes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULE_OF_CLASS = {
    "Graph": "graph",
    "GraphDriver": "driver",
    "GraphError": "types",
    "DeviceType": "types",
    "NodeType": "types",
    "TensorDType": "types",
    "TensorMeta": "types",
}


def __getattr__(name: str) -> Any:
    """Returns a class that scripts import from this package; loads the class's module on first access.

    These are the classes in `_MODULE_OF_CLASS`, all op classes, and `OpType`.
    """
    if name in _MODULE_OF_CLASS:
        return getattr(import_module(f"{__name__}.{_MODULE_OF_CLASS[name]}"), name)
    if name == "__all__":
        return [*_MODULE_OF_CLASS, *import_module(f"{__name__}.operation").__all__]
    if name.endswith("Op") or name == "OpType":
        return getattr(import_module(f"{__name__}.operation"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

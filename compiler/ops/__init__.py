"""Lowers ATen ops to MLIR. Each dialect has a registry of lowerings; the recipe's dialect sets the search order.

`lowering` lowers a whole graph, node by node. A lowering is a function of a node and the symbol table, which has the
MLIR values of the nodes before it; it emits ops at the insertion point, and returns the values of the results. It reads
the node's arguments (`node.args`, in the order of the torch op's schema), and the shape and element type of a result
from its meta (`node.tensor_meta`). If it does not support a case, it raises `LoweringError`, and the next registry is
tried.

The modules that most lowerings use are `structured` (imported as `st`), which emits `linalg` ops on tensors, `scalar`
(imported as `s`), arithmetic on one element, and `loops`, which emits loops with loop-carried tensors. In all of them,
`dtype` is a `TensorDType` of the graph, which has the signedness that MLIR's integer types lack. `wide` is the type in
which sums are accumulated, such as f32 for f16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buddy.compiler.ops.utils import Registry
    from buddy.compiler.protocol import OpInfo

# The dialect of the recipe, and the registries to search for it, in order.
_SEARCH_ORDER = {
    "linalg": ("linalg", "math", "tosa", "unrolled"),
    "tosa": ("tosa", "linalg", "math", "unrolled"),
}
# Dialects of recipes that are lowered node by node, by the registries of this package.
OWN_DIALECTS = frozenset(_SEARCH_ORDER)


def registries(dialect: str = "linalg") -> dict[str, Registry]:
    """Returns the registries by name, in the search order of a recipe's `dialect`."""
    from importlib import import_module

    from buddy.compiler.ops import recurrent

    def registry(name: str) -> Registry:
        if name == "unrolled":
            # It has no module of its own: `recurrent` has two ways to lower a layer.
            return recurrent.unrolled_registry
        module_registry: Registry = import_module(f"buddy.compiler.ops.{name}").ops_registry
        return module_registry

    return {name: registry(name) for name in _SEARCH_ORDER[dialect]}


def op_table() -> tuple[OpInfo, ...]:
    """Returns every op target with an op class or a plug-in's decomposition, and the registries that lower it."""
    import buddy.compiler.graph.operations  # noqa: F401  (defines the classes)
    from buddy.compiler.graph import plugins
    from buddy.compiler.graph.node import default_ops_map
    from buddy.compiler.graph.plugins import RegistrationKey, origin
    from buddy.compiler.protocol import OpInfo

    all_registries = registries()
    table = []
    for target, cls in sorted(default_ops_map().items()):
        dialects = tuple(name for name, registry in all_registries.items() if cls.__name__ in registry)
        keys: list[RegistrationKey] = [("lowering", f"{dialect}.{cls.__name__}") for dialect in dialects]
        table.append(OpInfo(target, cls.__name__, dialects, origin(("op class", cls.__name__), *keys)))
    decomposed = (
        OpInfo(target, "", (), origin(("decomposition", target))) for target in plugins.plugin_decompositions()
    )
    return tuple(sorted((*table, *decomposed), key=lambda info: info.target))

"""Lowers ATen ops to MLIR. Each dialect has a registry of lowerings; the recipe's dialect sets the search order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buddy.compiler.ops.registry import Registry
    from buddy.compiler.protocol import OpInfo

# The dialect of the recipe, and the registries to search for it, in order.
_SEARCH_ORDER = {
    "linalg": ("linalg", "math", "tosa", "unrolled"),
    "tosa": ("tosa", "linalg", "math", "unrolled"),
}
# Dialects of recipes that are lowered node by node, by the registries of this package.
OWN_DIALECTS = frozenset(_SEARCH_ORDER)


def registries(dialect: str = "linalg") -> dict[str, Registry]:
    """Returns the registries by dialect name, in search order."""
    from importlib import import_module

    from buddy.compiler.ops import recurrent

    # A second way to lower the same ops to linalg, which has no separate module.
    others = {"unrolled": recurrent.unrolled_registry}
    modules = "buddy.compiler.ops"
    names = _SEARCH_ORDER[dialect]
    return {name: others[name] if name in others else import_module(f"{modules}.{name}").ops_registry for name in names}


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

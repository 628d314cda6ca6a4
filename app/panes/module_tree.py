"""The tree of modules in the graph pane: which rows of modules and nodes it has."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from buddy.compiler.protocol import NodeRow


@dataclass(frozen=True)
class ModuleRow:
    """A module in the tree: its full path, its depth (0 at the top), and its nodes, with those of nested modules."""

    path: str
    depth: int
    nodes: tuple[NodeRow, ...]
    folded: bool

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rpartition(".")[2]


TreeRow = NodeRow | ModuleRow


@dataclass
class _Module:
    """A module while the tree is built. `nodes` includes those of nested modules; the root has the path ""."""

    path: str
    nodes: list[NodeRow] = field(default_factory=list)
    # The nodes and modules directly inside, in the order of their first node.
    entries: list[NodeRow | _Module] = field(default_factory=list)
    modules: dict[str, _Module] = field(default_factory=dict)


def tree_rows(rows: Sequence[NodeRow], folded: Collection[str]) -> list[TreeRow]:
    """Returns the rows of modules and nodes, top down.

    `folded` are the paths of the modules whose nodes and nested modules have no rows.
    """
    root = _Module("")
    for row in rows:
        _add_to_modules(root, row).entries.append(row)
    result: list[TreeRow] = []
    _append_rows(root, -1, folded, result)
    return result


def _add_to_modules(root: _Module, row: NodeRow) -> _Module:
    """Add a node to all modules that contain it, which are created if necessary. Returns the innermost one."""
    module = root
    for name in row.module.split(".") if row.module else ():
        if name not in module.modules:
            path = f"{module.path}.{name}" if module.path else name
            module.modules[name] = _Module(path)
            module.entries.append(module.modules[name])
        module = module.modules[name]
        module.nodes.append(row)
    return module


def _append_rows(module: _Module, depth: int, folded: Collection[str], result: list[TreeRow]) -> None:
    """Append the rows of the entries of a module, which is at `depth` (-1 for the root), to `result`."""
    for entry in module.entries:
        if isinstance(entry, NodeRow):
            result.append(entry)
            continue
        result.append(ModuleRow(entry.path, depth + 1, tuple(entry.nodes), entry.path in folded))
        if entry.path not in folded:
            _append_rows(entry, depth + 1, folded, result)


def all_modules(rows: Sequence[NodeRow]) -> set[str]:
    """Returns the paths of all modules that contain nodes, directly or in nested modules."""
    return {path for row in rows if row.module for path in module_paths(row.module)}


def module_paths(module: str) -> list[str]:
    """Returns the paths of a module and of the modules that contain it, the outermost first."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]

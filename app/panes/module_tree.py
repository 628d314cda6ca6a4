"""The graph's nodes as a tree of the modules that call them. No Textual."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from buddy.compiler.protocol import NodeRow


@dataclass(frozen=True)
class ModuleRow:
    """A module in the tree: its full path, and all nodes inside, including those of nested modules."""

    path: str
    depth: int
    nodes: tuple[NodeRow, ...]
    folded: bool

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


TreeRow = NodeRow | ModuleRow


@dataclass
class _Module:
    path: str
    nodes: list[NodeRow] = field(default_factory=list)
    # Nodes and modules, in the order of their first appearance.
    entries: list[NodeRow | _Module] = field(default_factory=list)
    modules: dict[str, _Module] = field(default_factory=dict)


def tree_rows(rows: Sequence[NodeRow], folded: Collection[str]) -> list[TreeRow]:
    """The rows of modules and nodes, top down. Modules in `folded` have only their own row."""
    root = _Module("")
    for row in rows:
        _module_of(root, row).entries.append(row)
    found: list[TreeRow] = []
    _append_rows(root, -1, folded, found)
    return found


def _module_of(root: _Module, row: NodeRow) -> _Module:
    module = root
    for part in row.module.split(".") if row.module else ():
        if part not in module.modules:
            path = f"{module.path}.{part}" if module.path else part
            module.modules[part] = _Module(path)
            module.entries.append(module.modules[part])
        module = module.modules[part]
        module.nodes.append(row)
    return module


def _append_rows(module: _Module, depth: int, folded: Collection[str], found: list[TreeRow]) -> None:
    for entry in module.entries:
        if isinstance(entry, NodeRow):
            found.append(entry)
            continue
        found.append(ModuleRow(entry.path, depth + 1, tuple(entry.nodes), entry.path in folded))
        if entry.path not in folded:
            _append_rows(entry, depth + 1, folded, found)


def all_modules(rows: Sequence[NodeRow]) -> set[str]:
    """The paths of all modules of the nodes."""
    paths = set()
    for row in rows:
        parts = row.module.split(".") if row.module else []
        paths |= {".".join(parts[: count + 1]) for count in range(len(parts))}
    return paths

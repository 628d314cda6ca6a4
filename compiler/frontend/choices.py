"""Expands a caller's choices of lowerings to the nodes of one graph: an op's name stands for all of its nodes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from msgspec.structs import replace

from buddy.compiler.frontend.errors import OptionError
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, default_ops_map
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, OpChoice, Recipe

_NUMBER = re.compile(r"\.\d+$")


def choices_for_graph(graph: Graph, recipe: Recipe, is_whole: bool, has_user_registry: bool = False) -> Recipe:
    """`recipe` with choices for nodes of `graph` only; a choice for a node overrides one for its op.

    Raises `OptionError` for an unknown op or registry, and for a registry that does not lower the op. If the graph
    `is_whole`, also raises it for an unknown node, and warns of a known op that the graph does not have: pieces and
    backward graphs have only some of the nodes, and renumber them. With `has_user_registry`, the registry "user"
    exists.
    """
    if not recipe.choices:
        return recipe
    lowering_by_op: dict[str, str] = {}
    lowering_by_node: dict[str, str] = {}
    for choice in recipe.choices:
        registry_names = _check_registry(choice, recipe.dialect, has_user_registry)
        nodes = [
            op for op in graph.operations if choice.node in (op.stable, op.name) and not _is_op_of(op, choice.node)
        ]
        ops = [op for op in graph.operations if _is_op_of(op, choice.node)]
        for op in (*nodes, *ops):
            _check_lowers(op, choice, recipe.dialect, registry_names)
        lowering_by_node |= dict.fromkeys((op.stable for op in nodes), choice.lowering)
        lowering_by_op |= dict.fromkeys((op.stable for op in ops), choice.lowering)
        if not nodes and not ops:
            _report_unmatched(graph, choice.node, is_whole)
    lowerings = lowering_by_op | lowering_by_node
    return replace(recipe, choices=tuple(sorted(OpChoice(node, lowering) for node, lowering in lowerings.items())))


def _is_op_of(op: Op, name: str) -> bool:
    """Whether `name` is `op`'s name without its number, with or without its module path, or its target."""
    path = _NUMBER.sub("", op.stable)
    return name in (path, path.rpartition("/")[2], op.target)


def _report_unmatched(graph: Graph, name: str, is_whole: bool) -> None:
    """Handles a `name` that matches no node of `graph`: warns if it is a known op, raises `OptionError` if it is not,
    and ignores nodes that another piece of the graph may have.
    """
    node_names = [op.stable for op in graph.operations]
    if _knows_op(name):
        if is_whole:
            message = f"choices: a graph does not have the op {name}; it has {_list_names(node_names)}"
            warnings.warn(message, stacklevel=2)
    elif is_whole or not _knows_op(_NUMBER.sub("", name).rpartition("/")[2]):
        kind = "node" if _NUMBER.search(name) else "node or op"
        raise OptionError(
            f"choices: unknown {kind} {name!r}{_suggest_name(name, node_names)}; "
            f"the graph has {_list_names(node_names)}"
        )


def _knows_op(name: str) -> bool:
    return any(name in (target, target.split(".")[0]) for target in default_ops_map())


def _check_registry(choice: OpChoice, dialect: str, has_user_registry: bool) -> list[str]:
    from buddy.compiler.ops import registries
    from buddy.compiler.ops.lowering import USER

    registry_names = [*([USER] if has_user_registry else []), *registries(dialect), TORCH_MLIR, EAGER]
    if choice.lowering not in registry_names:
        message = f"choices: unknown registry {choice.lowering!r} for {choice.node}"
        raise OptionError(
            f"{message}{_suggest_name(choice.lowering, registry_names)}; the registries are {', '.join(registry_names)}"
        )
    return registry_names


def _check_lowers(op: Op, choice: OpChoice, dialect: str, registry_names: Sequence[str]) -> None:
    from buddy.compiler.ops import registries

    registry_by_name = registries(dialect)
    op_class = type(op).__name__
    if choice.lowering in registry_by_name and op_class not in registry_by_name[choice.lowering]:
        alternatives = [
            key for key in registry_names if key not in registry_by_name or op_class in registry_by_name[key]
        ]
        raise OptionError(
            f"choices: {choice.lowering} has no lowering of {op.stable}; it may be {', '.join(alternatives)}"
        )


def _suggest_name(name: str, known: Iterable[str]) -> str:
    matches = get_close_matches(name, list(known), 1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def _list_names(names: Sequence[str], max_names: int = 20) -> str:
    remainder = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return (", ".join(names[:max_names]) or "no nodes") + remainder

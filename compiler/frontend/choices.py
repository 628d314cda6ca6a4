"""Expands a caller's choices of lowerings and precisions to the nodes of one graph.

A choice names a node, or an op, which stands for all of its nodes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from msgspec.structs import replace

from buddy.compiler.frontend.errors import OptionError
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, default_ops_map
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, OpChoice, PrecisionChoice, Recipe

# The number at the end of a stable name, such as `encoder/addmm.0`.
_NUMBER = re.compile(r"\.\d+$")


def choices_for_graph(graph: Graph, recipe: Recipe, is_whole: bool, has_user_registry: bool = False) -> Recipe:
    """Returns `recipe` with its choices and precisions by node of `graph`; the choice of a node overrides its op's.

    Raises `OptionError` for an unknown op or registry, and for a registry that does not lower the op. If the graph
    `is_whole`, also raises it for an unknown node, and warns of a known op that the graph does not have: pieces and
    backward graphs have only some of the nodes, and renumber them. With `has_user_registry`, the registry "user"
    exists.
    """
    for choice in recipe.choices:
        registry_names = _check_registry(choice, recipe.dialect, has_user_registry)
        for op in _nodes_of(graph, choice.node):
            _check_lowers(op, choice, recipe.dialect, registry_names)
    choices = _expand(graph, {choice.node: choice for choice in recipe.choices}, "choices", is_whole)
    precisions = _expand(graph, {choice.node: choice for choice in recipe.precisions}, "precisions", is_whole)
    return replace(recipe, choices=choices, precisions=precisions)


_Choice = TypeVar("_Choice", OpChoice, PrecisionChoice)


def _expand(graph: Graph, choices: Mapping[str, _Choice], option: str, is_whole: bool) -> tuple[_Choice, ...]:
    """Returns the choices for the nodes of `graph`, sorted.

    `choices` are by the name of a node or op; a node's choice overrides the choice of its op. `option` is the name of
    the option in messages.
    """
    by_op: dict[str, _Choice] = {}
    by_node: dict[str, _Choice] = {}
    for name, choice in choices.items():
        nodes = _nodes_of(graph, name)
        for op in nodes:
            (by_op if _is_op_of(op, name) else by_node)[op.stable] = replace(choice, node=op.stable)
        if not nodes:
            _report_unmatched(graph, name, option, is_whole)
    return tuple(sorted((by_op | by_node).values()))


def _nodes_of(graph: Graph, name: str) -> list[Op]:
    """Returns the node called `name`, or the nodes of the op called `name`."""
    return [op for op in graph.operations if name in (op.stable, op.name) or _is_op_of(op, name)]


def _is_op_of(op: Op, name: str) -> bool:
    """True if `name` is `op`'s name without its number, with or without its module path, or its target."""
    path = _NUMBER.sub("", op.stable)
    return name in (path, path.rpartition("/")[2], op.target)


def _report_unmatched(graph: Graph, name: str, option: str, is_whole: bool) -> None:
    """Reports a `name` that matches no node of `graph`.

    If the graph `is_whole`, warns for a known op, and raises `OptionError` for another name. In a piece of a graph,
    ignores ops, and nodes of ops, that another piece may have.
    """
    node_names = [op.stable for op in graph.operations]
    if _knows_op(name):
        if is_whole:
            message = f"{option}: a graph does not have the op {name}; it has {_list_names(node_names)}"
            warnings.warn(message, stacklevel=2)
    elif is_whole or not _knows_op(_NUMBER.sub("", name).rpartition("/")[2]):
        noun = "node" if _NUMBER.search(name) else "node or op"
        raise OptionError(
            f"{option}: unknown {noun} {name!r}{_suggest_name(name, node_names)}; "
            f"the graph has {_list_names(node_names)}"
        )


def _knows_op(name: str) -> bool:
    return any(name in (target, target.split(".")[0]) for target in default_ops_map())


def _check_registry(choice: OpChoice, dialect: str, has_user_registry: bool) -> list[str]:
    """Returns the names of all registries. Raises `OptionError` if the lowering of `choice` is not one of them."""
    from buddy.compiler.ops import registries
    from buddy.compiler.ops.lowering import USER_REGISTRY

    registry_names = [*([USER_REGISTRY] if has_user_registry else []), *registries(dialect), TORCH_MLIR, EAGER]
    if choice.lowering not in registry_names:
        message = f"choices: unknown registry {choice.lowering!r} for {choice.node}"
        raise OptionError(
            f"{message}{_suggest_name(choice.lowering, registry_names)}; the registries are {', '.join(registry_names)}"
        )
    return registry_names


def _check_lowers(op: Op, choice: OpChoice, dialect: str, registry_names: Sequence[str]) -> None:
    """Raises `OptionError` if the registry of `choice` has no lowering of `op`."""
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

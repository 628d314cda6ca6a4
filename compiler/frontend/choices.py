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


def choices_for_graph(graph: Graph, recipe: Recipe, whole: bool, has_own: bool = False) -> Recipe:
    """`recipe` with choices for nodes of `graph` only; a choice for a node overrides one for its op.

    Raises `OptionError` for an unknown op or registry, for a registry that does not lower the op, and, if the graph is
    `whole`, for an unknown node: pieces and backward graphs renumber their nodes. Warns of a known op that this graph
    does not have. With `has_own`, the caller provides a registry.
    """
    if not recipe.choices:
        return recipe
    of_ops: dict[str, str] = {}
    of_nodes: dict[str, str] = {}
    for choice in recipe.choices:
        known = _check_registry(choice, recipe.dialect, has_own)
        nodes = [
            op for op in graph.operations if choice.node in (op.stable, op.name) and not _is_op_of(op, choice.node)
        ]
        ops = [op for op in graph.operations if _is_op_of(op, choice.node)]
        for op in (*nodes, *ops):
            _check_lowers(op, choice, recipe.dialect, known)
        of_nodes |= dict.fromkeys((op.stable for op in nodes), choice.lowering)
        of_ops |= dict.fromkeys((op.stable for op in ops), choice.lowering)
        if not nodes and not ops:
            _report_unmatched(graph, choice.node, whole)
    found = of_ops | of_nodes
    return replace(recipe, choices=tuple(sorted(OpChoice(node, lowering) for node, lowering in found.items())))


def _is_op_of(op: Op, name: str) -> bool:
    """Whether `name` is `op`'s name without its number, with or without its module path, or its target."""
    path = _NUMBER.sub("", op.stable)
    return name in (path, path.rpartition("/")[2], op.target)


def _report_unmatched(graph: Graph, name: str, whole: bool) -> None:
    """Warns of a name that matches nothing in `graph`; raises `OptionError` if no graph can have it."""
    stable = [op.stable for op in graph.operations]
    if _knows_op(name):
        if whole:
            what = f"options choose how {name} is lowered, which a graph does not have; it has {_list_names(stable)}"
            warnings.warn(what, stacklevel=2)
    elif whole or not _knows_op(_NUMBER.sub("", name).rpartition("/")[2]):
        kind = "node" if _NUMBER.search(name) else "node or op"
        raise OptionError(
            f"choices: there is no {kind} {name!r}{_suggest_name(name, stable)}; the graph has {_list_names(stable)}"
        )


def _knows_op(name: str) -> bool:
    return any(name in (target, target.split(".")[0]) for target in default_ops_map())


def _check_registry(choice: OpChoice, dialect: str, has_own: bool) -> list[str]:
    from buddy.compiler.ops import registries
    from buddy.compiler.ops.lowering import USER

    known = [*([USER] if has_own else []), *registries(dialect), TORCH_MLIR, EAGER]
    if choice.lowering not in known:
        what = f"choices: {choice.node} is to be lowered by {choice.lowering!r}, which is not a registry"
        raise OptionError(f"{what}{_suggest_name(choice.lowering, known)}; there are {', '.join(known)}")
    return known


def _check_lowers(op: Op, choice: OpChoice, dialect: str, known: Sequence[str]) -> None:
    from buddy.compiler.ops import registries

    found = registries(dialect)
    name = type(op).__name__
    if choice.lowering in found and name not in found[choice.lowering]:
        others = [key for key in known if key not in found or name in found[key]]
        raise OptionError(f"choices: {choice.lowering} has no lowering of {op.stable}; it may be {', '.join(others)}")


def _suggest_name(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _list_names(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "no nodes") + more

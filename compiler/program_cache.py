"""Whole programs kept on disk: a graph that was compiled before under the same recipe needs no compiler at all."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import msgspec

from buddy.compiler import artifact as artifacts
from buddy.compiler.artifact import Artifact
from buddy.compiler.bindings import PACKAGE, version
from buddy.compiler.disk_cache import PROGRAMS
from buddy.compiler.graph import serialize
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.recipe import Recipe, digest
from buddy.compiler.target import host_features

_OURS = "buddy.compiler."


def find(graph: Graph, recipe: Recipe) -> Artifact | None:
    """What `graph` came to under `recipe` before, on a machine like this one; None when that is not known."""
    data = PROGRAMS.read(_key(graph, recipe)) if is_ours(graph, recipe) else None
    try:
        return None if data is None else artifacts.from_bytes(data)
    except msgspec.DecodeError:
        return None


def keep(graph: Graph, recipe: Recipe, artifact: Artifact) -> None:
    """Remember what `graph` came to; a program that others' code had a part in is not kept."""
    if is_ours(graph, recipe):
        PROGRAMS.write(_key(graph, recipe), artifacts.to_bytes(artifact))


def is_ours(graph: Graph, recipe: Recipe) -> bool:
    """Whether all code that compiles `graph` is of this package: what a user adds may change without a trace."""
    names = {type(op).__name__ for op in graph.body}
    return all(map(_is_own_class, map(type, graph.body))) and _own_lowerings(names) and _own_passes(recipe)


def _is_own_class(cls: type[Op]) -> bool:
    return cls.__module__.startswith(_OURS)


def _own_lowerings(names: set[str]) -> bool:
    """A registry whose module nobody has imported holds what we put there."""
    from buddy.compiler.ops import registries

    loaded = [sys.modules.get(f"{_OURS}ops.{name}") for name in ("linalg", "math", "tosa")]
    if not any(loaded):
        return True
    found = (registry[name] for registry in registries().values() for name in names if name in registry)
    return all(lowering.__module__.startswith(_OURS) for lowering in found)


def _own_passes(recipe: Recipe) -> bool:
    base = sys.modules.get(f"{_OURS}passes.base")
    known = base.registered() if base is not None else {}
    return all(known[step.name].__module__.startswith(_OURS) for step in recipe.steps if step.name in known)


def _key(graph: Graph, recipe: Recipe) -> str:
    bare = msgspec.structs.replace(recipe, source="", arguments=(), graph=0)
    return digest(serialize.graph_hash(graph), bare, host_features(), PACKAGE, version(), _code())


@lru_cache(maxsize=1)
def _code() -> str:
    """A hash of the compiler's own source."""
    root = Path(__file__).parent
    return digest(*[[str(path.relative_to(root)), path.read_text()] for path in sorted(root.rglob("*.py"))])

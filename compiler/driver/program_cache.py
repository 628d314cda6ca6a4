"""Caches whole programs on disk: a graph that was compiled before with the same recipe needs no passes and no LLVM."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from buddy.compiler.codegen.machines import codegen_version
from buddy.compiler.graph import plugins, serialize
from buddy.compiler.graph.graph import Graph
from buddy.compiler.mlir import mlir_tool
from buddy.compiler.mlir.bindings import PACKAGE, version
from buddy.compiler.protocol import artifact as artifacts
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import Recipe, digest
from buddy.compiler.support.disk_cache import PROGRAMS
from buddy.compiler.support.target import host_features


def find_program(graph: Graph, recipe: Recipe) -> Artifact | None:
    """Returns the cached artifact of `graph` under `recipe` for this machine, or `None`."""
    data = PROGRAMS.read(program_key(graph, recipe)) if is_ours(graph, recipe) else None
    try:
        return None if data is None else artifacts.from_bytes(data)
    except msgspec.DecodeError:
        return None


def store_program(graph: Graph, recipe: Recipe, artifact: Artifact) -> None:
    """Caches the artifact of `graph`, unless code from outside this package took part in compiling it."""
    if is_ours(graph, recipe):
        PROGRAMS.write(program_key(graph, recipe), artifacts.to_bytes(artifact))


def is_ours(graph: Graph, recipe: Recipe) -> bool:
    """Returns whether only code of this package compiles `graph`: changes of other code could not be detected."""
    classes = {type(op) for op in graph.body}
    used: set[plugins.Key] = {("backend", recipe.backend)}
    used |= {("graph pass", step.name) for step in recipe.steps}
    used |= {("MLIR pass", step.name) for step in recipe.steps}
    used |= {("lowering", f"{dialect}.{cls.__name__}") for dialect in plugins.DIALECTS for cls in classes}
    return all(map(plugins.is_built_in, classes)) and used.isdisjoint(plugins.plugin_registrations())


def program_key(graph: Graph, recipe: Recipe) -> str:
    """Returns a hash of all that determines the artifact of `graph` under `recipe`.

    This is also the CPU, the versions of MLIR and llvmlite, the compiler's own source, and the user's `mlir-opt`, which
    may run passes that the bindings lack.
    """
    without_program = msgspec.structs.replace(recipe, source="", arguments=(), graph=0)
    return digest(
        serialize.graph_hash(graph),
        without_program,
        host_features(),
        PACKAGE,
        version(),
        codegen_version(),
        _source_hash(),
        mlir_tool.identity(),
    )


@lru_cache(maxsize=1)
def _source_hash() -> str:
    """Returns a hash of the compiler's own source."""
    root = Path(__file__).parent.parent
    return digest(*[[str(path.relative_to(root)), path.read_text()] for path in sorted(root.rglob("*.py"))])

"""Caches whole programs on disk: a graph that was compiled before with the same recipe needs no passes and no LLVM."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import metadata

import msgspec

from buddy.compiler.codegen.machines import codegen_version
from buddy.compiler.graph import plugins, serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.mlir import mlir_tool
from buddy.compiler.mlir.bindings import PACKAGE, version
from buddy.compiler.protocol import artifact as artifacts
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import Recipe, digest
from buddy.compiler.support.disk_cache import PROGRAMS, source_hash
from buddy.compiler.support.target import host_features


def find_program(graph: Graph, recipe: Recipe) -> Artifact | None:
    """Returns the cached artifact of `graph` under `recipe` for this machine, or `None`."""
    data = PROGRAMS.read(program_key(graph, recipe)) if uses_only_built_in_code(graph, recipe) else None
    try:
        return None if data is None else artifacts.from_bytes(data)
    except msgspec.DecodeError:
        return None


def store_program(graph: Graph, recipe: Recipe, artifact: Artifact) -> None:
    """Caches the artifact of `graph`, unless code from outside this package took part in compiling it."""
    if uses_only_built_in_code(graph, recipe):
        PROGRAMS.write(program_key(graph, recipe), artifacts.to_bytes(artifact))


def uses_only_built_in_code(graph: Graph, recipe: Recipe) -> bool:
    """Returns whether only code of this package compiles `graph`; changes of other code would not be detected."""
    classes = {type(op) for op in graph.body}
    used_keys: set[plugins.RegistrationKey] = {("backend", recipe.backend)}
    used_keys |= {("graph pass", step.name) for step in recipe.steps}
    used_keys |= {("MLIR pass", step.name) for step in recipe.steps}
    used_keys |= {("lowering", f"{dialect}.{cls.__name__}") for dialect in plugins.DIALECTS for cls in classes}
    return all(map(plugins.is_built_in, classes)) and used_keys.isdisjoint(plugins.plugin_registrations())


class Installation(msgspec.Struct, frozen=True):
    """All parts of a machine and its software that determine compiled code, as plain texts.

    `cpu` has the features of the processor, `bindings` the version of MLIR's bindings in `package`, `code_generator`
    the version of llvmlite, `source` a hash of this compiler's own source. `tool` is the user's `mlir-opt`, which may
    run passes that the bindings lack. `packages` has the versions of Python and of the packages that take part.
    """

    cpu: str
    package: str
    bindings: str
    code_generator: str
    source: str
    tool: str
    packages: str


def installation() -> Installation:
    """Returns the installation of this process. It has no paths and no times, unless MLIR is a local build."""
    return Installation(
        host_features(), PACKAGE, version(), codegen_version(), source_hash(), mlir_tool.tool_identity(), _packages()
    )


def program_key(graph: Graph, recipe: Recipe) -> str:
    """Returns a hash of all that determines the artifact of `graph` under `recipe`."""
    # The fields that name the program do not affect its compilation.
    relevant = msgspec.structs.replace(recipe, source="", arguments=(), graph=0)
    return digest(serialization.graph_hash(graph), relevant, installation())


# The packages that capture a graph, lower it or compile it.
_PACKAGES = ("torch", "torch-mlir", "llvmlite", "iree-base-compiler", "iree-base-runtime")


@lru_cache(maxsize=1)
def _packages() -> str:
    """Returns the versions of Python and of the packages that are installed, as one text."""
    versions = [f"Python {sys.version_info.major}.{sys.version_info.minor}"]
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(versions)

"""What the key of a cached program depends on, and whose code keeps a program out of the cache."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
import torch

from buddy.compiler.driver import program_cache
from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.graph import plugins
from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.support import disk_cache


@pytest.fixture(scope="module")
def graph() -> Graph:
    (captured,) = capture(lambda x: x.sin() + 1, (torch.ones(3),))
    return captured.graph


RECIPE = default_recipe()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is remembered of the installation, before and after."""
    remembered = (program_cache._packages, disk_cache.source_hash)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


@pytest.mark.parametrize("field", [{"source": "other.py"}, {"arguments": ("--tiny",)}, {"graph": 1}])
def test_the_key_does_not_depend_on_where_a_graph_comes_from(graph: Graph, field: dict[str, object]) -> None:
    key = program_cache.program_key(graph, RECIPE)
    assert program_cache.program_key(graph, msgspec.structs.replace(RECIPE, **field)) == key


def test_the_key_depends_on_graph_and_recipe(graph: Graph) -> None:
    (other,) = capture(lambda x: x.cos() + 1, (torch.ones(3),))
    recipes = [RECIPE, *(msgspec.structs.replace(RECIPE, **f) for f in ({"dialect": "tosa"}, {"threads": 7}))]
    assert len({program_cache.program_key(g, r) for g in (graph, other.graph) for r in recipes}) == 6


@pytest.mark.parametrize("field", program_cache.Installation.__struct_fields__)
def test_the_key_depends_on_each_part_of_the_installation(
    graph: Graph, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, here = program_cache.program_key(graph, RECIPE), program_cache.installation()
    monkeypatch.setattr(program_cache, "installation", lambda: msgspec.structs.replace(here, **{field: "other"}))
    assert program_cache.program_key(graph, RECIPE) != key


SOURCES = {
    "cpu": "host_features",
    "bindings": "version",
    "code_generator": "codegen_version",
    "source": "source_hash",
    "packages": "_packages",
}


@pytest.mark.parametrize("field", [*SOURCES, "package", "tool"])
def test_each_part_of_the_installation_is_asked_of_its_owner(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = program_cache.installation()
    if field == "package":
        monkeypatch.setattr(program_cache, "PACKAGE", "other")
    elif field == "tool":
        monkeypatch.setattr(program_cache.mlir_tool, "tool_identity", lambda: "other")
    else:
        monkeypatch.setattr(program_cache, SOURCES[field], lambda: "other")
    assert program_cache.installation() == msgspec.structs.replace(here, **{field: "other"})


@pytest.mark.usefixtures("fresh")
def test_packages_are_those_that_are_installed_with_their_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13", "torch-mlir": "1", "llvmlite": "0.45", "iree-base-compiler": "3", "unrelated": "9"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(program_cache.metadata, "version", version)
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert program_cache._packages() == f"{python}, torch 2.13, torch-mlir 1, llvmlite 0.45, iree-base-compiler 3"
    versions["iree-base-runtime"] = "4"
    del versions["torch"]
    assert program_cache._packages().endswith("iree-base-compiler 3"), "asked once in a process"
    program_cache._packages.cache_clear()
    expected = f"{python}, torch-mlir 1, llvmlite 0.45, iree-base-compiler 3, iree-base-runtime 4"
    assert program_cache._packages() == expected


@pytest.mark.usefixtures("fresh")
def test_the_source_is_every_module_by_its_place_and_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest_of(package: Path) -> str:
        monkeypatch.setattr(disk_cache, "__file__", str(package / "support" / "disk_cache.py"))
        disk_cache.source_hash.cache_clear()
        return disk_cache.source_hash()

    package = tmp_path / "compiler"
    for name in ("ops/math.py", "driver/program_cache.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(name)
    first = digest_of(package)
    (package / "notes.txt").write_text("not code")
    assert digest_of(package) == first
    assert digest_of(package.rename(tmp_path / "elsewhere")) == first, "the same source at another place"
    package = tmp_path / "elsewhere"
    (package / "ops" / "math.py").write_text("edited")
    edited = digest_of(package)
    (package / "ops" / "math.py").rename(package / "ops" / "renamed.py")
    assert len({first, edited, digest_of(package)}) == 3


REGISTRATIONS = {
    "backend": ("backend", RECIPE.backend),
    "graph pass": ("graph pass", RECIPE.steps[0].name),
    "MLIR pass": ("MLIR pass", RECIPE.steps[-1].name),
    "lowering": ("lowering", "linalg.SinOp"),
    "lowering by another dialect": ("lowering", "tosa.SinOp"),
}


@pytest.mark.parametrize("key", REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_a_program_that_a_plugin_takes_part_in_is_not_cached(
    graph: Graph, key: plugins.RegistrationKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    assert any(type(op).__name__ == "SinOp" for op in graph.body)
    artifact = Compiler(graph).compile(RECIPE).artifact
    with monkeypatch.context() as patched:
        patched.setattr(plugins, "plugin_registrations", lambda: {key: object()})
        program_cache.store_program(graph, RECIPE, artifact)
        assert not (tmp_path / "programs").exists(), "nothing is stored"
    program_cache.store_program(graph, RECIPE, artifact)
    assert program_cache.find_program(graph, RECIPE) == artifact
    monkeypatch.setattr(plugins, "plugin_registrations", lambda: {key: object()})
    assert program_cache.find_program(graph, RECIPE) is None


@pytest.mark.parametrize(
    "key", [("backend", "other"), ("graph pass", "other"), ("lowering", "linalg.CosOp"), ("exporter", "SinOp")]
)
def test_a_plugin_that_takes_no_part_changes_nothing(
    graph: Graph, key: plugins.RegistrationKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "plugin_registrations", lambda: {key: object()})
    assert program_cache.uses_only_built_in_code(graph, RECIPE)


def test_an_op_class_of_a_plugin_keeps_a_program_out_of_the_cache(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One among several: the others are ours."""
    built_in = plugins.is_built_in
    monkeypatch.setattr(plugins, "is_built_in", lambda entry: entry.__name__ != "SinOp" and built_in(entry))
    assert not program_cache.uses_only_built_in_code(graph, RECIPE)


def test_what_is_whole_and_no_program_is_not_found(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache itself detects damaged files; this one was written as it is."""
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    key = program_cache.program_key(graph, RECIPE)
    disk_cache.PROGRAMS.write(key, b"no program")
    assert disk_cache.PROGRAMS.read(key) == b"no program"
    assert program_cache.find_program(graph, RECIPE) is None


def test_keys_have_no_paths() -> None:
    """A cache that was exported is found on another machine with the same software."""
    here = program_cache.installation()
    home = str(Path(program_cache.__file__).parents[2])
    assert not any(home in text for text in msgspec.structs.astuple(here))
    assert re.fullmatch(r"Python 3\.\d+(, [\w-]+ [\w.+]+)+", here.packages)

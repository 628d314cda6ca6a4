"""Whole programs on disk: found again, never for another graph or recipe, and never where a user's code had a part."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

from buddy.compiler.driver import compilation, compile_graph, program_cache
from buddy.compiler.frontend.capture import capture
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.plugins import REGISTRIES
from buddy.compiler.ops import linalg
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.support import disk_cache
from tests.models import stack
from tests.programs import assert_same


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    return tmp_path / "programs"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever the compiler really works."""
    count: list[int] = []
    compile_ = compile_graph.compile_graph
    monkeypatch.setattr(compile_graph, "compile_graph", lambda *args: count.append(1) or compile_(*args))
    return count


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(layers: int, **options: str) -> list[torch.Tensor]:
    """The results of a model under `torch.compile`, from nothing."""
    torch._dynamo.reset()
    model, x = stack(layers)
    with torch.no_grad():
        return [torch.compile(model, backend="buddy", options=options)(x)]


def expected(layers: int) -> list[torch.Tensor]:
    model, x = stack(layers)
    with torch.no_grad():
        return [model(x)]


def graph_of(layers: int) -> Graph:
    model, x = stack(layers)
    with torch.no_grad():
        (captured,) = capture(model, (x,))
    return captured.graph


def test_a_second_process_would_find_the_program(cache: Path, compilations: list[int]) -> None:
    assert_same(run(2), expected(2))
    assert len(compilations) == len(list(cache.iterdir())) == 1
    assert_same(run(2), expected(2))
    assert len(compilations) == 1


def test_another_graph_or_dialect_is_another_program(cache: Path, compilations: list[int]) -> None:
    run(2)
    assert_same(run(3), expected(3))
    assert_same(run(2, dialect="tosa"), expected(2))
    assert len(compilations) == 3


@pytest.mark.parametrize("damage", [b"", b"nothing", b"3\nabc"])
def test_a_damaged_program_is_compiled_again(cache: Path, compilations: list[int], damage: bytes) -> None:
    run(2)
    for path in cache.iterdir():
        path.write_bytes(damage)
    assert_same(run(2), expected(2))
    assert len(compilations) == 2


def test_a_lowering_of_the_users_is_not_found_in_a_cache(
    cache: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(2)
    name = next(type(op).__name__ for op in graph_of(2).operations if type(op).__name__ in linalg.ops_registry)
    own = linalg.ops_registry[name]
    monkeypatch.setitem(linalg.ops_registry, name, lambda node, table: own(node, table))
    assert not program_cache.uses_only_built_in_code(graph_of(2), default_recipe())
    run(2)
    run(2)
    assert len(compilations) == 3, "the user's function may change, and a cache would not see it"


def test_changed_source_of_the_compiler_is_another_key(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, recipe = graph_of(2), default_recipe()
    artifact = compilation.Compiler(graph).compile(recipe).artifact
    program_cache.store_program(graph, recipe, artifact)
    assert program_cache.find_program(graph, recipe) == artifact
    monkeypatch.setattr(program_cache, "source_hash", lambda: "edited")
    assert program_cache.find_program(graph, recipe) is None


def test_what_the_caches_hold_is_told_and_cleared(cache: Path) -> None:
    run(2)
    held = disk_cache.count_files()
    assert held["programs"][0] == 1
    assert held["objects"][0] > 0
    assert all(held[name][1] > 0 for name in ("programs", "objects"))
    disk_cache.clear()
    assert set(disk_cache.count_files().values()) == {(0, 0)}


def test_the_oldest_files_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv(disk_cache.ENVIRONMENT_VARIABLE, str(tmp_path))
    first = disk_cache.DiskCache("some", limit=1000)
    for number in range(4):
        first.write(f"key{number}", bytes(100))
        os.utime(tmp_path / "some" / f"key{number}", (number, number))
    later = disk_cache.DiskCache("some", limit=550)
    later.write("key9", bytes(100))
    assert [first.read(f"key{number}") is None for number in (0, 1, 2, 3, 9)] == [True, True, False, False, False]


def test_the_registries_of_plug_ins_exist() -> None:
    """They are read by name, so that a renamed one would look empty, and plug-ins' code would be cached as ours."""
    for module, registry in REGISTRIES.values():
        assert isinstance(getattr(import_module(f"buddy.compiler.{module}"), registry)(), dict)

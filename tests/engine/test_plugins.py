"""Plug-ins in the engine: by file, by installed package, and what a script itself registers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from buddy.app.session.client import EngineClient
from buddy.compiler.protocol import Compile, Compiled, Failed, ListOps, ListPasses, Open, Run
from buddy.compiler.protocol.recipe import EAGER, PassStep, PluginFile, Recipe
from tests.docs.test_pages import files

from tests.support.engine_bench import Bench  # isort: skip  (stands beside this file)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

MODEL = """\
import torch


@torch.library.custom_op("plugged::squareplus", mutates_args=())
def squareplus(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (x + torch.sqrt(x * x + 4))


@torch.library.custom_op("plugged::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


squareplus.register_fake(torch.empty_like)
cube.register_fake(torch.empty_like)


def model(x):
    return squareplus(x) + cube(x)


example_inputs = (torch.linspace(-2, 2, {width}),)
"""
LOWERING = """\
from buddy.compiler.graph.node import ElementwiseOp
from buddy.compiler.ops import linalg, scalar
from buddy.compiler.ops.elementwise import lower_expression


class SquareplusOp(ElementwiseOp):
    targets = ("plugged.squareplus.default",)


@linalg.ops_registry.lowering("SquareplusOp")
def lower_squareplus(node, symbol_table):
    return lower_expression(node, symbol_table, lambda x: 0.5 * (x + scalar.sqrt(x * x + 4)))
"""
REST = """\

from dataclasses import dataclass

from buddy.compiler.graph.plugins import decomposition
from buddy.compiler.graph.transform import graph_pass
from buddy.compiler.passes.base import MlirPass, register


@decomposition("plugged.cube.default")
def cube(x):
    return x * x * x


@graph_pass
def look_around(graph):
    "Rewrites nothing."


@register
@dataclass(frozen=True)
class DoNothing(MlirPass):
    name = "do-nothing"
    summary = "leaves the module as it is"

    def run(self, root, context):
        context.remark(self.name, root.location, "nothing was done")
"""
BROKEN = "from buddy.compiler.ops import linalg\n\nlinalg.no_such_registry\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


async def opened(bench: Bench, source: Path, plugins: tuple[PluginFile, ...] = ()) -> tuple[Any, Recipe]:
    """The captured program, and the default recipe of its first graph."""
    captured = await bench.ask(Open(bench.client.new_request_id(), str(source), plugins=plugins))
    assert not isinstance(captured, Failed), captured
    recipe = await bench.recipe(source)
    return captured, msgspec.structs.replace(recipe, plugins=captured.plugins)


async def in_eager(bench: Bench, recipe: Recipe) -> list[Any]:
    """The assignments of the nodes that stay in eager, once `recipe` is compiled."""
    bench.seen.clear()
    compiled = await bench.ask(Compile(bench.client.new_request_id(), recipe))
    assert not isinstance(compiled, Failed), compiled
    (told,) = (frame for frame in bench.seen if type(frame).__name__ == "Assigned")
    return [found for found in told.assignments if found.lowering == EAGER]


async def verdict(bench: Bench, recipe: Recipe) -> str:
    ran = await bench.ask(Run(bench.client.new_request_id(), recipe, repeats=1))
    assert not isinstance(ran, Failed), ran
    return str(ran.report.outputs[0].verdict)


async def test_a_file_adds_an_op_a_lowering_a_decomposition_and_passes(bench: Bench, tmp_path: Path) -> None:
    model = written(tmp_path / "model.py", MODEL.format(width=7))
    plugin = written(tmp_path / "plug.py", LOWERING + REST)
    captured, recipe = await opened(bench, model, (PluginFile(str(plugin)),))
    assert captured.plugins[0].path == str(plugin)
    assert not captured.notes
    steps = (PassStep("look-around", "graph", ""), PassStep("do-nothing"), *recipe.steps)
    recipe = msgspec.structs.replace(recipe, steps=steps)
    assert await in_eager(bench, recipe) == []
    assert await verdict(bench, recipe) == "ok"

    listed = await bench.client.request(ListPasses(0, plugins=captured.plugins))
    origins = {found.name: found.origin for found in listed.passes if found.origin}
    assert origins == {"look-around": "plug.py", "do-nothing": "plug.py"}
    told = await bench.client.request(ListOps(0, plugins=captured.plugins))
    mine = [(op.target, op.op, op.registries) for op in told.ops if op.origin == "plug.py"]
    assert mine == [("plugged.cube.default", "", ()), ("plugged.squareplus.default", "SquareplusOp", ("linalg",))]

    bare = await bench.client.request(ListOps(0))
    assert not [op for op in bare.ops if op.origin], "what one client's plug-ins add is not there without them"


async def test_a_file_that_has_changed_is_told_of_and_nothing_kept_is_used(bench: Bench, tmp_path: Path) -> None:
    model, plugin = written(tmp_path / "model.py", MODEL.format(width=8)), written(tmp_path / "plug.py", LOWERING)
    captured, recipe = await opened(bench, model, (PluginFile(str(plugin)),))
    assert await verdict(bench, recipe) == "ok"
    written(plugin, LOWERING.replace("0.5 *", "0.75 *"))
    again, changed = await opened(bench, model, captured.plugins)
    assert "has changed since the recipe was written" in again.notes[0]
    assert again.plugins[0].hash != captured.plugins[0].hash
    assert await verdict(bench, changed) == "mismatch", "the new lowering is wrong, and must be seen to be"


async def test_broken_plugins_are_named_with_their_line_and_keep_nothing_from_working(
    bench: Bench, tmp_path: Path
) -> None:
    model = written(tmp_path / "model.py", MODEL.format(width=9))
    broken, wrong = written(tmp_path / "broken.py", BROKEN), written(tmp_path / "wrong.py", "def f(:\n")
    good = written(tmp_path / "good.py", LOWERING)
    captured, recipe = await opened(bench, model, tuple(PluginFile(str(path)) for path in (broken, wrong, good)))
    raised, unparsed = captured.notes
    assert "plug-in broken.py raised AttributeError" in raised
    assert f"{broken}:3" in raised
    assert f"{wrong}:1" in unparsed
    assert [found.node for found in await in_eager(bench, recipe)] == ["cube.0"]
    missing = Open(bench.client.new_request_id(), str(model), plugins=(PluginFile(str(tmp_path / "none.py")),))
    failed = await bench.ask(missing)
    assert "none.py: No such file" in failed.diagnostic.what


async def test_installed_packages_are_found_by_their_entry_points(
    cold_engines: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("squareplus_plugin", LOWERING + REST), ("broken_plugin", BROKEN)):
        written(tmp_path / f"{name}.py", text)
        folder = tmp_path / f"{name}-0.1.dist-info"
        folder.mkdir()
        written(folder / "METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1\n")
        written(folder / "entry_points.txt", f"[buddy.plugins]\n{name} = {name}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    model = written(tmp_path / "model.py", MODEL.format(width=10))
    client = EngineClient()
    await client.start()
    try:
        bench = Bench(client)
        captured, recipe = await opened(bench, model)
        (note,) = captured.notes
        assert "plug-in broken-plugin 0.1 raised AttributeError" in note
        assert f"{tmp_path / 'broken_plugin.py'}:3" in note
        assert await in_eager(bench, recipe) == []
        told = await client.request(ListOps(0))
        assert {op.target for op in told.ops if op.origin == "squareplus-plugin 0.1"} == {
            "plugged.squareplus.default",
            "plugged.cube.default",
        }
    finally:
        await client.close()


async def test_what_a_script_registers_compiles(bench: Bench, root: Path) -> None:
    captured, recipe = await opened(bench, root / "samples" / "custom_op.py")
    assert not captured.notes
    assert await in_eager(bench, recipe) == []
    assert await verdict(bench, recipe) == "ok"


async def test_a_script_whose_lowering_has_changed_is_compiled_anew(bench: Bench, tmp_path: Path) -> None:
    model = written(tmp_path / "model.py", LOWERING + MODEL.format(width=11))
    _, recipe = await opened(bench, model)
    assert [found.node for found in await in_eager(bench, recipe)] == ["cube.0"]
    assert await verdict(bench, recipe) == "ok"
    written(model, model.read_text().replace("lambda x: 0.5 *", "lambda x: 0.75 *"))
    _, recipe = await opened(bench, model)
    assert await verdict(bench, recipe) == "mismatch"


async def test_a_faulty_lowering_costs_its_node_and_a_crashing_one_its_compilation(
    bench: Bench, tmp_path: Path
) -> None:
    faulty = LOWERING.replace("    return lower_expression", "    {}['no such key']\n    return lower_expression")
    model = written(tmp_path / "model.py", faulty + MODEL.format(width=12))
    _, recipe = await opened(bench, model)
    first = (await in_eager(bench, recipe))[0]
    line = faulty[: faulty.index("no such key")].count("\n") + 1
    assert f"linalg: the lowering raised KeyError: 'no such key' ({model}:{line})" in first.reason
    assert await verdict(bench, recipe) == "ok"

    written(model, model.read_text().replace("{}['no such key']", "__import__('os').abort()"))
    _, recipe = await opened(bench, model)
    failed = await bench.ask(Compile(bench.client.new_request_id(), recipe))
    assert isinstance(failed, Failed)
    assert "the compiler crashed (SIGABRT" in failed.diagnostic.what
    assert await in_eager(bench, recipe.with_choice("squareplus.0", EAGER)), "the engine goes on"


# ---- the walks of the pages ------------------------------------------------------------


def page_files(root: Path, folder: Path) -> Path:
    """The folder, with the Python files that the guides on operators, passes and backends give a name."""
    for page in (root / "docs" / "how-to").glob("adding-*.md"):
        for name, text in files(page).items():
            written(folder / name, text)
    return folder


async def test_the_walk_of_an_op(bench: Bench, root: Path, tmp_path: Path) -> None:
    folder = page_files(root, tmp_path)
    captured, recipe = await opened(bench, folder / "program.py", (PluginFile(str(folder / "squareplus.py")),))
    assert not captured.notes
    assert await in_eager(bench, recipe) == []
    assert await verdict(bench, recipe) == "ok"


async def test_the_walk_of_a_pass(bench: Bench, root: Path, tmp_path: Path, run_python: Callable[..., Any]) -> None:
    folder = page_files(root, tmp_path)
    plugins = tuple(PluginFile(str(folder / name)) for name in ("squareplus.py", "divisions_to_products.py"))
    captured, recipe = await opened(bench, folder / "program.py", plugins)
    assert not captured.notes
    first = next(k for k, step in enumerate(recipe.steps) if step.level == "mlir")
    for options, kept in ((), 1), ((("inexact", True),), 0):
        step = PassStep("divisions-to-products", options=options, phase="toplevel")
        changed = msgspec.structs.replace(recipe, steps=(*recipe.steps[:first], step, *recipe.steps[first:]))
        compiled = await bench.ask(Compile(bench.client.new_request_id(), changed))
        assert isinstance(compiled, Compiled), compiled
        told = [text for name, _, text in compiled.remarks if name == "divisions-to-products"]
        assert sum(text.startswith("kept") for text in told) == kept
        assert len(told) == 2
        assert await verdict(bench, changed) == "ok"
    listed = await bench.client.request(ListPasses(0, plugins=captured.plugins))
    (info,) = (found for found in listed.passes if found.name == "divisions-to-products")
    assert info.origin == "divisions_to_products.py"
    assert [(option.name, option.default) for option in info.options] == [("inexact", "false")]

    test = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_divisions_to_products.py")
    done = run_python(
        *test, cwd=folder, PYTHONPATH=os.pathsep.join([str(root), str(folder), os.environ.get("PYTHONPATH", "")])
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


async def test_the_walk_of_a_backend(bench: Bench, root: Path, tmp_path: Path) -> None:
    folder = page_files(root, tmp_path)
    plugins = tuple(PluginFile(str(folder / name)) for name in ("squareplus.py", "llvm_o3.py"))
    captured, recipe = await opened(bench, folder / "program.py", plugins)
    assert not captured.notes
    recipe = msgspec.structs.replace(recipe, backend="llvm-o3")
    compiled = await bench.ask(Compile(bench.client.new_request_id(), recipe))
    assert isinstance(compiled, Compiled), compiled
    assert [stage.phase for stage in compiled.stages[-3:]] == ["ir", "optimized", "asm"]
    assert compiled.stages[-2].origins[0] > 0, "lines of the optimized LLVM IR come from nodes"
    assert await verdict(bench, recipe) == "ok"
    listed = await bench.client.request(ListPasses(0, plugins=captured.plugins))
    assert [(found.name, found.origin) for found in listed.backends] == [
        ("native", ""), ("iree", ""), ("inductor", ""), ("llvm-o3", "llvm_o3.py"),
    ]  # fmt: skip


async def test_a_backend_that_raises_or_is_unknown_fails_the_compilation_alone(
    bench: Bench, root: Path, tmp_path: Path
) -> None:
    folder = page_files(root, tmp_path)
    text = (folder / "llvm_o3.py").read_text()
    faulty = written(
        folder / "faulty.py", text.replace("optimized_llvm_ir(llvm_ir_of(code)", "optimized_llvm_ir(nothing")
    )
    line = text[: text.index("optimized_llvm_ir(llvm_ir_of(code)")].count("\n") + 1
    plugins = tuple(PluginFile(str(path)) for path in (folder / "squareplus.py", faulty))
    _, recipe = await opened(bench, folder / "program.py", plugins)
    for name, what in ("llvm-o3", "the backend llvm-o3 raised NameError"), ("llvm-o4", "unknown backend 'llvm-o4'"):
        frame = Compile(bench.client.new_request_id(), msgspec.structs.replace(recipe, backend=name))
        failed = await bench.ask(frame)
        assert what in failed.diagnostic.what
        assert failed.diagnostic.where == (f"{faulty}:{line}" if name == "llvm-o3" else "the recipe's backend")
    assert await verdict(bench, recipe) == "ok"

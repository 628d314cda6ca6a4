"""Recipes whose backend is Inductor: stages, runs beside this compiler's code, numerics, cancelling, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from buddy.compiler.engine.backends import BackendWorkers
from buddy.compiler.engine.worker import WorkerListener
from buddy.compiler.protocol import (
    INDUCTOR_PHASES,
    NOT_APPLIED,
    BackendDescribed,
    Cancel,
    CheckFlags,
    CompareNodes,
    Compile,
    Compiled,
    DescribeBackend,
    Failed,
    FlagsChecked,
    NodesCompared,
    Profile,
    Progress,
    Ran,
    Run,
    StageDone,
)
from buddy.compiler.protocol.recipe import INDUCTOR, NATIVE, OpChoice, Recipe
from buddy.compiler.support import target
from buddy.compiler.support.processes.jobs import JobFailed
from tests.support.engine_bench import Bench

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

# An op that the script defines, results that are a view and a whole number, and an input that is not contiguous.
SCRIPT = """\
import torch


@torch.library.custom_op("inductor_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(16, 32)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.up(x))
        return twice(y).softmax(-1), y.t(), y.argmax(-1)


torch.manual_seed(0)
model = Model().eval()
example_inputs = torch.randn(16, 8).t()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inductor") / "model.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(autouse=True)
def cxx() -> None:
    if problem := target.missing_cxx_message():
        pytest.skip(problem)


async def by_inductor(engine: Bench, source: Path, *flags: str) -> Recipe:
    return replace(await engine.recipe(source), backend=INDUCTOR, backend_flags=flags)


async def test_its_results_stand_beside_those_of_eager_and_of_this_compiler(engine: Bench, script: Path) -> None:
    await engine.open(script)
    engine.seen.clear()
    ran = await engine.ask(Run(engine.client.new_request_id(), await by_inductor(engine, script), repeats=2))
    assert isinstance(ran, Ran), ran
    assert ran.report.backend == INDUCTOR
    assert [output.verdict for output in ran.report.outputs] == ["ok"] * 3
    (native,) = ran.report.sides
    assert (native.name, native.problem) == (NATIVE, "")
    assert [output.verdict for output in native.outputs] == ["ok"] * 3
    compiled = next(frame for frame in engine.seen if isinstance(frame, Compiled))
    assert [stage.phase for stage in compiled.stages] == ["torch", *(name for name, _ in INDUCTOR_PHASES)]
    assert [stage.language for stage in compiled.stages[1:]] == [language for _, language in INDUCTOR_PHASES]
    assert all(stage.text for stage in compiled.stages)


async def test_stages_are_complete_in_a_second_engine_s_compilation(engine: Bench, script: Path) -> None:
    """Inductor's caches are warm then, and skip nothing that is shown."""
    await engine.open(script)
    recipe = await by_inductor(engine, script)
    first = await engine.ask(Compile(engine.client.new_request_id(), recipe))
    again = await engine.ask(Compile(engine.client.new_request_id(), replace(recipe, threads=2)))
    assert [stage.name for stage in first.stages] == [stage.name for stage in again.stages]
    assert all(stage.lines for stage in again.stages)


async def test_a_choice_of_a_lowering_is_reported_as_not_applied(engine: Bench, script: Path) -> None:
    await engine.open(script)
    recipe = replace(await by_inductor(engine, script), choices=(OpChoice("gelu.0", "eager"),))
    compiled = await engine.ask(Compile(engine.client.new_request_id(), recipe))
    (remark,) = compiled.remarks
    assert remark[:2] == (NOT_APPLIED, "gelu.0")
    assert "Inductor" in remark[2]


async def test_nodes_in_memory_are_compared_with_eager(engine: Bench, script: Path) -> None:
    await engine.open(script)
    recipe = await by_inductor(engine, script)
    compared = await engine.ask(CompareNodes(engine.client.new_request_id(), recipe))
    assert isinstance(compared, NodesCompared), compared
    seen = {node.node: node.value_state for node in compared.report.nodes}
    assert compared.report.ok
    assert (seen["up/addmm.0"], seen["gelu.0"]) == ("observed", "observed")


async def test_a_cancelled_compilation_can_be_repeated(engine: Bench, script: Path) -> None:
    await engine.open(script)
    recipe = await by_inductor(engine, script, "--cpp.max_horizontal_fusion_size=3")
    request = engine.client.new_request_id()
    engine.client.send(Compile(request, recipe))
    await engine.until(lambda frame: isinstance(frame, Progress) and frame.activity.startswith("Inductor"))
    engine.client.send(Cancel(request))
    ended = await engine.end_of(request)
    assert isinstance(ended, Failed)
    assert ended.cancelled
    compiled = await engine.ask(Compile(engine.client.new_request_id(), recipe))
    assert isinstance(compiled, Compiled), compiled


async def test_an_invalid_flag_is_named(engine: Bench, script: Path) -> None:
    await engine.open(script)
    recipe = await by_inductor(engine, script, "--cpp.cxx=/bin/sh")
    failed = await engine.ask(Compile(engine.client.new_request_id(), recipe))
    assert isinstance(failed, Failed)
    assert "cpp.cxx" in failed.diagnostic.what
    assert failed.diagnostic.where == "the recipe's backend_flags"


async def test_settings_are_listed_and_checked(engine: Bench) -> None:
    described = await engine.ask(DescribeBackend(engine.client.new_request_id(), INDUCTOR))
    assert isinstance(described, BackendDescribed), described
    assert "torch" in described.versions
    assert "epilogue_fusion" in {flag.name for flag in described.flags}
    checked = await engine.ask(CheckFlags(engine.client.new_request_id(), INDUCTOR, ("--epilogue_fusion=perhaps",)))
    assert isinstance(checked, FlagsChecked)
    assert "true or false" in checked.problem


async def test_what_applies_to_own_code_is_rejected(engine: Bench, script: Path) -> None:
    await engine.open(script)
    failed = await engine.ask(Profile(engine.client.new_request_id(), await by_inductor(engine, script)))
    assert isinstance(failed, Failed)
    assert "own code only, not to inductor's" in failed.diagnostic.what


async def test_a_missing_compiler_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    listener = WorkerListener(lambda _state: None, lambda _name, _stream, _data: None, lambda: False)
    compilers = BackendWorkers(lambda _frame: None, listener)
    with pytest.raises(JobFailed, match=r"no-such-compiler.*apt install g\+\+"):
        compilers.compiler_of(Recipe(backend=INDUCTOR))


async def test_ir_is_rejected(engine: Bench, tmp_path: Path) -> None:
    source = tmp_path / "add.mlir"
    source.write_text(
        "func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {\n"
        "  %0 = arith.addf %a, %b : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}\n"
    )
    await engine.open(source)
    engine.seen.clear()
    failed = await engine.ask(Compile(engine.client.new_request_id(), await by_inductor(engine, source)))
    assert isinstance(failed, Failed)
    assert "starts as IR" in failed.diagnostic.what
    assert not [frame for frame in engine.seen if isinstance(frame, StageDone) and frame.stage.phase == "asm"]

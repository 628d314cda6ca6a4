"""Programs by IREE: its phases as stages, its results beside eager's and this compiler's, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from buddy.compiler.protocol import (
    IREE_PHASES,
    BackendDescribed,
    Cancel,
    CheckFlags,
    Compile,
    Compiled,
    DescribeBackend,
    Failed,
    FlagsChecked,
    Open,
    Profile,
    Ran,
    Run,
    StageDone,
)
from buddy.compiler.protocol.recipe import IREE, NATIVE, Recipe
from tests.support.engine_bench import Bench

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("iree")]

# An embedding asks eager where an index is out of range, attention is fused by a graph pass, a weight is bfloat16, and
# there are results that are whole numbers, booleans, scalars, and without elements.
SCRIPT = """\
import torch
from torch.nn import functional


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(11, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.out = torch.nn.Linear(16, 24)
        self.scale = torch.nn.Parameter(torch.randn(24, dtype=torch.bfloat16))

    def forward(self, ids, mask):
        x = self.norm(self.words(ids))
        heads = x.view(2, 5, 2, 8).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads)
        y = functional.gelu(self.out(mixed.transpose(1, 2).reshape(2, 5, 16)))
        z = y.to(torch.bfloat16) * self.scale
        return y.masked_fill(mask[:, :, None], 0.0), z, y.argmax(-1), y > 0, y.mean(), ids[:0], ids + 1


torch.manual_seed(0)
model = Model().eval()
example_inputs = (torch.randint(11, (2, 5)), torch.rand(2, 5) > 0.5)
"""

EAGER = """\
import torch


def model(x):
    return torch.linalg.matrix_exp(x), x + 1


example_inputs = (torch.eye(3),)
"""


SCAN = """\
import torch


def model(x):
    return x.cumsum(1)


example_inputs = (torch.rand(4, 8),)
"""


LARGEST = """\
import torch


def model(x):
    return x.argmax(-1)


example_inputs = (torch.rand(4, 8),)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("iree") / "model.py"
    path.write_text(SCRIPT)
    return path


async def by_iree(engine: Bench, source: Path, *flags: str, threads: int = 1) -> Recipe:
    recipe = await engine.recipe(source)
    return replace(recipe, backend=IREE, backend_flags=flags, threads=threads)


async def test_its_phases_are_stages_and_its_results_stand_beside_eagers_and_ours(engine: Bench, script: Path) -> None:
    await engine.open(script)
    engine.seen.clear()
    request = engine.client.new_request_id()
    ran = await engine.ask(Run(request, await by_iree(engine, script), repeats=2))
    assert isinstance(ran, Ran), ran
    report = ran.report
    assert report.backend == IREE
    assert [output.verdict for output in report.outputs] == ["ok"] * 7
    assert report.compiled.runs == report.eager.runs == 2
    (native,) = report.sides
    assert (native.name, native.problem) == (NATIVE, "")
    assert [output.verdict for output in native.outputs] == ["ok"] * 7
    assert native.timing.runs == 2
    assert any("embedding" in note for note in report.notes)
    (compiled,) = (frame for frame in engine.seen if isinstance(frame, Compiled))
    phases = [stage.phase for stage in compiled.stages]
    assert tuple(phases[-len(IREE_PHASES) :]) == IREE_PHASES
    assert "toplevel" in phases
    assert not {"bufferized", "llvm", "asm"}.intersection(phases)


async def test_weights_are_parameters_and_lines_lead_to_nodes(engine: Bench, script: Path) -> None:
    await engine.open(script)
    compiled = await engine.ask(Compile(engine.client.new_request_id(), await by_iree(engine, script)))
    assert isinstance(compiled, Compiled), compiled
    stages = {stage.phase: stage for stage in compiled.stages}
    text = await engine.client.fetch_text(stages["input"].text)
    assert text.count("#flow.parameter.named") >= 5
    assert "loc(" not in text
    assert max(map(len, text.splitlines())) < 4000
    for name in ("input", "flow", "executable-targets", "vm"):
        direct, _, none = stages[name].origins
        assert direct > 0
        assert direct + none > 0
    flow = stages["flow"]
    assert flow.origins[0] > flow.origins[2]


async def test_a_stage_comes_before_the_next_phase_and_the_rest_can_be_cancelled(engine: Bench, script: Path) -> None:
    await engine.open(script)
    request = engine.client.new_request_id()
    flags = ("--iree-llvmcpu-loop-unrolling=true",)
    engine.client.send(Compile(request, await by_iree(engine, script, *flags)))
    await engine.until(lambda frame: isinstance(frame, StageDone) and frame.stage.phase == "input")
    engine.client.send(Cancel(request))
    ended = await engine.end_of(request)
    assert isinstance(ended, Failed)
    assert ended.cancelled
    again = await engine.ask(Compile(engine.client.new_request_id(), await engine.recipe(script)))
    assert isinstance(again, Compiled)


async def test_it_runs_on_other_targets_and_on_threads(engine: Bench, script: Path) -> None:
    await engine.open(script)
    recipe = await by_iree(engine, script, "--iree-hal-target-backends=vmvx", threads=2)
    ran = await engine.ask(Run(engine.client.new_request_id(), recipe, repeats=1))
    assert isinstance(ran, Ran), ran
    assert ran.report.ok
    assert any("vmvx" in note and "local-task" in note for note in ran.report.notes)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--iree-opt-level=O7", "O7"),
        ("--iree-opt-levl=O2", "--iree-opt-level"),
        ("--compile-to=vm", "is not allowed"),
        ("--iree-hal-target-backends=nothing", "not registered"),
    ],
)
async def test_a_flag_that_it_does_not_take_is_refused_with_the_reason(
    engine: Bench, script: Path, flag: str, words: str
) -> None:
    await engine.open(script)
    checked = await engine.ask(CheckFlags(engine.client.new_request_id(), IREE, (flag,)))
    assert isinstance(checked, FlagsChecked)
    assert words in checked.problem
    failed = await engine.ask(Compile(engine.client.new_request_id(), await by_iree(engine, script, flag)))
    assert isinstance(failed, Failed)
    assert words in str(failed.diagnostic)


async def test_elements_that_a_flag_has_changed_are_told(engine: Bench, tmp_path: Path) -> None:
    source = tmp_path / "largest.py"
    source.write_text(LARGEST)
    await engine.open(source)
    recipe = await by_iree(engine, source, "--iree-input-demote-i64-to-i32")
    failed = await engine.ask(Run(engine.client.new_request_id(), recipe, repeats=1))
    assert isinstance(failed, Failed)
    assert "a result is not int64 of 4" in failed.diagnostic.what


async def test_it_says_what_it_takes_and_finds(engine: Bench) -> None:
    assert (await engine.ask(CheckFlags(engine.client.new_request_id(), IREE, ("--iree-opt-level=O1",)))).problem == ""
    found = await engine.ask(DescribeBackend(engine.client.new_request_id(), IREE))
    assert isinstance(found, BackendDescribed)
    assert {"llvm-cpu", "vmvx"} <= set(found.targets)
    assert {"local-sync", "local-task"} <= {device.driver for device in found.devices}
    names = {flag.name for flag in found.flags}
    assert "iree-llvmcpu-target-cpu" in names
    assert "compile-to" not in names
    failed = await engine.ask(DescribeBackend(engine.client.new_request_id(), "nobody"))
    assert isinstance(failed, Failed)


async def test_a_node_in_eager_is_named(engine: Bench, tmp_path: Path) -> None:
    source = tmp_path / "eager.py"
    source.write_text(EAGER)
    await engine.open(source)
    failed = await engine.ask(Compile(engine.client.new_request_id(), await by_iree(engine, source)))
    assert isinstance(failed, Failed)
    assert "eager" in failed.diagnostic.what
    assert "matrix_exp" in failed.diagnostic.node


async def test_its_runtime_may_refuse_what_goes_well_from_the_torch_dialect(engine: Bench, tmp_path: Path) -> None:
    source = tmp_path / "scan.py"
    source.write_text(SCAN)
    await engine.open(source)
    recipe = await by_iree(engine, source)
    failed = await engine.ask(Run(engine.client.new_request_id(), recipe, repeats=1))
    if isinstance(failed, Failed):  # IREE 3.13 takes such loops and cannot run them
        assert "torch-mlir" in failed.diagnostic.todo
    else:
        assert failed.report.ok
    await engine.ask(Open(engine.client.new_request_id(), str(source), frontend="torch-mlir"))
    ran = await engine.ask(Run(engine.client.new_request_id(), replace(recipe, frontend="torch-mlir"), repeats=1))
    assert isinstance(ran, Ran), ran
    assert ran.report.ok


async def test_what_is_of_our_own_code_is_refused(engine: Bench, script: Path) -> None:
    await engine.open(script)
    failed = await engine.ask(Profile(engine.client.new_request_id(), await by_iree(engine, script)))
    assert isinstance(failed, Failed)
    assert "--backend native" in failed.diagnostic.todo

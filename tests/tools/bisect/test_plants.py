"""Faults that are planted by plug-ins are found by name, with the nodes that show them."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from buddy.compiler.driver import one_pass
from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.graph import plugins
from buddy.compiler.ops.utils import Registry
from buddy.compiler.protocol import BisectionResult, Criterion
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import LOWERING_STEP, PassStep
from buddy.compiler.protocol.worker_messages import FailureReply
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.tools.bisect import BisectionStopped, bisect
from buddy.compiler.tools.bisect.trials import RecipeTrials, make_subject
from buddy.compiler.tools.extract import Subgraph
from tests.programs import captured
from tests.support.tiers import sampled
from tests.tools.bisect.planted import PLANTS, Plant

pytestmark = pytest.mark.slow


class Layer(torch.nn.Module):
    """What a transformer's feed-forward block is made of, with one linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.norm = torch.nn.Linear(width, width), torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + torch.nn.functional.gelu(self.up(x)))


@pytest.fixture(scope="module")
def program() -> CapturedGraph:
    torch.manual_seed(0)
    found = captured(torch.nn.Sequential(Layer(16), Layer(16)).eval(), torch.randn(8, 16))
    # Each search is in a process forked from this one: what is imported here need not be there.
    compile_graph(found.graph, default_recipe())
    return found


@pytest.fixture
def master() -> Iterator[Channel]:
    """One who waits for the answer."""
    ends = os.pipe()
    yield Channel(*ends, FailureReply)
    for end in ends:
        os.close(end)


def found_by(master: Channel, program: CapturedGraph, plant: Plant, **options: float) -> BisectionResult:
    """What bisection says of a plant. In a process of its own, since what a plug-in registers stays."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # A crash that is planted is no news.
            faulthandler.disable()
            torch.set_num_threads(1)
            recipe = plant.planted(default_recipe())
            plugins.load_plugin_file(recipe.plugins[0])
            finding = bisect(master, program, recipe, Criterion(plant.kind, **options))  # type: ignore[arg-type]
            os.write(write_end, msgspec.msgpack.encode(finding))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        data = answer.read()
    os.waitpid(pid, 0)
    return msgspec.msgpack.decode(data, type=BisectionResult)


# One of a kind: a pass that makes wrong numbers, one that crashes, a lowering.
THOROUGHLY = ("flip_one_sign", "crash_on_sqrt", "wrong_epsilon")
# Seconds after which nothing is tried any more that would only reduce the failing subgraph further.
AT_ONCE = 0.01
EACH_PLANT = sampled(
    [plant for plant in PLANTS if plant.kind != "slower"],
    [plant for plant in PLANTS if plant.file in ("flip_one_sign", "approximate_gelu")],
    "a search of minutes, like those for a pass and a graph pass that always run",
)


@pytest.mark.parametrize("plant", EACH_PLANT, ids=lambda plant: plant.file)
def test_a_plant_is_found_by_name(master: Channel, program: CapturedGraph, plant: Plant) -> None:
    # What never ends uses all the time of each trial; the others do not come near it.
    each, thorough = 8.0 if plant.file == "never_end" else 60.0, plant.file in THOROUGHLY
    finding = found_by(master, program, plant, step_seconds=each, **({} if thorough else {"seconds": AT_ONCE}))
    assert plant.is_found_by(finding), finding.summary
    assert finding.confirmed
    if thorough:
        assert len(finding.nodes) <= 2
    if plant.file == "flip_one_sign":
        assert set(finding.in_eager) == {"0.norm/native_layer_norm.0", "1.norm/native_layer_norm.0"}
        assert finding.functions == ("forward",)
        assert finding.before != finding.after


def test_a_pass_that_makes_loops_scalar_is_found_by_name(master: Channel) -> None:
    plant = next(plant for plant in PLANTS if plant.kind == "slower")
    # Loops of scalars take five times as long for the one op that has all the time.
    mostly_gelu = captured(lambda x, y: (torch.nn.functional.gelu(x), y + 1), torch.randn(256, 512), torch.randn(4))
    finding = found_by(master, mostly_gelu, plant, slower=1.5)
    assert plant.is_found_by(finding), finding.summary
    assert finding.confirmed
    assert finding.nodes == ("gelu.0",)


@pytest.mark.full("one more search of a plant that always runs")
def test_without_knowing_whose_a_pass_is_it_is_found_all_the_same(
    master: Channel, program: CapturedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buddy.compiler.tools.bisect.faults.plugin_of_step", lambda step: "")
    plant = next(plant for plant in PLANTS if plant.file == "drop_addend")
    assert [culprit.step.name for culprit in found_by(master, program, plant, seconds=AT_ONCE).steps] == [plant.name]


def test_a_right_program_has_nothing_to_look_for(master: Channel, program: CapturedGraph) -> None:
    finding = bisect(master, program, default_recipe(), Criterion())
    assert finding.summary == "nothing to search for: it matches eager"
    assert finding.recipe == default_recipe()
    assert finding.trials == 1


def test_a_search_that_nobody_waits_for_stops(program: CapturedGraph) -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    with pytest.raises(BisectionStopped):
        bisect(Channel(read_end, -1, FailureReply), program, default_recipe(), Criterion())
    os.close(read_end)


def test_a_crash_in_a_lowering_is_not_blamed_on_the_last_graph_pass(master: Channel, program: CapturedGraph) -> None:
    recipe, registry = default_recipe(), Registry({"GeluOp": lambda _node, _symbols: os._exit(3)})
    assert any(step.level == "graph" and step.enabled for step in recipe.steps)
    assert program.eager is not None
    subject = make_subject(Subgraph(program.graph, program.tensors, program.numbers), program.eager)
    outcome = RecipeTrials(master, Criterion(), lambda: registry)(subject, recipe)
    assert (outcome.kind, outcome.step) == ("crashes", LOWERING_STEP)
    assert outcome.describe(recipe).startswith("the process crashes in lowering")


def test_the_reduced_module_shows_the_fault_by_one_command(tmp_path: Path) -> None:
    """A pass on a file: what it makes of it, or how it takes the process along."""
    file = tmp_path / "reduced.mlir"
    file.write_text("func.func @f(%a: f32) -> f32 {\n  %0 = math.sqrt %a : f32\n  return %0 : f32\n}\n")
    plant = next(plant for plant in PLANTS if plant.file == "crash_on_sqrt")
    words = [sys.executable, "-m", "buddy.compiler.driver.one_pass", str(file), "--pass"]
    crashed = subprocess.run([*words, plant.name, "--plugin", str(plant.path)], check=False)
    assert crashed.returncode < 0
    done = subprocess.run([*words, "convert-math-to-libm"], capture_output=True, text=True, check=False)
    assert "call @sqrtf" in done.stdout
    assert done.returncode == 0


def test_a_step_is_read_as_it_is_spelled() -> None:
    for step in default_recipe().steps:
        if step.level == "mlir":
            assert one_pass.parse_step(step.spelling(), step.anchor) == PassStep(
                step.name, "mlir", step.anchor, step.options
            )


def test_options_at_their_defaults_may_be_what_is_right(master: Channel, program: CapturedGraph) -> None:
    """Nothing here is a fault of the program's, so a recipe whose pass has a wrong option says which pass it is."""
    recipe = default_recipe()
    wanted = next(number for number, step in enumerate(recipe.steps) if step.name == "cse" and step.phase == "buffers")
    recipe = recipe.with_step(wanted, options=(("no-such-option", True),))
    finding = bisect(master, program, recipe, Criterion())
    assert [culprit.index for culprit in finding.steps] == [wanted]
    assert any("options at their defaults" in note for note in finding.notes)

"""Programs with counters in their code: each node in its regions, the same results, and what nodes have to do."""

from __future__ import annotations

import mmap
import os
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from buddy.compiler.engine.host_requests import locate_instructions
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.profile import HotSpot, ProfileReport
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.support.timing import TickRate, cycle_counter, cycle_counter_of, make_counter_reader
from buddy.compiler.tools.profile import sampling
from buddy.compiler.tools.profile.attribution import (
    COUNTING_PASS,
    Traffic,
    attribute_time,
    operations_of,
    with_counting,
    without_counting,
)
from buddy.compiler.tools.profile.measure import profile
from buddy.compiler.tools.profile.sampling import SamplingError
from tests.models import stack
from tests.programs import Line, captured, without

pytestmark = pytest.mark.skipif(cycle_counter() is None, reason="no known cycle counter on this machine")

REPEATS = 3


@pytest.fixture(scope="module")
def line() -> Line:
    return Line(*stack(3))


@pytest.fixture(scope="module")
def artifact(line: Line) -> Artifact:
    return line.compile(with_counting(default_recipe())).artifact


@pytest.fixture(scope="module")
def report(line: Line, artifact: Artifact) -> ProfileReport:
    return profile(line.program, line.compile().artifact, artifact, repeats=REPEATS, threads=1)


# ---- the recipe ------------------------------------------------------------------------------------------------------


def lacking_it(recipe: Recipe) -> Recipe:
    return msgspec.structs.replace(recipe, steps=tuple(step for step in recipe.steps if step.name != COUNTING_PASS))


def test_counting_is_a_step_that_is_off_and_is_put_in_where_a_recipe_lacks_it() -> None:
    recipe = default_recipe()
    (place,) = [number for number, step in enumerate(recipe.steps) if step.name == COUNTING_PASS]
    assert not recipe.steps[place].enabled
    assert recipe.steps[place - 1].name == "pass-sizes"
    assert with_counting(recipe) == recipe.with_step(place, enabled=True)
    assert without_counting(with_counting(recipe)) == recipe
    assert with_counting(lacking_it(recipe)) == with_counting(recipe)
    assert with_counting(with_counting(recipe)) == with_counting(recipe)


def test_counting_works_without_a_plan_of_memory_and_under_upstreams_passes(line: Line) -> None:
    recipe = lacking_it(without(default_recipe(preset="upstream"), "plan-memory", "pass-sizes"))
    found = line.compile(with_counting(recipe)).artifact
    assert {name for region in found.regions for name in region.nodes} >= {"embed/addmm.0", "head/addmm.0"}


# ---- regions ---------------------------------------------------------------------------------------------------------


def test_every_node_that_is_compiled_is_timed_once_or_names_who_is_timed_for_it(report: ProfileReport) -> None:
    timed = [node for node in report.nodes if not node.into]
    assert len({node.node for node in report.nodes}) == len(report.nodes)
    assert all(node.regions and node.seconds > 0 for node in timed)
    assert {node.into for node in report.nodes if node.into} <= {node.node for node in timed}
    products = {f"layers.{i}.{name}/addmm.0" for i in range(3) for name in ("up", "down")}
    assert products <= {node.node for node in timed}


def test_layers_that_share_a_function_have_times_of_their_own(artifact: Artifact) -> None:
    shared = [region for region in artifact.regions if region.function == "layers"]
    assert len({region.parent for region in shared}) == 3
    for region in shared:
        layers = {name.split("/")[0].split(".")[1] for name in region.nodes}
        assert len(layers) == 1
        assert set(region.nodes) <= set(artifact.regions[region.parent].nodes)


def test_what_is_counted_inside_a_call_is_no_more_than_the_call(report: ProfileReport) -> None:
    calls = {region.parent for region in report.regions} - {-1}
    assert calls
    for call in calls:
        inside = sum(region.seconds for region in report.regions if region.parent == call)
        assert inside <= report.regions[call].seconds


def test_counters_only_grow_during_runs_and_begin_anew_when_they_are_taken(line: Line, artifact: Artifact) -> None:
    program = LoadedProgram(artifact)
    program(line.program.tensors)
    once = program.take_ticks()
    assert len(once) == len(artifact.regions)
    assert min(once) > 0
    assert program.take_ticks() == [0] * len(once)
    for _ in range(20):
        program(line.program.tensors)
    assert all(many > 0 for many in program.take_ticks())
    assert LoadedProgram(line.compile().artifact).take_ticks() == []


def test_all_times_add_up_to_the_entrys_own(report: ProfileReport) -> None:
    entry = sum(region.seconds for region in report.regions if region.parent < 0)
    assert report.inside + report.outside == pytest.approx(entry)
    assert sum(node.seconds for node in report.nodes) == pytest.approx(report.inside)
    assert entry <= report.whole


def test_results_are_the_same_bits_with_counters_and_without(report: ProfileReport) -> None:
    assert report.same
    assert report.plain.runs == report.counted.runs == REPEATS


def test_threads_and_ops_in_eager_are_timed_where_they_are_waited_for() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(x @ y) + x, -1)

    found = Line(program, torch.randn(64, 64), torch.randn(64, 64))
    relu = next(op.stable for op in found.program.graph.body if op.target.startswith("relu"))
    recipe = msgspec.structs.replace(default_recipe(), threads=2).with_choice(relu, EAGER)
    report = profile(
        found.program,
        found.compile(recipe).artifact,
        found.compile(with_counting(recipe)).artifact,
        repeats=2,
        threads=2,
    )
    timed = {node.node: node for node in report.nodes}
    assert timed[relu].seconds > 0
    assert report.same
    assert not any(region.function.endswith("_task") for region in report.regions)


def test_a_group_is_told_at_the_node_that_works_most(line: Line, artifact: Artifact) -> None:
    seconds = [1.0 if region.parent >= 0 or region.label != "@layers" else 4.0 for region in artifact.regions]
    told = attribute_time(line.program.graph, artifact.regions, seconds, {})
    times = {node.node: node for node in told.nodes}
    assert times["layers.1.up/addmm.0"].fused == ("layers.1/gelu.0",)
    assert times["layers.1/gelu.0"].into == "layers.1.up/addmm.0"
    assert times["layers.1.up/addmm.0"].seconds == 1.0
    assert told.outside == 3.0  # of each call's four, three are in its regions
    assert told.inside == sum(1.0 for region in artifact.regions if region.label != "@layers")


# ---- the counter -----------------------------------------------------------------------------------------------------


def test_the_counter_runs_and_its_pace_is_that_of_a_processor() -> None:
    found = cycle_counter()
    assert found is not None
    read = make_counter_reader(found)
    first = read()
    assert read() > first
    # Virtual counters of AArch64 begin at a megahertz, no processor of today is beyond ten gigahertz.
    assert 1e6 <= TickRate(read).per_second() <= 1e10


def test_a_counter_that_changes_its_pace_is_told_of() -> None:
    constant = cycle_counter_of("x86_64", {"constant_tsc", "nonstop_tsc", "avx2"})
    assert constant is not None
    assert constant.constant_rate
    uneven = cycle_counter_of("x86_64", {"constant_tsc"})
    assert uneven is not None
    assert not uneven.constant_rate
    assert cycle_counter_of("riscv64", set()) is None


# ---- work ------------------------------------------------------------------------------------------------------------


def operations(function: Callable[..., Any], *inputs: torch.Tensor) -> dict[str, float | None]:
    """Of each class of ops, the sum over its nodes."""
    graph = captured(function, *inputs).graph
    found: dict[str, float | None] = {}
    for op in graph.operations:
        count, name = operations_of(op, {}), type(op).__name__
        found[name] = None if count is None else count + (found.get(name) or 0)
    return found


def test_products_convolutions_and_attention_count_their_multiply_adds() -> None:
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    assert operations(lambda x, y: x @ y, x, y) == {"MatmulOp": 2 * 3 * 4 * 5}
    batch = operations(torch.bmm, torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    assert batch["BatchMatmulOp"] == 2 * 2 * 3 * 4 * 5
    linear = operations(torch.nn.functional.linear, x, torch.randn(5, 4), torch.randn(5))
    assert linear["AddMMOp"] == 2 * 3 * 4 * 5 + 3 * 5
    image, kernel = torch.randn(1, 4, 6, 6), torch.randn(8, 2, 3, 3)
    found = operations(lambda i, k: torch.conv2d(i, k, groups=2), image, kernel)
    assert found["Conv2dOp"] == 2 * (8 * 4 * 4) * (2 * 3 * 3)
    query, key = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 7, 4)
    (attention,) = (
        value
        for name, value in operations(torch.nn.functional.scaled_dot_product_attention, query, key, key).items()
        if "Attention" in name
    )
    assert attention == 2 * (2 * 6 * 7) * (4 + 4) + 5 * (2 * 6 * 7)


def test_other_ops_count_by_element_moves_do_not_and_what_is_unknown_is_said_to_be() -> None:
    x = torch.randn(6, 8)
    assert operations(torch.exp, x) == {"ExpOp": 48}
    assert operations(lambda x: x.sum(1), x) == {"SumDimOp": 48}
    assert operations(lambda x: torch.softmax(x, -1), x)["SoftmaxOp"] == 5 * 48
    assert operations(lambda x: torch.cat([x, x.t().reshape(6, 8)]), x)["CatOp"] == 0
    assert operations(torch.sort, x)["SortOp"] is None


def test_what_fused_nodes_hand_to_each_other_is_not_moved() -> None:
    graph = captured(lambda x, y: torch.relu(x @ y), torch.randn(3, 4), torch.randn(4, 5)).graph
    product, relu = (op.stable for op in graph.operations)
    traffic = Traffic(graph, {})
    assert traffic.minimum_bytes([product]) == 4 * (3 * 4 + 4 * 5 + 3 * 5)
    assert traffic.minimum_bytes([product, relu]) == 4 * (3 * 4 + 4 * 5 + 3 * 5)
    assert traffic.minimum_bytes([relu]) == 4 * (2 * 3 * 5)


def test_of_an_expanded_view_only_what_is_there_is_read() -> None:
    graph = captured(lambda x: x.expand(100, 8) + 1, torch.randn(1, 8)).graph
    total = next(op for op in graph.operations if op.target.startswith("add"))
    assert Traffic(graph, {}).minimum_bytes([total.stable]) == 4 * (8 + 800)


# ---- samples ---------------------------------------------------------------------------------------------------------


def test_samples_are_of_instructions_that_the_assembly_has(line: Line, report: ProfileReport) -> None:
    taken = report.sampling
    if taken.problem:
        pytest.skip(taken.problem)
    assert taken.samples >= taken.inside > 0
    assert taken.inside + sum(count for _, count in taken.elsewhere) == taken.samples
    line.compile()
    (text,) = (text for stage, text in line.stages if stage.language == "asm")
    found = locate_instructions(taken, IndexedText(text.content, array("I", text.line_sets), text.sets))
    assert all(spot.text and spot.line >= 0 for spot in found.spots)
    assert all(spot.nodes for spot in found.spots)


def test_where_nothing_can_be_sampled_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: int, thread: int, hertz: int) -> int:
        raise SamplingError("not here")

    monkeypatch.setattr(sampling, "_open_event", refused)
    assert sampling.sample_instructions(lambda: None, [], 1).problem == "not here"


@pytest.fixture
def tiny_buffer(monkeypatch: pytest.MonkeyPatch) -> int:
    """Buffers of one page; returns the number of samples of 16 bytes that fit. Skips where nothing can be sampled."""
    monkeypatch.setattr(sampling, "_BUFFER_PAGES", 1)
    try:
        sampling.Sampler().close()
    except SamplingError as error:
        pytest.skip(str(error))
    return mmap.PAGESIZE // 16


def work_until(is_enough: Callable[[], bool]) -> None:
    """Uses the CPU until `is_enough()`, for at most 30 s of this thread's CPU time."""
    deadline = time.thread_time() + 30
    while not is_enough() and time.thread_time() < deadline:
        sum(range(1000))


def test_the_buffer_of_samples_is_emptied_during_a_long_call(tiny_buffer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_DRAIN_SECONDS", 0.01)
    with closing(sampling.Sampler()) as sampler, sampler.running():
        work_until(lambda: sampler.addresses.total() > 2 * tiny_buffer)
    assert sampler.addresses.total() > 2 * tiny_buffer


def test_samples_that_find_a_full_buffer_count_as_lost(tiny_buffer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel writes no record of them if the buffer stays full to the end."""
    monkeypatch.setattr(sampling, "_DRAIN_SECONDS", 600.0)
    with closing(sampling.Sampler()) as sampler:
        states = [os.read(fd, 16) for fd, _ in sampler._rings]
        if len(states[0]) < 16:
            pytest.skip("the kernel does not count lost samples before Linux 6.0")
        with sampler.running():
            work_until(lambda: sum(sampling._WORD.unpack_from(os.read(fd, 16), 8)[0] for fd, _ in sampler._rings) > 10)
    assert sampler.lost > 10
    assert 0 < sampler.addresses.total() <= tiny_buffer * len(states)


def test_a_thread_that_ends_before_its_event_is_opened_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        sampling.Sampler().close()
    except SamplingError as error:
        pytest.skip(str(error))
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [str(thread.native_id), *listed(path)])
    with closing(sampling.Sampler()) as sampler:
        assert len(sampler._rings) >= 1


def test_addresses_belong_to_the_function_that_they_are_in() -> None:
    sampler = SimpleNamespace(addresses=Counter({104: 3, 110: 1, 4: 2}), lost=0, hertz=100)
    found = sampling._summarize(sampler, [sampling.CodeRange("g", 110, 5), sampling.CodeRange("f", 100, 8)])  # type: ignore[arg-type]
    assert found.spots == (HotSpot("f", 4, 3), HotSpot("g", 0, 1))
    assert (found.samples, found.inside, found.elsewhere) == (6, 4, (("", 2),))


def test_machine_code_is_timed_by_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUDDY_CACHE", str(tmp_path))
    made, known = ([stage.functions for stage in Line(*stack(1)).compile().stages if stage.functions] for _ in "12")
    (functions,) = made
    assert "forward" in {name for name, _ in functions}
    assert all(milliseconds > 0 for _, milliseconds in functions)
    assert not known

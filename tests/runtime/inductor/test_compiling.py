"""A graph compiled by Inductor in this process: its stages, the nodes of their lines, and the fusion decisions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import dropwhile
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn

from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol.catalogue import INDUCTOR_PHASES
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import symbol_values
from buddy.compiler.runtime.inductor import process, program
from buddy.compiler.runtime.inductor.compiling import (
    InductorArtifact,
    InductorStage,
    compile_program,
    split_code,
    text_of,
)
from buddy.compiler.runtime.inductor.process import LoadedArtifact
from buddy.compiler.runtime.inductor.program import InductorError, fx_program
from buddy.compiler.runtime.inductor.provenance import Line
from buddy.compiler.support.target import missing_cxx_message


class Model(nn.Module):
    """Two loops that can be fused, between two matrix products; its last result is a view of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(32, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(self.down(nn.functional.gelu(self.up(x))))
        return y.softmax(-1), y, x.t()


class Compiled(NamedTuple):
    captured: CapturedGraph
    stages: dict[str, InductorStage]
    artifact: InductorArtifact
    activities: list[str]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    if problem := missing_cxx_message():
        pytest.skip(problem)
    (captured,) = capture(Model().eval(), (torch.randn(4, 16),))
    program = fx_program(captured.graph, symbol_values(captured.graph, captured.tensors, captured.numbers))
    stages: list[InductorStage] = []
    activities: list[str] = []
    artifact = compile_program(
        program, captured.tensors, (), 1, stages.append, lambda what, _done: activities.append(what)
    )  # fmt: skip
    return Compiled(captured, {stage.name: stage for stage in stages}, artifact, activities)


def counted(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.text.strip()]


def call_body(compiled: Compiled) -> list[Line]:
    """The statements of the wrapper's `call`, without comments and the line that clears the list of arguments."""
    body = list(dropwhile(lambda line: "def call(" not in line.text, compiled.stages["wrapper"].lines))[1:]
    end = next(number for number, line in enumerate(body) if line.text.strip().startswith("return "))
    skipped = ("#", "args.clear()")
    return [line for line in counted(body[: end + 1]) if not line.text.strip().startswith(skipped)]


def names_at(lines: Sequence[Line], pattern: str) -> set[str]:
    return {name for line in lines if re.search(pattern, line.text) for name in line.names}


@pytest.mark.slow
def test_each_step_of_inductor_is_a_stage_in_order(compiled: Compiled) -> None:
    assert [(stage.name, stage.language) for stage in compiled.stages.values()] == list(INDUCTOR_PHASES)
    assert "aten.gelu" in "".join(line.text for line in compiled.stages["pre-grad"].lines)
    assert "aten.erf" in "".join(line.text for line in compiled.stages["post-grad"].lines)
    assert compiled.stages["fused"].items < compiled.stages["scheduler"].items
    assert any("kernel 2/2" in what for what in compiled.activities)


@pytest.mark.slow
def test_generated_lines_lead_to_the_nodes_that_they_compute(compiled: Compiled) -> None:
    kernels = counted(compiled.stages["kernels"].lines)
    assert all(line.names for line in kernels)
    assert sum(not line.is_derived for line in kernels) > len(kernels) / 4
    assert names_at(kernels, r"\.erf\(\)") == {"gelu.0"}
    assert names_at(kernels, r"\.exp\(\)") == {"_softmax.0"}
    assert names_at(kernels, r"std::sqrt") == {"norm/native_layer_norm.0", "norm/getitem.0"}
    body = call_body(compiled)
    assert all(line.names for line in body)
    assert names_at(body, r"^\s+cpp_fused_gelu") == {"gelu.0"}
    assert names_at(body, r"^\s+extern_kernels") == {"up/addmm.0", "down/addmm.0"}


@pytest.mark.slow
def test_every_node_that_computes_has_generated_lines(compiled: Compiled) -> None:
    lines = [*compiled.stages["kernels"].lines, *compiled.stages["wrapper"].lines]
    found = {name for line in lines for name in line.names}
    assert {op.stable for op in compiled.captured.graph.operations} <= found


@pytest.mark.slow
def test_instructions_lead_to_the_lines_whose_calls_were_inlined(compiled: Compiled) -> None:
    lines = [line for line in compiled.stages["asm"].lines if line.machine_code]
    assert all(line.names for line in lines)
    assert sum(not line.is_derived for line in lines) > len(lines) / 4
    division = names_at([line for line in lines if not line.is_derived], "vdivps")
    assert "_softmax.0" in division
    assert "up/addmm.0" not in division


@pytest.mark.slow
def test_the_marks_of_lines_do_not_change_the_code(compiled: Compiled) -> None:
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering

    captured, codes = compiled.captured, []
    converted = fx_program(captured.graph, {})
    with (
        torch.no_grad(),
        config.patch(program.settings_of((), 1)),
        mock.patch.object(GraphLowering, "save_output_code", codes.append),
    ):
        compile_fx(converted.module, list(captured.tensors))
    counter = re.compile(r"^# AOT ID.*$", re.M)
    assert [counter.sub("", code) for code in codes] == [counter.sub("", compiled.artifact.source)]
    assert "//@" not in compiled.artifact.source


@pytest.mark.slow
def test_each_rejected_pair_has_a_reason(compiled: Compiled) -> None:
    lines = compiled.stages["fusions"].lines
    heading, _, titles, *rest = [line.text for line in lines]
    rows, legend = rest[: rest.index("")], rest[rest.index("") + 1 :]
    assert titles.split() == ["result", "first", "second", "reason"]
    rejected = [row for row in rows if row.startswith("not fused")]
    assert heading == f"{len(rows)} pairs considered: {len(rows) - len(rejected)} fused, {len(rejected)} not fused"
    assert 0 < len(rejected) < len(rows)
    assert all(len(re.split(r" {2,}", row)) == 4 for row in rejected)
    assert all(line.names for line in counted(lines[3:]))
    assert any(re.fullmatch(r"op\d+ +norm/native_layer_norm\.0, norm/getitem\.0", line) for line in legend)


@pytest.mark.slow
def test_the_artifact_computes_what_eager_computes(compiled: Compiled) -> None:
    captured = compiled.captured
    results = LoadedArtifact(compiled.artifact, captured.tensors, 1).call()
    assert captured.eager is not None
    expected = captured.eager(captured.tensors)
    assert len(results) == len(expected) == 3
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)
    storages = {tensor.data_ptr() for tensor in captured.tensors}
    assert not storages & {result.data_ptr() for result in results}


@pytest.mark.slow
def test_a_wrong_kernel_is_the_first_node_out_of_tolerance(compiled: Compiled) -> None:
    wrong = compiled.artifact.source.replace("(0.7071067811865476)", "(0.75)")
    assert wrong != compiled.artifact.source
    captured = compiled.captured
    held = list(compiled.artifact.values.values())
    assert {"up/addmm.0", "gelu.0", "down/addmm.0"} <= set(held)
    comparison = process._Comparison(captured, {}, "eager", held)
    with torch.no_grad():
        comparison.run(InductorArtifact(wrong, compiled.artifact.constants, {}, compiled.artifact.values), ())
    report = comparison.report(0, False, 0.0, 0.0)
    assert report.first == "gelu.0"
    assert report.by_node()["up/addmm.0"].ok


@pytest.mark.slow
def test_every_node_is_compared_if_all_are_results(compiled: Compiled) -> None:
    report = process.compare_nodes(compiled.captured, Recipe(backend="inductor"), every=True)
    assert report.ok
    assert {node.node for node in report.nodes if node.value_state == "fused"} == {"norm/native_layer_norm.0"}


def test_code_is_split_into_wrapper_and_kernels() -> None:
    source = "a = 1\nk_0 = async_compile.cpp_pybinding(['float*'], r'''\nint x;\nint y;\n''')\n\n\n\nb = 2\n"
    wrapper, kernels = split_code(source)
    assert kernels == {"k_0": "\nint x;\nint y;\n"}
    assert wrapper == "a = 1\nk_0 = async_compile.cpp_pybinding(['float*'], r…)  # see kernels\n\nb = 2\n"


def test_lines_around_a_node_are_derived_ones_of_the_text() -> None:
    text = text_of([Line("a", ("x",)), Line("{", ("x",), is_derived=True), Line("")])
    assert text.content == "a\n{\n\n"
    assert text.line_sets == (1, 2, 0)
    assert text.sets == ((), ("x",), ("x",))
    assert text.derived == {2: ("x",)}
    assert tuple(text.origins) == (1, 1, 0)


def test_an_op_that_torch_does_not_have_is_named() -> None:
    (captured,) = capture(lambda x: x + 1, (torch.ones(2),))
    captured.graph.operations[0].target = "unknown.Tensor"
    with pytest.raises(InductorError, match="torch has no such op") as raised:
        fx_program(captured.graph, {})
    assert raised.value.node == "add.0"


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--epilogue_fusion=false", ""),
        ("--cpp.simdlen=8", "is not an Inductor setting"),
        ("--cpp.min-chunk-size=64", ""),
        ("--cpp.min_chunk_size=some", "is a whole number"),
        ("--max_autotune", ""),
        ("--max_autotune=perhaps", "is true or false"),
        ("--cpp.cxx=/bin/sh", "is not an Inductor setting"),
        ("--fx_graph_cache=true", "is not allowed"),
        ("--trace.enabled=true", "is not allowed"),
        ("epilogue_fusion=false", "is not a flag"),
        ("--nothing=1", "is not an Inductor setting"),
    ],
)
def test_flags_are_settings_that_name_no_file_or_program(flag: str, problem: str) -> None:
    found = program.flag_problem((flag,))
    assert problem in found if problem else not found


def test_the_list_of_flags_has_the_settings_that_flags_may_set() -> None:
    listed = {flag.name: flag for flag in program.flags()}
    assert listed["epilogue_fusion"].values == ("true", "false")
    assert "trace.enabled" not in listed
    assert all(not program.flag_problem((f"--{name}=1",)) for name in listed)

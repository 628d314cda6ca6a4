"""The same programs by every frontend give eager's numbers; torch-mlir's passes are stages that lead to nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from buddy.compiler.driver.compilation import CompilationError, Compiler
from buddy.compiler.frontend.torch_dialect import import_captured
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import TORCH_MLIR, prefix_keys
from buddy.compiler.runtime.executable import LoadedProgram
from tests.programs import assert_same, captured
from tests.support.tiers import sampled

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
frontends: Any = import_module("frontends")

NEEDS_ONNX = ("ONNX",)
# Sums of up to 1024 terms in f32 in another order than eager's, through two layers: measured 3e-7 to 5e-7.
TOLERANCE = 5e-6


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("frontend", frontends.FRONTENDS)
@pytest.mark.parametrize(
    "name", sampled(frontends.PROGRAMS, ["mlp"], "larger programs by the frontends that the MLP takes")
)
def test_a_program_by_a_frontend_gives_eagers_numbers(name: str, frontend: str, tmp_path: Path) -> None:
    if frontend in NEEDS_ONNX:
        pytest.importorskip("onnx")
    assert frontends.error(list(frontends.compared(frontends.model_of(name), frontend, tmp_path))) < TOLERANCE


@pytest.mark.slow
@pytest.mark.full("the whole ResNet-18, which its tiny one stands for")
@pytest.mark.parametrize("frontend", ["torch-mlir, linalg", "torch-mlir, TOSA", "torch-mlir, StableHLO"])
def test_the_whole_resnet_by_torch_mlir_gives_eagers_numbers(frontend: str, tmp_path: Path) -> None:
    # 18 layers of sums of up to 4608 terms: ten times what the tiny one is allowed.
    assert (
        frontends.error(list(frontends.compared(frontends.model_of("resnet18", whole=True), frontend, tmp_path)))
        < 10 * TOLERANCE
    )


def _program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(torch.nn.functional.gelu(x @ weight), (8,))


@pytest.fixture(scope="module")
def imported() -> Any:
    """A graph with what torch-mlir makes of it."""
    torch.manual_seed(0)
    found = captured(_program, torch.randn(4, 8), torch.randn(8, 8))
    found.graph.imported_ir = import_captured(found)
    return found


@pytest.mark.parametrize(
    ("name", "phases", "dialect"),
    [
        ("torch-mlir", ("imported", "torch-backend", "linalg-on-tensors"), "linalg."),
        ("torch-mlir-tosa", ("imported", "torch-backend", "tosa"), "tosa."),
        ("torch-mlir-stablehlo", ("imported", "torch-backend", "stablehlo", "linalg-on-tensors"), "stablehlo."),
    ],
)
def test_passes_are_stages_in_phases_and_lines_lead_to_nodes(
    imported: Any, name: str, phases: tuple[str, ...], dialect: str
) -> None:
    texts: dict[int, Any] = {}
    stages = Compiler(imported.graph).compile(presets()[name].recipe, lambda s, t: texts.update({s.index: t})).stages
    at = [stage.phase for stage in stages]
    assert [phase for phase in dict.fromkeys(at) if phase in phases] == list(phases)
    assert [stage.name for stage in stages if stage.phase == "imported"] == ["import"]
    first = next(stage for stage in stages if stage.name == "import")
    assert "torch.aten." in texts[first.index].content
    assert any(dialect in texts[stage.index].content for stage in stages if stage.phase in phases)
    # Every op of the imported module is one of a node's own, and what is left in LLVM leads to nodes still.
    nodes = {op.stable for op in imported.graph.body}
    named = {node for found in texts[first.index].sets for node in found}
    assert named <= nodes
    assert {op.stable for op in imported.graph.operations} <= named
    last = [stage for stage in stages if stage.phase == "llvm"][-1]
    assert last.origins.unmapped == 0


def _attention(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return [*attend(q, k, k, is_causal=True), *attend(q, k[:, :1], k[:, :1], attn_mask=mask, scale=0.5)]


def test_what_attention_keeps_for_its_gradient_is_eagers() -> None:
    """Of PyTorch's own rule it is the weights, which whoever calls has no room for."""
    inputs = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.rand(5, 5)
    found = captured(_attention, *inputs)
    found.graph.imported_ir = import_captured(found)
    artifact = Compiler(found.graph).compile(presets()["torch-mlir"].recipe).artifact
    assert_same(LoadedProgram(artifact)(found.tensors), _attention(*inputs))


def _dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x.exp(), 0.4) + torch.rand_like(x)


def test_random_numbers_by_torch_mlir_are_those_of_the_seed() -> None:
    found = captured(_dropped, torch.ones(16, 16))
    found.graph.imported_ir = import_captured(found)
    artifact = Compiler(found.graph).compile(presets()["torch-mlir"].recipe).artifact
    assert found.eager is not None
    assert_same(LoadedProgram(artifact)(found.tensors), found.eager(found.tensors))


def test_a_pass_of_torch_mlirs_that_is_off_leaves_its_ops(imported: Any) -> None:
    recipe = presets()["torch-mlir"].recipe
    number = next(i for i, step in enumerate(recipe.steps) if step.name == "convert-torch-to-linalg")
    with pytest.raises(CompilationError) as caught:
        Compiler(imported.graph).compile(recipe.toggled(number))
    assert "failed to legalize operation 'torch." in str(caught.value)
    assert caught.value.diagnostic.node in {op.stable for op in imported.graph.operations}


def test_a_graph_that_was_not_imported_says_how_it_would_be() -> None:
    found = captured(_program, torch.randn(4, 8), torch.randn(8, 8))
    with pytest.raises(CompilationError, match=r"has not been imported by torch-mlir .* --frontend torch-mlir"):
        Compiler(found.graph).compile(presets()["torch-mlir"].recipe)


def test_an_import_beside_the_nodes_leaves_their_own_lowering_as_it_was(imported: Any) -> None:
    plain = captured(_program, *imported.tensors[:2])
    recipe = presets()["default"].recipe
    ours, beside = (Compiler(found.graph).compile(recipe).stages for found in (plain, imported))
    assert [stage.name for stage in ours] == [stage.name for stage in beside]
    assert not any(stage.name == "import" for stage in beside)


def test_frontends_have_keys_of_their_own() -> None:
    recipe = presets()["torch-mlir"].recipe
    assert recipe.frontend == TORCH_MLIR
    other = presets()["torch-mlir-tosa"].recipe
    assert prefix_keys(recipe, "g").top != prefix_keys(other, "g").top


def test_same_graph_same_text() -> None:
    inputs = torch.ones(4, 8), torch.ones(8, 8)
    assert import_captured(captured(_program, *inputs)) == import_captured(captured(_program, *inputs))


def test_what_torch_mlir_does_not_import_is_refused_with_a_way_out() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    found = captured(program, torch.ones(0, 3))
    with pytest.raises(Exception, match=r"no elements.*frontend dynamo"):
        import_captured(found)

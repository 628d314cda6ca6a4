"""Weights under `torch.compile(f, backend="buddy")`: what the module holds at the call, however it got there."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.frontend import DynamoCompiler, compiled_graph, refreeze, restore_weights
from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import from_toml, to_toml
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import run_and_compare
from buddy.compiler.runtime.packed_weights import CAN_RELEASE
from tests.conftest import RunPython

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("error:a graph of")]

TIMES = 4  # each is tried: that new memory lies where old memory lay is likely, not certain


class Net(nn.Module):
    """What kernels would like to have packed: a product by a transpose and a plain one, a window, Winograd's or not."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.narrow = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 8, 1, stride=2)
        self.line = nn.Linear(128, 64)
        self.table = nn.Parameter(torch.randn(64, 96) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.narrow(torch.relu(self.window(x))).flatten(2).transpose(1, 2).reshape(-1, 128)
        return self.line(seen) @ self.table


def image() -> torch.Tensor:
    return torch.randn(8, 16, 16, 16)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="buddy", options={"fallback": "error", **options})


def new(p: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(p) / p[0].numel() ** 0.5


# ---- what changes weights --------------------------------------------------------------------------------------------


def assigned_twice(net: Net) -> None:
    for p in net.parameters():
        p.data = new(p)
        p.data = new(p)


def new_parameters(net: Net) -> None:
    for module in net.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            made = new(p).detach()
            p.data = torch.empty(0)
            setattr(module, name, None)
            del p
            setattr(module, name, nn.Parameter(made.clone()))


def copied(net: Net) -> None:
    for p in net.parameters():
        p.data.copy_(new(p))


def averaged(net: Net) -> None:
    other = copy.deepcopy(net)
    copied(other)
    for p, theirs in zip(net.parameters(), other.parameters(), strict=True):
        p.data.mul_(0.25).add_(theirs.data, alpha=0.75)


def averaged_without_data(net: Net) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p.lerp_(new(p), 0.75)


def averaged_by_torch(net: Net) -> None:
    theirs = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    theirs.update_parameters(net)
    copied(net)
    theirs.update_parameters(net)
    for p, q in zip(net.parameters(), theirs.module.parameters(), strict=True):
        p.data.copy_(q.data)


def initialised_as_by_hugging_face(net: Net) -> None:
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.weight.data.normal_(mean=0.0, std=0.1)
            module.bias.data.zero_()


def written_by_numpy(net: Net) -> None:
    for p in net.parameters():
        p.detach().numpy()[:] = new(p).detach().numpy()


def written_through_dlpack(net: Net) -> None:
    for p in net.parameters():
        torch.from_dlpack(np.from_dlpack(p.detach())).copy_(new(p))


def state_assigned(net: Net) -> None:
    net.load_state_dict({name: new(value) for name, value in net.state_dict().items()}, assign=True)


def state_loaded(net: Net) -> None:
    net.load_state_dict({name: new(value) for name, value in net.state_dict().items()})


def swapped(net: Net) -> None:
    for p in net.parameters():
        torch.utils.swap_tensors(p, nn.Parameter(new(p).detach()))


def merged(net: Net) -> None:
    for p in (net.line.weight, net.table):
        p.data += 0.1 * torch.randn(p.shape[0], 4) @ torch.randn(4, p.shape[1])


def merged_and_unmerged(net: Net) -> None:
    delta = torch.randn(64, 4) @ torch.randn(4, 128)
    net.line.weight.data += delta
    compiled(net)(image())
    net.line.weight.data -= delta
    net.table.data = net.table.data * 2


def fused(kind: Callable[..., torch.optim.Optimizer]) -> Callable[[Net], None]:
    def step(net: Net) -> None:
        optimizer = kind(net.parameters(), lr=0.1, fused=True)
        with torch.enable_grad():
            net(image()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


_FUSED = (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
CHANGES: dict[str, Callable[[Net], None]] = {
    change.__name__: change
    for change in (
        assigned_twice, new_parameters, copied, averaged, averaged_without_data, averaged_by_torch,
        initialised_as_by_hugging_face, written_by_numpy, written_through_dlpack, state_assigned, state_loaded, swapped,
        merged, merged_and_unmerged,
    )
} | {f"fused {kind.__name__}": fused(kind) for kind in _FUSED}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_weights_are_what_the_module_holds_at_the_call(change: Callable[[Net], None]) -> None:
    net = Net()
    run, x = compiled(net), image()
    with torch.no_grad():
        torch.testing.assert_close(run(x), net(x))
        for _ in range(TIMES):
            before = net(x)
            change(net)
            change(net)  # the second change may get the memory that the first one released
            expected = net(x)
            assert not torch.allclose(before, expected, rtol=1e-2), "nothing has changed"
            torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-4)


def test_weights_that_are_parts_of_a_vector() -> None:
    net, x = Net(), image()
    vector = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    nn.utils.vector_to_parameters(vector, net.parameters())
    run = compiled(net)
    with torch.no_grad():
        for _ in range(TIMES):
            torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-4)
            vector.mul_(-0.5)


def test_weights_made_and_written_to_in_inference_mode() -> None:
    with torch.inference_mode():
        net, x = Net(), image()
        run = compiled(net)
        for _ in range(TIMES):
            torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-4)
            copied(net)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_of_other_element_types(dtype: torch.dtype) -> None:
    layer, x = nn.Linear(64, 48).to(dtype), torch.randn(32, 64, dtype=dtype)
    run = compiled(layer)
    with torch.no_grad():
        for _ in range(TIMES):
            torch.testing.assert_close(run(x), layer(x), rtol=2e-2, atol=2e-2)
            layer.weight.data.mul_(-2)


def test_weights_that_autocast_converts() -> None:
    layer, x = nn.Linear(64, 48), torch.randn(32, 64)
    run = compiled(layer)
    for _ in range(TIMES):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(run(x), layer(x), rtol=2e-2, atol=2e-2)
        layer.weight.data.mul_(-2)


def test_weights_of_functional_calls() -> None:
    net, x = Net(), image()
    run = compiled(lambda weights, x: torch.func.functional_call(net, weights, (x,)))
    with torch.no_grad():
        for _ in range(TIMES):
            weights = {name: new(p) for name, p in net.named_parameters()}
            torch.testing.assert_close(run(weights, x), torch.func.functional_call(net, weights, (x,)))
            for value in weights.values():
                value.data.mul_(-1)
            torch.testing.assert_close(run(weights, x), torch.func.functional_call(net, weights, (x,)))


def test_several_graphs_read_the_same_weights() -> None:
    net, x = Net(), image()

    def twice(x: torch.Tensor) -> torch.Tensor:
        y = net(x)
        torch._dynamo.graph_break()
        return y + net(-x)

    run = compiled(twice)
    with torch.no_grad():
        for _ in range(TIMES):
            torch.testing.assert_close(run(x), twice(x), rtol=1e-4, atol=1e-4)
            copied(net)


def test_modules_of_one_class_share_code_and_not_weights() -> None:
    layers, x = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)]), torch.randn(32, 64)
    for layer in layers:
        layer.compile(backend="buddy", options={"fallback": "error", "freeze": True})
    with torch.no_grad():
        for _ in range(2):
            for layer in layers:
                torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_validation_after_an_epoch_of_a_compiled_model_with_a_fused_optimizer() -> None:
    net, x = Net(), image()
    run, optimizer = compiled(net), torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    for _ in range(2):
        run(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-4)


# ---- other processes -------------------------------------------------------------------------------------------------

WRITE = """
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    memory[:] = struct.pack(f"{len(memory) // 4}f", *([float(sys.argv[2])] * (len(memory) // 4)))
"""


def test_memory_that_another_process_writes_to(tmp_path: Path) -> None:
    shared, layer, x = tmp_path / "weights", nn.Linear(64, 48), torch.randn(32, 64)
    layer.weight = nn.Parameter(torch.from_file(str(shared), shared=True, size=48 * 64).view(48, 64))
    run = compiled(layer)
    with torch.no_grad():
        for value in ("0.5", "-0.25"):
            run(x)
            subprocess.run([sys.executable, "-I", "-S", "-c", WRITE, str(shared), value], check=True)
            assert layer.weight[0, 0] == float(value)
            torch.testing.assert_close(run(x), layer(x))


SEND = """
import sys, torch
torch.distributed.init_process_group("gloo", init_method=sys.argv[1], rank=1, world_size=2)
for value in (0.5, -0.25):
    torch.distributed.broadcast(torch.full((48, 64), value), src=1)
torch.distributed.barrier()
torch.distributed.destroy_process_group()  # an exit with the group's threads running may abort
"""


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that broadcasts weights to a group that this one has joined."""
    place = f"file://{tmp_path / 'group'}"
    process = subprocess.Popen([sys.executable, "-c", SEND, place])
    try:
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=2)
        yield process
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch is built without gloo")
def test_weights_that_another_process_broadcasts(sender: subprocess.Popen[bytes]) -> None:
    layer, x = nn.Linear(64, 48), torch.randn(32, 64)
    run = compiled(layer)
    with torch.no_grad():
        for value in (0.5, -0.25):
            run(x)
            torch.distributed.broadcast(layer.weight, src=1)
            assert layer.weight[0, 0] == value
            torch.testing.assert_close(run(x), layer(x))
    torch.distributed.barrier()
    assert sender.wait(30) == 0


# ---- frozen ----------------------------------------------------------------------------------------------------------


def packed_bytes() -> int:
    return sum(program.packed_bytes for program in compiled_graph._programs)


def test_frozen_weights_are_packed_and_constant_until_told() -> None:
    net, x = Net(), image()
    before = packed_bytes()
    run = compiled(net, freeze=True)
    with torch.no_grad():
        first = run(x)
        torch.testing.assert_close(first, net(x), rtol=1e-4, atol=1e-4)
        assert packed_bytes() - before > 4 * sum(p.numel() for p in net.parameters()) * 0.9
        for module in (net.window, net.narrow, net.line):
            module.weight.data.mul_(-2)
        net.table.data.mul_(3)
        torch.testing.assert_close(run(x), first)
        refreeze()
        torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-4)


def test_memory_of_frozen_weights_does_not_come_to_hold_others() -> None:
    net, x = Net(), image()
    run = compiled(net, freeze=True)
    with torch.no_grad():
        for _ in range(TIMES):
            torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-4)
            assigned_twice(net)


class Wide(nn.Module):
    """A product and an embedding with weights above the size from which memory is released."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.words = nn.Embedding(600, 520, dtype=dtype)
        self.down = nn.Linear(520, 1100, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.words(x))


ROWS = torch.arange(48)
needs_linux = pytest.mark.skipif(not CAN_RELEASE, reason="the memory of weights is released on Linux only")


@needs_linux
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_released_weights_are_only_in_packed_form_until_restored(dtype: torch.dtype) -> None:
    net = Wide(dtype).eval()
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        expected = net(ROWS)
        run = compiled(net, freeze="release")
        first = run(ROWS)
        torch.testing.assert_close(first, expected)
        assert net.down.weight.isnan().all(), "eager computes NaN from what is released"
        assert torch.equal(net.words.weight, weights["words.weight"]), "a weight that is read in place stays"
        refreeze()
        assert torch.equal(run(ROWS), first)
        restore_weights()
        assert all(torch.equal(p, weights[name]) for name, p in net.named_parameters())
        assert torch.equal(run(ROWS), first)
        torch.testing.assert_close(net(ROWS), expected)


@needs_linux
def test_released_weights_come_back_for_other_programs_and_errors() -> None:
    net = Wide().eval()
    weight = net.down.weight.detach().clone()
    with torch.no_grad():
        expected = net(ROWS)
        compiled(net, freeze="release")(ROWS)
        assert net.down.weight.isnan().all()
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(net)(ROWS[:3]), expected[:3])
        assert torch.equal(net.down.weight, weight)


class Sums(nn.Module):
    """Reads the weight of a product in place, element by element."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight + x


@needs_linux
def test_a_program_that_was_called_before_gets_a_released_weight_back() -> None:
    """Its calls are native from the first one on, and do not look at weights that are read in place."""
    net = Wide().eval()
    with torch.no_grad():
        reader, run, x = compiled(Sums(net.down.weight)), compiled(net, freeze="release"), torch.ones(520)
        expected = reader(x)
        torch.testing.assert_close(reader(x), expected)
        run(ROWS)
        assert net.down.weight.isnan().all()
        torch.testing.assert_close(reader(x), expected)
        assert not net.down.weight.isnan().any()


@needs_linux
def test_new_weights_in_the_place_of_released_ones() -> None:
    net, other = Wide().eval(), Wide().eval()
    with torch.no_grad():
        run = compiled(net, freeze="release")
        run(ROWS)
        net.load_state_dict(other.state_dict())
        refreeze()
        torch.testing.assert_close(run(ROWS), other(ROWS))
        net.load_state_dict(Wide().state_dict(), assign=True)
        copy_of_net = copy.deepcopy(net)
        torch.testing.assert_close(run(ROWS), copy_of_net(ROWS))


# Prints by how much the peak of this process grows, in multiples of the weights, from the call on.
_GROWTH = """
import sys, torch
from pathlib import Path

def pages(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

def net(width):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(12)]).eval()

options = {"freeze": {"no": False, "yes": True, "release": "release"}[sys.argv[1]]}
with torch.no_grad():
    # Loads what any compilation needs.
    torch.compile(net(512), backend="buddy", options=options)(torch.randn(32, 512))
    model, x = net(2048), torch.randn(32, 2048)
    weights = sum(p.nbytes for p in model.parameters())
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = pages("VmRSS:")
    torch.compile(model, backend="buddy", options=options)(x)
    print((pages("VmHWM:") - before) / weights, (pages("VmRSS:") - before) / weights)
"""


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("freeze", "peaks", "ends"),
    [("no", (-0.1, 0.3), (-0.1, 0.3)), ("yes", (0.9, 1.4), (0.9, 1.4)), ("release", (-0.1, 0.6), (-0.1, 0.3))],
)
def test_memory_for_each_weight(
    freeze: str, peaks: tuple[float, float], ends: tuple[float, float], run_python: RunPython
) -> None:
    finished = run_python("-c", _GROWTH, freeze)
    assert not finished.returncode, finished.stderr
    peak, end = map(float, finished.stdout.split()[-2:])
    assert peaks[0] <= peak <= peaks[1]
    assert ends[0] <= end <= ends[1]


def test_nothing_is_kept_of_weights_by_default_nor_frozen_in_training() -> None:
    layer, x, before = nn.Linear(64, 48), torch.randn(32, 64), packed_bytes()
    with torch.no_grad():
        compiled(layer)(x)
    torch._dynamo.reset()
    run = compiled(layer, freeze=True)
    torch.testing.assert_close(run(x), layer(x))
    assert packed_bytes() == before
    layer.weight.data.mul_(-1)
    torch.testing.assert_close(run(x), layer(x))


def test_a_recipe_of_the_workbench_packs_nothing_unless_frozen(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(to_toml(default_recipe()))
    assert from_toml((tmp_path / "recipe.toml").read_text()).steps == default_recipe().steps
    layer, x = nn.Linear(64, 48), torch.randn(32, 64)
    run = compiled(layer, recipe=str(tmp_path / "recipe.toml"))
    with torch.no_grad():
        run(x)
        layer.weight.data.mul_(-1)
        torch.testing.assert_close(run(x), layer(x))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"freeze": "yes"}, "freeze is 'yes'; it may be True, for weights that are constants, 'release', which also"),
        (
            {"contractions-to-kernels.pack-weights": True},
            "contractions-to-kernels.pack-weights packs copies of weights",
        ),
        ({"freeze": "release", "verify": True}, "freeze='release' leaves no weights for eager"),
    ],
)
def test_what_freeze_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        BackendSettings.of(options)


def test_frozen_weights_are_documented_as_constants() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "torch-compile.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `freeze` |"))
    assert "constants" in row
    assert "refreeze()" in page


# ---- other ways to run -----------------------------------------------------------------------------------------------


def test_imported_graphs_read_the_captured_weights_as_they_are() -> None:
    net, x, compiler = Net().eval(), image(), DynamoCompiler()
    with torch.no_grad():
        compiler.importer(net, x)
        run = compiler.dynamo_run()
        for change in (copied, written_by_numpy, averaged):
            torch.testing.assert_close(run(x)[0], net(x), rtol=1e-4, atol=1e-4)
            change(net)
        other = copy.deepcopy(net)
        copied(other)
        torch.testing.assert_close(run(x)[0], net(x), rtol=1e-4, atol=1e-4)


def test_a_compiled_graph_reads_weights_as_they_are_given() -> None:
    layer, x, compiler = nn.Linear(64, 48), torch.randn(32, 64), DynamoCompiler()
    with torch.no_grad():
        (graph,) = compiler.importer(layer, x)
        run, weights = graph.compile(), compiler.imported_params[graph]
        for _ in range(TIMES):
            torch.testing.assert_close(run(*weights, x)[0], layer(x))
            layer.weight.data.mul_(-2)


@pytest.mark.parametrize("pack", [False, True])
def test_a_compiled_graph_takes_sizes_that_change(pack: bool) -> None:
    layer, compiler = nn.Linear(7, 4), DynamoCompiler()

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(layer(x)) * x.shape[0]

    rows = {0: torch.export.Dim("rows", min=2)}
    with torch.no_grad():
        (graph,) = compiler.importer_by_export(Scaled(), torch.randn(5, 7), dynamic_shapes=(rows,))
        run, weights = graph.compile(pack), compiler.imported_params[graph]
        given = [torch.cat([weight.reshape(-1) for weight in weights])] if pack else weights
        for count in (5, 9, 3):
            x = torch.randn(count, 7)
            torch.testing.assert_close(run(*given, x), [Scaled()(x)])


def test_each_run_packs_weights_as_they_are() -> None:
    net, x = Net().eval(), image()
    with torch.no_grad():
        (found,) = capture(net, (x,), {})
    artifact = compile_graph(found.graph, default_recipe())
    for _ in range(2):
        report = run_and_compare(found, artifact, repeats=2, threads=1, nodes=NodeCounts(1, 0), compile_seconds=0.0)
        assert report.ok
        assert report.inputs_unchanged
        copied(net)

"""Weights moved to huge pages keep their contents and addresses; the weights that need it are marked."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol.artifact import Argument, TensorSpec
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram, executable
from buddy.compiler.runtime.buffers import HUGE_PAGE_BYTES, huge_page_tensor, move_to_huge_pages


def huge_bytes() -> int:
    """Bytes of this process that lie in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


def given(pages: int) -> int:
    """How many bytes of so many huge pages the kernel gives to who asks for them: memory may be in small pieces."""
    before = huge_bytes()
    with mmap.mmap(-1, (pages + 1) * HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory[::4096] = bytes(len(memory) // 4096)
        return huge_bytes() - before


@pytest.mark.skipif(sys.platform != "linux", reason="Linux moves memory to huge pages on request")
def test_memory_is_moved_where_the_kernel_can_and_keeps_its_address_and_content() -> None:
    tensor = torch.arange(4 * HUGE_PAGE_BYTES // 4, dtype=torch.int32)
    address, before = tensor.data_ptr(), huge_bytes()
    move_to_huge_pages(tensor)
    move_to_huge_pages(tensor[:3])
    move_to_huge_pages(torch.empty(0))
    assert tensor.data_ptr() == address
    assert torch.equal(tensor, torch.arange(tensor.numel(), dtype=torch.int32))
    mode = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    if "[never]" not in mode and huge_bytes() == before:
        pytest.skip("this kernel moves no memory (before Linux 6.1)")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux gives huge pages on request")
def test_large_new_tensors_get_huge_pages_and_small_ones_need_none() -> None:
    small, before = huge_page_tensor((3, 5), torch.float16), huge_bytes()
    assert (small.shape, small.dtype) == ((3, 5), torch.float16)
    large = huge_page_tensor((40, HUGE_PAGE_BYTES), torch.uint8).fill_(
        7
    )  # too large for memory that has been written to before
    assert large.shape == (40, HUGE_PAGE_BYTES)
    assert int(large[::9, -1].sum()) == 7 * 5
    found = huge_bytes() - before
    if given(40) < 40 * HUGE_PAGE_BYTES:
        pytest.skip("this kernel has not so many huge pages to give")
    assert found >= 32 * HUGE_PAGE_BYTES


class Twice(torch.nn.Module):
    """One token meets a weight whose rows it reads in place, and many tokens meet one that is packed."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.many = torch.nn.Linear(600, 1100), torch.nn.Linear(96, 80)

    def forward(self, token: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.few(token), self.many(tokens)


def test_only_weights_that_are_read_in_place_are_marked_and_new_ones_are_met_too() -> None:
    model, inputs = Twice().eval(), (torch.randn(1, 600), torch.randn(32, 96))
    with torch.no_grad():
        (captured,) = capture(model, inputs)
        artifact = Compiler(captured.graph).compile(default_recipe()).artifact
        streamed = [captured.tensors[a.source].shape for a in artifact.arguments if a.streamed]
        assert streamed == [model.few.weight.shape]
        program = LoadedProgram(artifact)
        for factor in (1.0, 2.0):
            tensors = [factor * tensor for tensor in captured.tensors]
            for found, expected in zip(program(tensors), captured.eager(tensors), strict=True):
                torch.testing.assert_close(found, expected)


def test_a_weight_that_comes_at_several_addresses_is_moved_once_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    monkeypatch.setattr(executable, "move_to_huge_pages", lambda tensor: moved.append(tensor.data_ptr()))
    argument = executable.StreamedArgument(Argument(0, TensorSpec((4,), "f32"), streamed=True))
    first, second = torch.ones(4), torch.ones(4)
    for weight in (first, second, first, second):
        assert argument.value(weight, {}) is weight
    assert moved == [first.data_ptr(), second.data_ptr()]

"""Memory for packed weights: shapes, alignment, and buffers that keep apart."""

from __future__ import annotations

import torch

from buddy.compiler.protocol.artifact import TensorSpec
from buddy.compiler.runtime.buffers import PackedStore


def test_buffers_have_their_specs_lie_on_cache_lines_and_do_not_overlap() -> None:
    specs = [
        TensorSpec((3, 5), "f32"),
        TensorSpec((7,), "bf16"),
        TensorSpec((0, 4), "f32"),
        TensorSpec((800, 1000), "f64"),
    ]
    store = PackedStore(specs)
    buffers = [store.buffer(number) for number in range(len(specs))]
    for number, buffer in enumerate(buffers):
        buffer.fill_(number + 1)
    assert [buffer.shape for buffer in buffers] == [spec.shape for spec in specs]
    assert [buffer.dtype for buffer in buffers] == [torch.float32, torch.bfloat16, torch.float32, torch.float64]
    assert all(buffer.data_ptr() % 64 == 0 for buffer in buffers)
    assert [float(buffer.double().sum()) for buffer in buffers] == [15.0, 14.0, 0.0, 3_200_000.0]
    assert store.buffer(1).data_ptr() == buffers[1].data_ptr()

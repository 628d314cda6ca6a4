"""Row loops, element-wise ops, reductions and transposes give the same bits whatever the number of threads."""

from __future__ import annotations

import torch
from torch.nn import functional as f


def _model(x: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, table: torch.Tensor) -> list[torch.Tensor]:
    h = f.layer_norm(x + f.embedding(ids, table), (x.shape[-1],))
    w = torch.where(mask, f.gelu(h) + f.silu(x), -h)
    return [h, f.softmax(h, -1), w, w.sum(-1), w.sum(0), w.t().contiguous(), f.log_softmax(w, -1), (w > 0) | mask]


def test_the_number_of_threads_changes_no_bit() -> None:
    torch.manual_seed(0)
    rows, width = 301, 520
    x, table = torch.randn(rows, width), torch.randn(50, width)
    arguments = (x, torch.randint(0, 50, (rows,)), torch.rand(rows, width) > 0.5, table)
    expected = _model(*arguments)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            options = {"threads": threads, "fallback": "error"}
            with torch.no_grad():
                found.append(torch.compile(_model, backend="buddy", options=options)(*arguments))
    finally:
        torch.set_num_threads(before)
    for first, exact in zip(found[0], expected, strict=True):
        # Sums of 520 and 301 terms of up to 10, in another order than eager's.
        torch.testing.assert_close(first, exact, rtol=1e-5, atol=1e-4)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))

"""Decomposes recurrent layers to matrix products; eager calls oneDNN with a single opaque op."""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp.decompositions import one_layer_lstm


def mkldnn_rnn_layer(
    steps: torch.Tensor, w0: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor, hidden: torch.Tensor,
    cell: torch.Tensor, reverse: bool, batch_sizes: Any, mode: int, hidden_size: int, num_layers: int,
    has_biases: bool, bidirectional: bool, batch_first: bool, train: bool,
) -> Any:  # fmt: skip
    """One direction of one LSTM layer over `steps` [time, batch, inputs], unrolled by PyTorch's own decomposition.

    Mode 2 is LSTM in oneDNN's numbering; PyTorch uses no other mode, so others are unchanged.
    """
    if mode != 2 or num_layers != 1 or bidirectional or batch_first or train:
        return NotImplemented
    weights = (w0, w1, w2, w3) if has_biases else (w0, w1)
    output, (last, state) = one_layer_lstm(steps, (hidden[0], cell[0]), weights, has_biases, reverse)
    return output, last.unsqueeze(0), state.unsqueeze(0), steps.new_empty(0, dtype=torch.uint8)


DECOMPOSITIONS = {torch.ops.aten.mkldnn_rnn_layer.default: mkldnn_rnn_layer}

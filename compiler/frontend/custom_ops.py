"""Breaks Dynamo graphs at custom ops without a fake kernel, so that the rest is still captured."""

from __future__ import annotations

import torch
from torch._library.custom_ops import OPDEFS
from torch._library.utils import can_generate_trivial_fake_impl


def break_at_ops_without_fake() -> None:
    """Keeps every `torch.library.custom_op` defined so far without `register_fake` out of graphs.

    They run in eager, between the graphs before and after them.
    """
    for definition in list(OPDEFS.values()):
        overload = definition._opoverload
        if definition._abstract_fn is None and not can_generate_trivial_fake_impl(overload):
            torch._dynamo.disallow_in_graph(overload)

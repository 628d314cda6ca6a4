"""What TorchDynamo spends on each compilation for its own statistics, which programs that are called once need not."""

from __future__ import annotations

import torch


def leave_untimed() -> None:
    """In this process no guards are timed: for that, Dynamo empties the processor's caches, which takes 0.2 s."""
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0

"""Disables TorchDynamo's guard statistics, which programs that are called once do not need."""

from __future__ import annotations

import torch


def leave_untimed() -> None:
    """Disables the timing of guards in this process: Dynamo flushes the processor's caches for it, which takes 0.2
    s.
    """
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0

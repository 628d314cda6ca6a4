"""Calls are native in every supported environment: the tests of native calls are skipped where they are not."""

from __future__ import annotations

import sys

import pytest
import torch

from buddy.compiler.protocol.environment import torch_warning
from buddy.compiler.runtime.native_calls import native_call_problem, native_function_address


@pytest.mark.skipif(sys.platform != "linux", reason="is supported on Linux alone")
@pytest.mark.skipif(bool(torch_warning(torch.__version__)), reason="this PyTorch was not tested")
def test_calls_are_native() -> None:
    assert native_function_address() != 0, native_call_problem()

"""What other tests rely on: memory around guarded tensors cannot be touched."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.guarded_memory import EDGES, Edge, guarded

READ = """
import ctypes, torch
from tests.guarded_memory import guarded
tensor = guarded(torch.arange(3, dtype=torch.int16), {edge!r})
print(ctypes.c_char.from_address(tensor.data_ptr() + {inside}).value, flush=True)
print(ctypes.c_char.from_address(tensor.data_ptr() + {outside}).value)
"""


@pytest.mark.parametrize("edge", EDGES)
def test_guarded_tensors_hold_what_they_are_copies_of(edge: Edge) -> None:
    for tensor in (torch.arange(1500.0).reshape(30, 50).t(), torch.tensor([1 + 2j]).conj(), torch.empty(0, 3)):
        assert guarded(tensor, edge).equal(tensor.contiguous())


@pytest.mark.parametrize(("edge", "inside", "outside"), [("first", 0, -1), ("last", 5, 6)])
def test_a_byte_beyond_the_edge_ends_the_process(
    run_python: Callable[..., Any], edge: Edge, inside: int, outside: int
) -> None:
    done = run_python("-c", READ.format(edge=edge, inside=inside, outside=outside))
    assert done.stdout.startswith("b'")
    assert done.returncode == -signal.SIGSEGV

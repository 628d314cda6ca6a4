"""What other tests rely on: memory around guarded tensors cannot be touched."""

from __future__ import annotations

import mmap
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from tests.guarded_memory import EDGES, Edge, guarded, guarded_arguments, run_guarded
from tests.programs import captured

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


def distance(tensor: torch.Tensor, edge: Edge) -> int:
    """The bytes between a tensor and the edge of its page."""
    return (tensor.data_ptr() + (tensor.nbytes if edge == "last" else 0)) % mmap.PAGESIZE


@pytest.mark.parametrize("edge", EDGES)
def test_arguments_keep_their_strides_and_what_they_share(edge: Edge) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    given = ([base.t()[1:5:2], base[1]], {"other": torch.tensor([1 + 2j, 3 - 1j]).conj(), "number": 2})
    (first, second), others = guarded_arguments(given, edge)
    for copy, original in ((first, given[0][0]), (second, given[0][1]), (others["other"], given[1]["other"])):
        assert copy.equal(original)
        assert copy.stride() == original.stride()
        assert copy.is_conj() == original.is_conj()
    assert others["number"] == 2
    second.zero_()
    assert first[:, 1].eq(0).all()
    assert base.ne(0).sum() == 23
    # Together they reach from element 1 to the first of the last row's four.
    assert edge == "last" or distance(first, edge) == 0
    assert edge == "first" or (first.data_ptr() + 21 * 4) % mmap.PAGESIZE == 0
    assert distance(others["other"], edge) == 0


@pytest.mark.parametrize("edge", EDGES)
def test_results_of_programs_are_in_guarded_memory(edge: Edge) -> None:
    graph = captured(lambda x: (x + 1, x > 0), torch.tensor([1.0, -2.0, 3.0]))
    program = LoadedProgram(compile_graph(graph.graph, default_recipe()))
    program(graph.tensors)  # calls may allocate results natively
    results = run_guarded(program, graph.tensors, edge)
    assert [distance(result, edge) for result in results] == [0, 0]
    assert [result.tolist() for result in results] == [[2.0, -1.0, 4.0], [True, False, True]]
    assert [result.tolist() for result in program(graph.tensors)] == [[2.0, -1.0, 4.0], [True, False, True]]


@pytest.mark.parametrize(("edge", "inside", "outside"), [("first", 0, -1), ("last", 5, 6)])
def test_a_byte_beyond_the_edge_ends_the_process(
    run_python: Callable[..., Any], edge: Edge, inside: int, outside: int
) -> None:
    done = run_python("-c", READ.format(edge=edge, inside=inside, outside=outside))
    assert done.stdout.startswith("b'")
    assert done.returncode == -signal.SIGSEGV

"""Packed weights that one program lends another: where both are seen to pack alike, and the weight is as it was."""

from __future__ import annotations

from collections.abc import Callable

import torch

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime.executable import LoadedProgram
from buddy.compiler.runtime.packed_weights import SharedArgument, SharedWeights
from tests.programs import captured


def panels(weight: torch.Tensor) -> torch.Tensor:
    """One way to pack."""
    return weight.t().contiguous()


def lent(*weights: torch.Tensor) -> SharedWeights:
    return SharedWeights([(weight, panels(weight)) for weight in weights])


def weights(count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 6) for _ in range(count)]


def is_taken(
    borrowed: SharedArgument, weight: torch.Tensor, pack: Callable[[torch.Tensor], torch.Tensor] = panels
) -> bool:
    """Whether what there is elsewhere takes the place of packing; it has to be what packing would give."""
    packed: list[torch.Tensor] = []

    def own() -> torch.Tensor:
        packed.append(pack(weight))
        return packed[-1]

    assert torch.equal(borrowed.of(weight, weight.shape, weight.dtype, own), pack(weight))
    return not packed


def test_what_is_packed_alike_is_taken_once_that_is_known() -> None:
    first, second, other = weights(3)
    borrowed = SharedArgument(lent(first, second))
    assert not is_taken(borrowed, other)
    assert not is_taken(borrowed, first)
    assert is_taken(borrowed, second)
    assert is_taken(borrowed, first)
    assert not is_taken(borrowed, other)


def test_what_is_packed_otherwise_is_never_taken() -> None:
    first, second = weights(2)
    borrowed = SharedArgument(lent(first, second))
    for weight in (first, second, first):
        assert not is_taken(borrowed, weight, torch.clone)


def test_a_weight_whose_elements_are_all_the_same_says_nothing_of_how_it_is_packed() -> None:
    same, (first, second) = torch.ones(6, 6), weights(2)
    borrowed = SharedArgument(lent(same, first, second))
    assert not is_taken(borrowed, same)
    assert not is_taken(borrowed, first)
    assert is_taken(borrowed, second)


def test_a_weight_that_was_written_to_or_has_two_copies_is_packed_anew() -> None:
    first, second, third = weights(3)
    borrowed = SharedArgument(SharedWeights([(w, panels(w)) for w in (first, second, third, third)]))
    assert not is_taken(borrowed, first)
    second.add_(1)
    assert not is_taken(borrowed, second)
    assert not is_taken(borrowed, third)


def test_another_view_of_the_same_memory_is_packed_anew() -> None:
    first, second = weights(2)
    borrowed = SharedArgument(lent(first, second))
    assert not is_taken(borrowed, first)
    assert is_taken(borrowed, second)
    assert not is_taken(borrowed, torch._neg_view(second))
    assert not is_taken(borrowed, second.view(torch.int32))
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64, bias=False)
    whole = captured(layer, torch.randn(48, 64))
    program = LoadedProgram(compile_graph(whole.graph, default_recipe()), frozen=True)
    assert program.packed_bytes
    (before,) = program(whole.tensors)
    (after,) = program([torch._neg_view(t.detach()) if t.shape == (64, 64) else t for t in whole.tensors])
    assert torch.equal(after, -before)


def test_a_program_that_borrows_gives_what_one_that_packs_gives() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(2)]
    whole = captured(torch.nn.Sequential(*layers).eval(), torch.randn(48, 64))
    program = LoadedProgram(compile_graph(whole.graph, default_recipe()), frozen=True)
    program(whole.tensors)
    copies = program.packed_copies()
    alone = captured(layers[0], torch.randn(48, 64))
    artifact = compile_graph(alone.graph, default_recipe())
    places = [number for number, tensor in enumerate(alone.tensors) if tensor.shape == (64, 64)]
    lender, packer = (
        LoadedProgram(artifact, frozen=True, sequential_calls=True, shared_weights=copies),
        LoadedProgram(artifact),
    )
    for layer in layers:
        tensors = [layer.weight if number in places else tensor for number, tensor in enumerate(alone.tensors)]
        (found,), (wanted,) = lender(tensors), packer(tensors)
        assert torch.equal(found, wanted)
    lent_to = [copies.of(weight, copy.shape, copy.dtype) is copy for weight, copy in lender.packed_pairs()]
    assert lent_to == [True]

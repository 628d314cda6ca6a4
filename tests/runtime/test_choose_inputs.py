"""Inputs of a run: random by a seed, from files, and refused in words where they do not fit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol.run_report import InputChoice
from buddy.compiler.runtime.captured import InputError, as_array, choose_tensors, input_positions, make_values_file
from buddy.compiler.runtime.compare import compare


@pytest.fixture(scope="module")
def captured() -> Any:
    torch.manual_seed(0)
    layer, table = torch.nn.Linear(4, 2), torch.nn.Embedding(7, 4)

    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return layer(x + table(index))

    (found,) = capture(program, (torch.randn(3, 4), torch.tensor([1, 6, 2])))
    return found


def inputs(captured: Any, choice: InputChoice) -> list[torch.Tensor]:
    tensors = choose_tensors(captured, choice)
    places = input_positions(captured)
    others = [k for k in range(len(tensors)) if k not in places]
    assert all(tensors[k] is captured.tensors[k] for k in others), "weights stay"
    return [tensors[k] for k in places]


def file_choice(title: str, save: Any) -> InputChoice:
    data = io.BytesIO()
    save(data)
    return InputChoice("file", title=title, content=data.getvalue())


def test_a_seed_means_the_same_numbers_and_indices_stay_indices(captured: Any) -> None:
    one, again, other = (inputs(captured, InputChoice("random", seed)) for seed in (3, 3, 4))
    own = inputs(captured, InputChoice())
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for made, original in zip(one, own, strict=True):
        assert (made.shape, made.dtype, made.stride()) == (original.shape, original.dtype, original.stride())
        if not made.is_floating_point():
            assert set(made.tolist()) <= set(original.tolist())


def test_files_are_taken_by_name_or_in_order(captured: Any) -> None:
    own = inputs(captured, InputChoice())
    wanted = [tensor + 1 if tensor.is_floating_point() else tensor * 0 for tensor in own]
    arrays = [tensor.numpy() for tensor in wanted]
    names = [captured.graph.placeholders[k].stable for k in input_positions(captured)]
    for choice in (
        file_choice("a.npz", lambda data: np.savez(data, *arrays)),
        file_choice("b.npz", lambda data: np.savez(data, **dict(reversed(list(zip(names, arrays, strict=True)))))),
        file_choice("c.pt", lambda data: torch.save(wanted, data)),
    ):
        assert all(torch.equal(a, b) for a, b in zip(inputs(captured, choice), wanted, strict=True))


def test_what_was_saved_of_a_run_can_be_run_again(captured: Any) -> None:
    expected = captured.eager(captured.tensors)
    data = make_values_file(captured, expected, expected)
    arrays = np.load(io.BytesIO(data))
    assert {name.partition("/")[0] for name in arrays.files} == {"input", "output", "eager"}
    own = inputs(captured, InputChoice())
    again = inputs(captured, InputChoice("file", title="values.npz", content=data))
    assert all(torch.equal(a, b) for a, b in zip(own, again, strict=True))


@pytest.mark.parametrize(
    ("title", "content", "message"),
    [
        ("x.npy", b"no file at all", "x.npy"),
        ("x.pt", b"no file at all", "x.pt"),
        ("x.npz", b"", "x.npz"),
    ],
)
def test_what_is_no_file_of_tensors_is_refused(captured: Any, title: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_tensors(captured, InputChoice("file", title=title, content=content))


def test_shapes_that_do_not_fit_are_named(captured: Any) -> None:
    with pytest.raises(InputError, match="has 1 tensors, the graph 2 inputs"):
        choose_tensors(captured, file_choice("a.npy", lambda data: np.save(data, np.zeros((5, 5), np.float32))))
    wrong = [np.zeros((5, 5), np.float32), np.zeros((5, 5), np.float32)]
    with pytest.raises(InputError, match=r"is \[5, 5\], and the graph was captured for"):
        choose_tensors(captured, file_choice("a.npz", lambda data: np.savez(data, *wrong)))


def test_keys_and_elements_of_any_kind_are_taken_or_refused_in_words(captured: Any) -> None:
    own = inputs(captured, InputChoice())
    numbered = file_choice("n.pt", lambda data: torch.save(dict(enumerate(own)), data))
    assert all(torch.equal(a, b) for a, b in zip(inputs(captured, numbered), own, strict=True))
    words = np.array(["a"])
    for choice in (
        file_choice("s.npz", lambda data: np.savez(data, words, words)),
        file_choice("s.pt", lambda data: torch.save(["a", {}], data)),
    ):
        with pytest.raises(InputError, match="not a tensor") as caught:
            choose_tensors(captured, choice)
        assert "save tensors, or arrays of numbers" in str(caught.value)


def test_a_report_says_where_outputs_differ(tmp_path: Path) -> None:
    eager = torch.zeros(40, 100)
    ours = eager.clone()
    ours[39, 99] = 0.5
    found = compare("out", ours, eager)
    assert (len(found.map), len(found.map[0])) == (12, 48)
    assert found.map[11][47] == 0.5
    assert sum(map(sum, found.map)) == 0.5
    assert found.zeros == 3999
    assert found.mean == pytest.approx(0.5 / 4000)
    assert compare("out", eager, eager).map == ()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "uint16", "bool"])
def test_element_types_that_numpy_lacks_are_saved_as_wider_ones_of_the_same_numbers(dtype: str) -> None:
    tensor = torch.tensor([0.0, 1.0, 0.5 if "float" in dtype else 3.0]).to(getattr(torch, dtype))
    assert torch.equal(torch.from_numpy(as_array(tensor)).to(tensor.dtype).double(), tensor.double())

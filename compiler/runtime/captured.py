"""A captured graph with its inputs and the eager program to compare with.

Also chooses other inputs for a run, and writes inputs and outputs to files.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import GraphInfo
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.plain_values import ImportedIR
from buddy.compiler.protocol.run_report import InputChoice
from buddy.compiler.protocol.source_files import archive_too_large
from buddy.compiler.runtime.graph_interpreter import compute_results
from buddy.compiler.runtime.torch_values import resolve_lazy

if TYPE_CHECKING:
    from buddy.compiler.ops.utils import Registry


# Runs a program in eager: takes the tensors of the graph's placeholders, and returns the graph's results.
Eager = Callable[[Sequence[torch.Tensor]], list[Any]]
# Takes tensors and the seed of random errors; returns the results with these errors, and with those of opposite sign.
Disturbed = Callable[[Sequence[torch.Tensor], int], tuple[list[Any], list[Any]]]


class Spread(NamedTuple):
    """The size of the differences between two tensors: `largest` is the maximum, `rms` the root mean square.

    `slices` maps a dim to the root mean squares of the slices along this dim, as a tensor of the dim's size. A spread
    that is not `is_complete` may be too small: some ops do not support double precision, so both runs computed them in
    the program's precision.
    """

    largest: float
    rms: float
    slices: Mapping[int, torch.Tensor] = {}
    is_complete: bool = True

    def maximum_with(self, other: Spread) -> Spread:
        """Returns the spread with the larger value of each measure."""
        slices = {dim: torch.maximum(rms, other.slices[dim]) for dim, rms in self.slices.items()}
        is_complete = self.is_complete and other.is_complete
        return Spread(max(self.largest, other.largest), max(self.rms, other.rms), slices, is_complete)


@dataclass
class CapturedGraph:
    """One graph of a program.

    `tensors` are its real inputs in placeholder order; parameters share the model's memory. `parameters` are the
    positions of `nn.Parameter`s among `tensors`. `numbers` are the arguments that are not tensors, such as sizes that
    no tensor's shape contains.

    `eager(tensors)` returns the graph's results, in order, without writing to `tensors`; if it is `None`, the graph has
    no reference. `eager_to_time(tensors)`, if given, is timed instead of `eager`: it draws random numbers by PyTorch's
    own ops. The graph computes them from a seed, which is placeholder number `seed`.

    `result_names` are the names that the program gives its results, such as the keys of a dict that it returns;
    `names_of_results()` are these, or the nodes' names if the program gives none.

    `table` is the FX graph as `print_tabular` prints it, `code` as Python text. `user_lowerings()` returns the
    lowerings of the script, which have priority over all registries. `torch_dialect()` imports the graph by torch-mlir;
    it is `None` for a piece of a captured graph.

    `onnx_model` is the ONNX model that the graph was read from, with its weights as inputs; b"" for other programs.

    `disturbed(tensors, seed)` returns the results of two runs of the reference with random errors of the size of
    roundings. It is given for programs whose ops PyTorch does not have, and which round to integers.

    `precisions` are the reduced precisions in which `eager` computes nodes, by stable name.

    The other fields are caches of `runtime.sensitivity`. `spreads` are those of the results, and `further_spreads`
    those of runs with random errors, by seed. `exact_results` are the results of a run in double precision that starts
    from the generator's state `random_state`; the list is empty until such a run is needed. If the program has
    `disturbed`, `exact_results` are those of eager.
    """

    graph: Graph
    info: GraphInfo
    tensors: list[torch.Tensor]
    eager: Eager | None
    table: str = ""
    parameters: frozenset[int] = frozenset()
    numbers: tuple[Any, ...] = ()
    user_lowerings: Callable[[], Registry | None] = lambda: None
    code: str = ""
    torch_dialect: Callable[[], ImportedIR] | None = None
    eager_to_time: Eager | None = None
    seed: int | None = None
    result_names: tuple[str, ...] = ()
    precisions: Mapping[str, str] = field(default_factory=dict)
    onnx_model: bytes = b""
    disturbed: Disturbed | None = None
    spreads: tuple[Spread, ...] | None = field(default=None, init=False)
    further_spreads: dict[int, tuple[Spread, ...]] = field(default_factory=dict, init=False)
    exact_results: list[Any] = field(default_factory=list, init=False)
    random_state: torch.Tensor | None = field(default=None, init=False)

    def in_precisions(self, precisions: Mapping[str, str]) -> CapturedGraph:
        """Returns this program, with an eager program that computes nodes in `precisions` by reference arithmetic."""
        if not precisions or self.eager is None:
            return self
        graph, numbers = self.graph, self.numbers

        def eager(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return compute_results(graph, tensors, numbers, precisions)

        return replace(self, eager=eager, precisions=precisions)

    def names_of_results(self) -> tuple[str, ...]:
        """Returns the name of each result of the graph, in order."""
        return self.result_names or tuple(map(str, self.graph.results))


# ---- inputs and files of values --------------------------------------------------------------------------------------


class InputError(BuddyError):
    """The inputs do not fit the graph; `diagnostic` says which, and what would fit."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what, "the inputs of the run", todo)


def input_positions(captured: CapturedGraph) -> list[int]:
    """Returns the positions of captured tensors that are inputs, not parameters, buffers or constants."""
    return [position for position, kind in enumerate(captured.graph.kinds) if kind is NodeType.InputNode]


def choose_tensors(captured: CapturedGraph, choice: InputChoice) -> list[torch.Tensor]:
    """Returns the graph's tensors in placeholder order, with the inputs of `choice`. Raises `InputError`."""
    tensors, positions = list(captured.tensors), input_positions(captured)
    if choice.kind == "random":
        generator = torch.Generator().manual_seed(choice.seed)
        for position in positions:
            tensors[position] = random_like(tensors[position], tuple(tensors[position].shape), generator)
    elif choice.kind == "file":
        names = [captured.graph.placeholders[position].stable for position in positions]
        values = _order_by_inputs(_read_file(choice), names)
        for position, name, value in zip(positions, names, values, strict=True):
            tensors[position] = _fit_input(value, tensors[position], name)
    return tensors


def random_like(tensor: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Returns a random tensor of `shape` that is distributed like `tensor`.

    If `tensor` has finite floats, the result is normally distributed, with the same mean and deviation. Other elements,
    such as indices, are drawn from the elements of `tensor`, so that they stay valid.
    """
    has_same_shape = shape == tuple(tensor.shape)
    result = torch.empty_like(tensor) if has_same_shape else torch.empty(shape, dtype=tensor.dtype)
    are_finite_floats = tensor.is_floating_point() and bool(tensor.isfinite().all())
    if are_finite_floats and tensor.numel() > 1:
        normal = torch.randn(shape, generator=generator)
        return result.copy_(normal * tensor.float().std() + tensor.float().mean())
    if not tensor.numel() or not result.numel():
        return result.zero_()
    indices = torch.randint(tensor.numel(), (result.numel(),), generator=generator)
    return result.copy_(tensor.reshape(-1)[indices].reshape(shape))


def _read_file(choice: InputChoice) -> Any:
    """Returns the content of a file without executing code in it. Raises `InputError`.

    The content is an array for a `.npy`, a dict of arrays for a `.npz`, and the saved object for a `.pt`.
    """
    file = io.BytesIO(choice.content)
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                reason = archive_too_large(archive, len(choice.content))
            if reason:
                raise InputError(f"{choice.title} is {reason}", "give a file that contains only the tensors")
        file.seek(0)
        if choice.title.endswith((".npy", ".npz")):
            content = np.load(file, allow_pickle=False)
            is_archive = isinstance(content, np.lib.npyio.NpzFile)
            return {name: content[name] for name in content.files} if is_archive else content
        return torch.load(file, weights_only=True, map_location="cpu")
    except InputError:
        raise
    except (ValueError, OSError, EOFError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{choice.title}: {error}", "give a .npy, a .npz, or a .pt that contains only tensors"
        ) from error
    except Exception as error:
        # Unpickling raises errors of many types for a file that is invalid or contains forbidden objects.
        raise InputError(
            f"{choice.title} is not a file of tensors: {error}", "give a .npy, a .npz, or a .pt"
        ) from error


def _order_by_inputs(content: Any, names: Sequence[str]) -> list[torch.Tensor]:
    """Returns the values of a file for the inputs `names`: by name if it has all of them, else in the file's order.

    Raises `InputError` if the file has more or fewer values than there are names.
    """
    if isinstance(content, Mapping):
        by_name = {str(key).removeprefix("input/"): value for key, value in content.items()}
        if all(name in by_name for name in names):
            return [by_name[name] for name in names]
        values = list(content.values())
    else:
        values = list(content) if isinstance(content, (list, tuple)) else [content]
    if len(values) != len(names):
        what = f"the file has {len(values)} tensors, the graph {len(names)} inputs"
        raise InputError(what, f"give one for each of {', '.join(names) or 'none'}, in this order or by these names")
    return values


def _fit_input(value: np.ndarray, like: torch.Tensor, name: str) -> torch.Tensor:
    """Returns a value of a file with the element type and strides of `like`. Raises `InputError` if it does not fit."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        element_type = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
        what = f"{name} is {type(value).__name__}{element_type} in the file, not a tensor"
        raise InputError(what, "save tensors, or arrays of numbers") from error
    if tensor.shape != like.shape:
        sizes = f"{list(tensor.shape)}, and the graph was captured for {list(like.shape)}"
        raise InputError(f"{name} is {sizes}", "give that shape, or change the shape in the script")
    if tensor.is_floating_point() != like.is_floating_point() or tensor.is_complex() != like.is_complex():
        raise InputError(f"{name} is {tensor.dtype}, and the graph takes {like.dtype}", "convert it first")
    return torch.empty_like(like).copy_(tensor)


# The file of a folder that lists its values.
INDEX_FILE = "index.json"
# The maximum number of bytes of the files of one run, which are in the temporary folder.
MAX_SAVED_BYTES = 512 << 20
# Integer types by the number of bytes of an element.
_INTEGER_BY_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def named_values(
    captured: CapturedGraph, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields `(kind, name, tensor)`; `kind` is "input", "eager" (eager's result) or "output" (of compiled code)."""
    for position in input_positions(captured):
        yield "input", captured.graph.placeholders[position].stable, captured.tensors[position]
    if captured.eager is None:
        yield from (("output", name, value) for name, value in zip(captured.names_of_results(), results, strict=True))
        return
    remaining_results = iter(results)
    for name, value in zip(captured.names_of_results(), expected, strict=False):
        if torch.is_tensor(value):
            yield "eager", name, value
            if (result := next(remaining_results, None)) is not None:
                yield "output", name, result


def make_values_file(
    captured: CapturedGraph, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> bytes:
    """Returns the bytes of a `.npz` with `input/NAME`, `output/NAME` of compiled code, and `eager/NAME`."""
    arrays = {f"{kind}/{name}": as_array(tensor) for kind, name, tensor in named_values(captured, results, expected)}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


class ResultWriter:
    """Writes the values of a run to a `.npz`, whose bytes are then in `file`, and to files in `folder`.

    Without `with_file`, there is no `.npz`; if `folder` is "", there are no files.
    """

    def __init__(self, captured: CapturedGraph, with_file: bool, folder: str) -> None:
        self._captured, self._with_file, self._folder = captured, with_file, folder
        self.file = b""

    def write(self, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
        """Writes the `results` of compiled code and those of eager, `expected`."""
        if self._with_file:
            self.file = make_values_file(self._captured, results, expected)
        if self._folder:
            write_values(Path(self._folder), self._captured, results, expected)


def write_values(
    folder: Path, captured: CapturedGraph, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> None:
    """Writes a `.npy` of each tensor, and an index; tensors beyond `MAX_SAVED_BYTES` are only in the index."""
    entries: list[dict[str, Any]] = []
    remaining_bytes = MAX_SAVED_BYTES
    for number, (kind, name, tensor) in enumerate(named_values(captured, results, expected)):
        size = tensor.numel() * tensor.element_size()
        file = f"{number}.npy" if size <= remaining_bytes else ""
        if file:
            remaining_bytes -= size
            np.save(folder / file, as_array(tensor))
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append({"kind": kind, "name": name, "dtype": dtype, "shape": list(tensor.shape), "file": file})
    (folder / INDEX_FILE).write_text(json.dumps(entries), "utf-8")


def as_array(tensor: torch.Tensor, *, bits: bool = False) -> Any:
    """Returns the tensor as an array.

    Element types that NumPy lacks (bfloat16, 8-bit floats, complex32) become float32 or complex64, which represent the
    same numbers. With `bits`, they become integers with the same bits.
    """
    plain = resolve_lazy(tensor.detach()).cpu()
    try:
        return plain.numpy()
    except TypeError:
        wider = torch.complex64 if plain.is_complex() else torch.float32
        return (plain.contiguous().view(_INTEGER_BY_BYTES[plain.itemsize]) if bits else plain.to(wider)).numpy()

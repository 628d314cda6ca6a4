"""Describes the C interface of an exported program: its tensors, symbolic sizes, and the arguments of its entry."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import Assignment
from buddy.compiler.protocol.artifact import Argument as EntryArgument
from buddy.compiler.protocol.artifact import Artifact, EagerCall, TensorSpec
from buddy.compiler.protocol.recipe import EAGER
from buddy.compiler.tools.export.errors import ExportError
from buddy.compiler.tools.export.names import ElementType, element_of, reserved_words, stored_shape

if TYPE_CHECKING:
    from buddy.compiler.graph.graph import Graph

_C_NAME = re.compile(r"[a-z]\w*", re.ASCII)


@dataclass(frozen=True)
class ExportTensor:
    """A dense row-major tensor of the interface; symbolic sizes are texts, as in `TensorSpec`."""

    name: str
    shape: tuple[int | str, ...]
    element: ElementType

    @property
    def empty(self) -> bool:
        """Whether the tensor is empty in every call; such tensors are not passed."""
        return 0 in self.shape


@dataclass(frozen=True)
class ExportArgument:
    """An argument of the entry, the compiled function: input number `input` or weight number `weight`; the other is -1.

    If `pack` is set, the loader packs the tensor into `bytes` bytes with that function. If only `bytes` is set, it
    copies a weight to memory that is fast to read. Otherwise it passes the tensor unchanged.
    """

    input: int
    weight: int
    pack: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class SizeSource:
    """The source of symbolic size `name`: dim `dim` of input number `input`; scalar argument `dim` if that is -1."""

    name: str
    input: int
    dim: int


@dataclass(frozen=True)
class ProgramInterface:
    """The interface of a program.

    `sources` are the numbers of the graph's placeholders: first those of `inputs`, then those of `weights`.
    `rejections` are the symbols that compiled code calls for values that eager rejects, with the error messages.
    `entry` is the symbol of the compiled function, `arena` the bytes of scratch memory that it needs.
    """

    name: str
    inputs: tuple[ExportTensor, ...]
    weights: tuple[ExportTensor, ...]
    outputs: tuple[ExportTensor, ...]
    arguments: tuple[ExportArgument, ...]
    sizes: tuple[SizeSource, ...]
    sources: tuple[tuple[int, ...], tuple[int, ...]]
    rejections: tuple[tuple[str, str], ...]
    entry: str
    arena: int
    threads: int

    @property
    def packs(self) -> tuple[str, ...]:
        """The packing functions of the arguments, in order; arguments may share one."""
        return tuple(argument.pack for argument in self.arguments if argument.pack)

    @property
    def arity(self) -> int:
        """The number of pointers and sizes that the entry takes."""
        passed = sum(not output.empty for output in self.outputs)
        return len(self.arguments) + len(self.sizes) + passed + bool(self.arena)


def interface_of(name: str, graph: Graph, artifact: Artifact, assignments: Sequence[Assignment]) -> ProgramInterface:
    """Returns the C interface, under `name`, of the program `artifact`, which was compiled from `graph`.

    Raises `ExportError` for an unusable name, for ops that run in eager, for code for a GPU or with counters, and for
    inputs that are packed before the call.
    """
    check_name(name)
    reject_eager(assignments, artifact)
    inputs = [number for number, kind in enumerate(graph.kinds) if kind is NodeType.InputNode]
    sources = dict.fromkeys(argument.source for argument in artifact.arguments)
    weights = [number for number in sources if number not in inputs]
    input_positions = {number: position for position, number in enumerate(inputs)}
    weight_positions = {number: position for position, number in enumerate(weights)}
    results = [op for op in graph.results if isinstance(op, Op)]
    specs = [TensorSpec(tuple(op.tensor_meta.shape), op.tensor_meta.dtype.value) for op in graph.placeholders]
    names = [op.stable or op.name for op in graph.placeholders]
    return ProgramInterface(
        name,
        tuple(_tensor(names[number], specs[number]) for number in inputs),
        tuple(_tensor(names[number], specs[number]) for number in weights),
        tuple(_tensor(op.stable or op.name, spec) for op, spec in zip(results, artifact.results, strict=True)),
        tuple(_argument(argument, input_positions, weight_positions) for argument in artifact.arguments),
        tuple(
            SizeSource(symbol.name, input_positions.get(symbol.source, -1), symbol.index) for symbol in artifact.symbols
        ),
        (tuple(inputs), tuple(weights)),
        tuple((call.symbol, _rejection_text(call)) for call in artifact.eager_calls),
        artifact.entry,
        artifact.arena,
        artifact.threads,
    )


def check_name(name: str) -> None:
    """Raises `ExportError` if `name` is not usable for functions and files in C and C++."""
    if not _C_NAME.fullmatch(name) or name in reserved_words() or len(name) > 64:
        todo = "choose a name of lower-case letters, digits and _ that C and its library do not use (--name)"
        raise ExportError(f"{name!r} is not a valid name for C functions", "the export", todo)


def c_name(text: str) -> str:
    """Returns a valid C name made from any text."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()[:48]
    name = name if name[:1].isalpha() else f"program_{name}".rstrip("_")
    return f"{name}_program" if name in reserved_words() else name


def reject_eager(assignments: Sequence[Assignment], artifact: Artifact) -> None:
    """Raises `ExportError` if nodes run in eager, or if the code is for a GPU, counts time or records values."""
    in_eager = [assignment for assignment in assignments if assignment.lowering == EAGER]
    if in_eager:
        reasons = "\n".join(f"{assignment.node}: {assignment.reason}" for assignment in in_eager)
        nodes = ", ".join(assignment.node for assignment in in_eager[:3]) + (", …" if len(in_eager) > 3 else "")
        todo = (
            "add lowerings for these ops (docs/how-to/adding-an-operator.md), use other ops, or export the part of the "
            "program between them (`buddy-tui extract`)"
        )
        raise ExportError(f"{len(in_eager)} nodes run in eager PyTorch: {nodes}", "the program", todo, reasons)
    if artifact.device is not None:
        raise ExportError("this code is for a GPU", "the recipe", "choose a recipe whose code is for a CPU")
    if artifact.regions or artifact.observed:
        raise ExportError(
            "this code counts time or records values", "the recipe", "export the program without counters"
        )


def _tensor(name: str, spec: TensorSpec) -> ExportTensor:
    return ExportTensor(
        name, tuple(s if isinstance(s, int) else str(s) for s in stored_shape(spec)), element_of(spec.dtype)
    )


def _argument(argument: EntryArgument, inputs: dict[int, int], weights: dict[int, int]) -> ExportArgument:
    """Returns an argument of the entry; `inputs` and `weights` map numbers of placeholders to positions.

    Raises `ExportError` for an input that is packed.
    """
    weight = weights.get(argument.source, -1)
    if weight < 0 and argument.pack:
        raise ExportError(
            f"input {inputs[argument.source]} is packed before the call, which is only allowed for weights",
            "the recipe",
            "switch off packing (option pack-weights=false of contractions-to-kernels and convolutions-to-kernels)",
        )
    is_copied = bool(argument.pack) or (argument.streamed and weight >= 0)
    sizes = [size for size in stored_shape(argument.spec) if isinstance(size, int)]
    copy_bytes = math.prod(sizes) * element_of(argument.spec.dtype).bytes if is_copied else 0
    return ExportArgument(inputs.get(argument.source, -1), weight, argument.pack, copy_bytes)


def _rejection_text(call: EagerCall) -> str:
    op = call.target.removesuffix(".default").split(".")[0]
    return f"{op}: only eager PyTorch computes this" if call.results else f"{op}: eager PyTorch raises an error here"

"""The external interface of a program: its tensors, the arguments of its entry, and its other requirements."""

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

_NAME = re.compile(r"[a-z]\w*", re.ASCII)


@dataclass(frozen=True)
class ExportTensor:
    """A dense row-major tensor of the interface; symbolic sizes are texts, as in `TensorSpec`."""

    name: str
    shape: tuple[int | str, ...]
    element: ElementType

    @property
    def empty(self) -> bool:
        """Whether the tensor is always empty; such tensors are not passed."""
        return 0 in self.shape


@dataclass(frozen=True)
class ExportArgument:
    """An argument of the entry: input number `input` or weight number `weight` (the other is -1).

    The tensor is passed unchanged or, with `pack`, packed into `bytes`; with `bytes` alone, a weight is copied to
    memory that is fast to read.
    """

    input: int
    weight: int
    pack: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class SizeSource:
    """The source of the size `name`: dim `dim` of input number `input`; with `input` -1, number `dim` of the call."""

    name: str
    input: int
    dim: int


@dataclass(frozen=True)
class ProgramInterface:
    """The interface of a program. `sources` are the graph input numbers of `inputs`, then of `weights`.

    `refusals` are the symbols that compiled code calls where eager would raise, with their error messages.
    """

    name: str
    inputs: tuple[ExportTensor, ...]
    weights: tuple[ExportTensor, ...]
    outputs: tuple[ExportTensor, ...]
    arguments: tuple[ExportArgument, ...]
    sizes: tuple[SizeSource, ...]
    sources: tuple[tuple[int, ...], tuple[int, ...]]
    refusals: tuple[tuple[str, str], ...]
    entry: str
    arena: int
    threads: int

    @property
    def packs(self) -> tuple[str, ...]:
        return tuple(argument.pack for argument in self.arguments if argument.pack)

    @property
    def arity(self) -> int:
        """The number of pointers and sizes that the entry takes."""
        crossing = sum(not output.empty for output in self.outputs)
        return len(self.arguments) + len(self.sizes) + crossing + bool(self.arena)


def interface_of(name: str, graph: Graph, artifact: Artifact, assignments: Sequence[Assignment]) -> ProgramInterface:
    """The interface for calls from C, under `name`, of the program `artifact`, which was compiled from `graph`.

    Raises `ExportError` for ops that need PyTorch at run time, and for inputs that C cannot provide.
    """
    check_name(name)
    reject_eager(assignments, artifact)
    inputs = [number for number, kind in enumerate(graph.kinds) if kind is NodeType.InputNode]
    read = dict.fromkeys(argument.source for argument in artifact.arguments)
    weights = [number for number in read if number not in inputs]
    places = {number: place for place, number in enumerate(inputs)}
    numbers = {number: place for place, number in enumerate(weights)}
    results = [op for op in graph.results if isinstance(op, Op)]
    specs = [TensorSpec(tuple(op.tensor_meta.shape), op.tensor_meta.dtype.value) for op in graph.placeholders]
    stables = [op.stable or op.name for op in graph.placeholders]
    return ProgramInterface(
        name,
        tuple(_tensor(stables[number], specs[number]) for number in inputs),
        tuple(_tensor(stables[number], specs[number]) for number in weights),
        tuple(_tensor(op.stable or op.name, spec) for op, spec in zip(results, artifact.results, strict=True)),
        tuple(_argument(argument, places, numbers) for argument in artifact.arguments),
        tuple(SizeSource(symbol.name, places.get(symbol.source, -1), symbol.index) for symbol in artifact.symbols),
        (tuple(inputs), tuple(weights)),
        tuple((call.symbol, _refusal(call)) for call in artifact.eager_calls),
        artifact.entry,
        artifact.arena,
        artifact.threads,
    )


def check_name(name: str) -> None:
    """Raises `ExportError` if `name` is not usable for functions and files in C and C++."""
    if not _NAME.fullmatch(name) or name in reserved_words() or len(name) > 64:
        todo = "choose a name of lower-case letters, digits and _ that C and its library do not use (--name)"
        raise ExportError(f"{name!r} is not a valid name for C functions", "the export", todo)


def c_name(text: str) -> str:
    """A valid C name made from any text."""
    found = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()[:48]
    found = found if found[:1].isalpha() else f"program_{found}".rstrip("_")
    return f"{found}_program" if found in reserved_words() else found


def reject_eager(assignments: Sequence[Assignment], artifact: Artifact) -> None:
    """Raises `ExportError` that lists the nodes that run in eager, and other parts that are not plain machine code."""
    nodes = [assignment for assignment in assignments if assignment.lowering == EAGER]
    if nodes:
        names = "\n".join(f"{each.node}: {each.reason}" for each in nodes)
        first = ", ".join(each.node for each in nodes[:3]) + (", …" if len(nodes) > 3 else "")
        todo = (
            "give these ops a lowering (docs/adding-an-operator.md), use other ops, or export the part of the program "
            "between them (`buddy-tui extract`)"
        )
        raise ExportError(f"{len(nodes)} nodes run in eager PyTorch: {first}", "the program", todo, names)
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


def _argument(found: EntryArgument, inputs: dict[int, int], weights: dict[int, int]) -> ExportArgument:
    weight = weights.get(found.source, -1)
    if weight < 0 and found.pack:
        raise ExportError(
            f"input {inputs[found.source]} is packed before the call, which is only allowed for weights",
            "the recipe",
            "switch off packing (option pack-weights=false of contractions-to-kernels and convolutions-to-kernels)",
        )
    copied = bool(found.pack) or (found.streamed and weight >= 0)
    sizes = [size for size in stored_shape(found.spec) if isinstance(size, int)]
    size = math.prod(sizes) * element_of(found.spec.dtype).bytes if copied else 0
    return ExportArgument(inputs.get(found.source, -1), weight, found.pack, size)


def _refusal(call: EagerCall) -> str:
    op = call.target.removesuffix(".default").split(".")[0]
    return f"{op}: only eager PyTorch computes this" if call.results else f"{op}: eager PyTorch raises an error here"

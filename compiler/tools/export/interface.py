"""What a program looks like from outside: its tensors, what its entry is called with, and what it needs besides."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import Assignment
from buddy.compiler.protocol.artifact import Argument as EntryArgument
from buddy.compiler.protocol.artifact import Artifact, EagerCall, TensorSpec
from buddy.compiler.protocol.recipe import EAGER
from buddy.compiler.tools.export.dtypes import Element, element_of, stored_shape
from buddy.compiler.tools.export.errors import ExportError
from buddy.compiler.tools.export.words import taken

if TYPE_CHECKING:
    from buddy.compiler.graph.graph import Graph

_NAME = re.compile(r"[a-z]\w*", re.ASCII)


@dataclass(frozen=True)
class Tensor:
    """A dense row-major tensor outside; sizes that only a call tells are texts, as in `TensorSpec`."""

    name: str
    shape: tuple[int | str, ...]
    element: Element

    @property
    def empty(self) -> bool:
        """Whether it never has elements: such tensors are passed to nobody."""
        return 0 in self.shape


@dataclass(frozen=True)
class Argument:
    """What the entry is called with: input number `input` or weight number `weight` (the other is -1).

    That is as it is or, with `pack`, packed into `bytes`; with `bytes` alone, a weight copied to where reading is fast.
    """

    input: int
    weight: int
    pack: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class SizeSource:
    """Where a call tells the size called `name`: dim `dim` of input number `input`, or a number of its own (-1)."""

    name: str
    input: int
    dim: int


@dataclass(frozen=True)
class Interface:
    """A program from outside. `sources` are the numbers, among the graph's inputs, of `inputs`, then of `weights`.

    `refusals` are the symbols that compiled code calls where eager would raise, each with what to say.
    """

    name: str
    inputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    arguments: tuple[Argument, ...]
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
        """How many pointers and sizes the entry takes."""
        crossing = sum(not output.empty for output in self.outputs)
        return len(self.arguments) + len(self.sizes) + crossing + bool(self.arena)


def interface_of(name: str, graph: Graph, artifact: Artifact, assignments: Sequence[Assignment]) -> Interface:
    """How the program `artifact`, compiled from `graph`, is called from C under `name`.

    Raises `ExportError` for ops that need PyTorch at run time, and for what C cannot tell it.
    """
    check_name(name)
    refuse_eager(assignments, artifact)
    inputs = [number for number, kind in enumerate(graph.kinds) if kind is NodeType.InputNode]
    read = dict.fromkeys(argument.source for argument in artifact.arguments)
    weights = [number for number in read if number not in inputs]
    places = {number: place for place, number in enumerate(inputs)}
    numbers = {number: place for place, number in enumerate(weights)}
    results = [op for op in graph.results if isinstance(op, Op)]
    specs = [TensorSpec(tuple(op.tensor_meta.shape), op.tensor_meta.dtype.value) for op in graph.placeholders]
    stables = [op.stable or op.name for op in graph.placeholders]
    return Interface(
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
    """Raises `ExportError` for what is no name of functions and files in C and C++."""
    if not _NAME.fullmatch(name) or name in taken() or len(name) > 64:
        todo = "choose a name of small letters, digits and _ that is no word of C or its library (--name)"
        raise ExportError(f"{name!r} can name no C functions", "the export", todo)


def c_name(text: str) -> str:
    """A name for C made of any text."""
    found = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()[:48]
    found = found if found[:1].isalpha() else f"program_{found}".rstrip("_")
    return f"{found}_program" if found in taken() else found


def refuse_eager(assignments: Sequence[Assignment], artifact: Artifact) -> None:
    """Raises `ExportError` that names the nodes which PyTorch runs, and what else is no plain machine code."""
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
        raise ExportError("this code counts time or shows values", "the recipe", "export the program without counters")


def _tensor(name: str, spec: TensorSpec) -> Tensor:
    return Tensor(name, tuple(s if isinstance(s, int) else str(s) for s in stored_shape(spec)), element_of(spec.dtype))


def _argument(found: EntryArgument, inputs: dict[int, int], weights: dict[int, int]) -> Argument:
    weight = weights.get(found.source, -1)
    if weight < 0 and found.pack:
        raise ExportError(
            f"input {inputs[found.source]} is packed before the call, as only weights are",
            "the recipe",
            "switch off packing (option pack-weights=false of contractions-to-kernels and convolutions-to-kernels)",
        )
    copied = bool(found.pack) or (found.streamed and weight >= 0)
    sizes = [size for size in stored_shape(found.spec) if isinstance(size, int)]
    size = math.prod(sizes) * element_of(found.spec.dtype).bytes if copied else 0
    return Argument(inputs.get(found.source, -1), weight, found.pack, size)


def _refusal(call: EagerCall) -> str:
    op = call.target.removesuffix(".default").split(".")[0]
    return f"{op}: only eager PyTorch computes this" if call.results else f"{op}: eager PyTorch raises an error here"

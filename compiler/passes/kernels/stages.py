"""Finds the marked ops around a contraction or convolution that its kernel absorbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import root_of, zero_fill_before
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError
from buddy.compiler.passes.kernels.epilogue import (
    EPILOGUE,
    PROLOGUE,
    EpilogueOp,
    Extent,
    ResultSpec,
    boundaries,
    is_marked,
    match_stage,
    operand_number,
)
from buddy.compiler.passes.kernels.weights import drop_dead_views

C = 2  # the operand number of a contraction's sums


class _Looped(Protocol):
    @property
    def loops(self) -> tuple[Loop, ...]: ...


# A contraction or convolution: it has loops over C, with vectors along the last one.
Product = TypeVar("Product", bound=_Looped)
Cut = Callable[[Product, Sequence[int]], Product]


@dataclass(frozen=True)
class FusedNeighbours(Generic[Product]):
    """The ops around `contraction` that its kernel absorbs: `taken`, which `erase` removes; `notes` describe them.

    `locations` are those of the ops whose work the kernel does, without a fill with zeros.
    """

    contraction: Product
    spec: ResultSpec
    taken: tuple[Any, ...]
    notes: tuple[str, ...]
    locations: tuple[Any, ...] = field(default=())

    def erase(self) -> None:
        """Erases the absorbed ops, and the views and allocations that only they used."""
        for op in self.taken:
            operands = [value for value in op.operands if isinstance(value.type, ir.MemRefType)]
            op.erase()
            for value in operands:
                drop_unused(value)


def neighbours(op: Any, contraction: Product, cut: Cut[Product]) -> FusedNeighbours[Product]:
    """Returns the ops around `op` (on memrefs) that its kernel absorbs.

    Does not erase them: the kernel may be rejected. `cut` splits the contraction's loops at some strides in C, if
    possible.
    """
    result, notes, taken = op.operands[C], list[str](), list[Any]()
    prologue = _prologue_of(op, PROLOGUE)
    epilogue = _epilogue_of(op, EPILOGUE)
    stages: dict[str, EpilogueOp | None] = {PROLOGUE: None, EPILOGUE: None}
    for mark, other in ((PROLOGUE, prologue), (EPILOGUE, epilogue)):
        if other is None:
            continue
        try:
            contraction, stages = _with_stage(cut, contraction, stages, mark, other, result)
        except UnsupportedError as reason:
            notes.append(f"{other.name} not fused: {reason}")
            del other.attributes[mark]
            continue
        taken.append(other)
        notes.append(_describe(mark, other))
    fill = None if stages[PROLOGUE] else zero_fill_before(op, result)
    accumulate = fill is None and stages[PROLOGUE] is None
    if accumulate:
        notes.append("adds to C")
    strides = tuple(loop.strides[C] for loop in contraction.loops)
    spec = ResultSpec(strides, accumulate, stages[PROLOGUE], stages[EPILOGUE])
    locations = tuple(other.location for other in taken)
    return FusedNeighbours(contraction, spec, (*taken, *([] if fill is None else [fill])), tuple(notes), locations)


def extents(contraction: _Looped) -> list[Extent]:
    return [(loop.size, loop.strides[C]) for loop in contraction.loops]


def _with_stage(
    cut: Cut[Product], contraction: Product, stages: dict[str, EpilogueOp | None], mark: str, op: Any, result: Any
) -> tuple[Product, dict[str, EpilogueOp | None]]:
    """Returns the contraction split for `op` too, and all stages along its loops."""
    kernel_operand = operand_number(op, result)
    contraction = cut(contraction, boundaries(op, kernel_operand))
    found = {mark: match_stage(op, kernel_operand, extents(contraction))}
    for other, stage in stages.items():
        if stage is not None:
            found[other] = match_stage(stage.op.op, stage.kernel_operand, extents(contraction))
    return contraction, {**stages, **found}


def _describe(mark: str, op: Any) -> str:
    count = len(op.regions[0].blocks[0].operations) - 1
    kind = "starts from" if mark == PROLOGUE else "epilogue of"
    return f"{kind} {op.name}" + (f" ({count} scalar op{'s' if count != 1 else ''})" if count else "")


def _epilogue_of(op: Any, mark: str) -> Any | None:
    """Returns the op with `mark` that reads the result of `op`."""
    result = op.operands[C]
    return next((user for user in _users(root_of(result)) if is_marked(user, mark, result)), None)


def _prologue_of(op: Any, mark: str) -> Any | None:
    """Returns the op with `mark` directly before `op` that writes its result."""
    previous = None
    for user in _users(root_of(op.operands[C])):
        nearer = previous is None or previous.is_before_in_block(user)
        if user.block == op.block and user != op and user.is_before_in_block(op) and nearer:
            previous = user
    return previous if previous is not None and is_marked(previous, mark, op.operands[C]) else None


def _users(value: Any) -> Sequence[Any]:
    """Returns the ops that use `value`, also through views of it."""
    found: list[Any] = []
    for use in value.uses:
        owner = use.owner.operation
        if owner.name.startswith("memref.") and len(owner.results) == 1:
            found += _users(owner.results[0])
        else:
            found.append(owner)
    return found


def drop_unused(value: Any) -> None:
    """Erases the views that produce `value`, and their allocation, if they are unused."""
    root = root_of(value)
    drop_dead_views(value)
    allocated = isinstance(root, ir.OpResult) and root.owner.name == "memref.alloc"
    if allocated and not any(True for _ in root.uses):
        root.owner.erase()

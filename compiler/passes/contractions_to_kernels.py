"""`contractions-to-kernels`: replaces contractions on memrefs by calls of register-blocked kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from buddy.compiler.mlir.walk import nested_ops, zero_fill_before
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.blocking import GemmBlocking, RequestedBlocking, choose_gemm_blocking, reads_in_place
from buddy.compiler.passes.kernels.calls import KernelCalls, check_pack_limit, invariant_loop
from buddy.compiler.passes.kernels.contraction import (
    NAMED_CONTRACTIONS,
    Contraction,
    analyse_contraction,
    is_contraction,
    split_contraction,
)
from buddy.compiler.passes.kernels.epilogue import ResultSpec
from buddy.compiler.passes.kernels.gemm import kernel_function
from buddy.compiler.passes.kernels.gemm.fixed_point import (
    analyse_grouped,
    fixed_point_blocking,
    grouped_function,
    is_grouped_product,
    packing_of,
)
from buddy.compiler.passes.kernels.neighbours import FusedNeighbours, find_neighbours
from buddy.compiler.passes.kernels.packing import Panels, panels_of
from buddy.compiler.passes.kernels.weights import drop_dead_views
from buddy.compiler.protocol.pass_facts import DEFAULT_PACK_LIMIT

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir


@register
@dataclass(frozen=True)
class ContractionsToKernels(MlirPass):
    """Emits one kernel function per distinct contraction.

    With `pack_weights`, parameters are packed before the program is called. Weights of more than `pack_limit` MiB are
    not packed (0: no limit), because the copies take as much memory again.

    `rows` and `vectors` are the size of the register block of C, and `depth` is the number of steps of K that are
    accumulated before the block is stored; 0 selects a size by a cost model. They do not apply to contractions with few
    rows whose B is read in place: dot products, and rows of B that are streamed. On tiles of AMX, the block has a fixed
    size.
    """

    name: ClassVar[str] = "contractions-to-kernels"
    summary: ClassVar[str] = "replace matmuls and other contractions on memrefs by calls of register-blocked kernels"

    pack_weights: bool = True
    pack_limit: int = DEFAULT_PACK_LIMIT
    rows: int = 0
    vectors: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        check_pack_limit(self.name, self.pack_limit)
        for name in ("rows", "vectors", "depth"):
            if getattr(self, name) < 0:
                raise ValueError(f"{self.name}: {name} must be 0 (automatic) or more, not {getattr(self, name)}")

    def run(self, root: ir.Operation, context: PassContext) -> None:
        requested = RequestedBlocking(self.rows, self.vectors, self.depth)
        calls = KernelCalls(root, context.locations, self.pack_weights, self.pack_limit)
        # The lists are complete before the first rewrite, which may erase neighbouring ops.
        ops = [op for op in nested_ops(root) if op.name.startswith("linalg.") and not len(op.results)]
        grouped_products = [op for op in ops if is_grouped_product(op)]
        contractions = [(op, is_contraction(op)) for op in ops if op.name in NAMED_CONTRACTIONS or is_contraction(op)]
        for op, is_supported in contractions:
            try:
                if not is_supported:
                    raise UnsupportedError("no kernel multiplies and adds these element types")
                _rewrite(op, calls, context, requested)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"{op.name} unchanged: {reason}")
        for op in grouped_products:
            try:
                _rewrite_grouped(op, calls, context)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"product with 4-bit weights unchanged: {reason}")
        calls.finish()


def _rewrite_grouped(op: ir.Operation, calls: KernelCalls, context: PassContext) -> None:
    """Replaces a product with 4-bit weights in groups by a call. Raises `UnsupportedError` with the reason."""
    grouped = analyse_grouped(op)
    contraction = grouped.contraction
    blocking = fixed_point_blocking(contraction, context.target, bits=4)
    if blocking is None:
        raise UnsupportedError("no kernel of this target reads 4-bit weights, or there are too many rows")
    rows, weights, scales, result = op.operands
    weights_parameter, scales_parameter = (calls.packable_parameter(value) for value in (weights, scales))
    if weights_parameter is None or scales_parameter is None:
        raise UnsupportedError("its weights or scales cannot be packed before the program is called")
    packed = [
        calls.packed(weights_parameter, packing_of(contraction, blocking, bits=4), op.location),
        calls.packed(scales_parameter, grouped.scale_panels(blocking), op.location),
    ]
    fill = zero_fill_before(op, result)
    spec = ResultSpec(grouped.result_strides, accumulate=fill is None)
    calls.call(
        op, (grouped, blocking, spec.key), f"int4_{_symbol(contraction, spec)}", [rows, *packed, result], op.location,
        lambda name, types: grouped_function(name, types, grouped, blocking, spec),
    )  # fmt: skip
    shape = f"{contraction.m.size}x{contraction.n.size}x{contraction.depth}"
    description = f"{shape} f32 and 4-bit integers in groups of {grouped.group_size}: {blocking.describe()}"
    context.remark(ContractionsToKernels.name, op.location, description)
    op.erase()
    if fill is not None:
        fill.erase()
    for value in (weights, scales):
        drop_dead_views(value)


def _rewrite(op: ir.Operation, calls: KernelCalls, context: PassContext, requested: RequestedBlocking) -> None:
    """Replaces `op`, and the ops that its kernel absorbs, by a call. Raises `UnsupportedError` with the reason."""
    fused = find_neighbours(op, analyse_contraction(op), split_contraction)
    contraction, spec = fused.contraction, fused.spec
    first, second, result = op.operands
    inputs = [first, second]
    b_number = 0 if contraction.swapped else 1
    b = inputs[b_number]
    parameter = calls.packable_parameter(b)
    fixed_point = None if parameter is None else fixed_point_blocking(contraction, context.target)
    if fixed_point is None and reads_in_place(contraction):
        # B is not packed, even if it could be.
        if (streamed := calls.parameter(b)) is not None:
            calls.mark_streamed(streamed)
        parameter = None
    b_source: Literal["packed"] | None = None if parameter is None else "packed"
    blocking = fixed_point or choose_gemm_blocking(contraction, context.target, b_source, requested)
    if parameter is not None:
        packing = packing_of(contraction, blocking, bits=8) if fixed_point else panels_of(contraction, blocking)
        inputs[b_number] = calls.packed(parameter, packing, op.location)
    location = context.locations.union([op.location, *fused.locations])
    packs_panels = parameter is None and blocking.b_source == "panel" and not blocking.packs_a
    if packs_panels and (loop := invariant_loop(op, b, calls.root)) is not None:
        # The kernel would pack the same panels again in each iteration. It reads the panels that a kernel of another
        # loop over rows of this product reads, if there is such a kernel.
        earlier_packing = calls.requested_packing(loop, b)
        if isinstance(earlier_packing, Panels):
            requested = replace(requested, vectors=earlier_packing.columns // earlier_packing.lanes)
        blocking = choose_gemm_blocking(contraction, context.target, "packed", requested)
        inputs[b_number] = calls.pack_before_loop(loop, b, panels_of(contraction, blocking), location)
    calls.call(
        op, (contraction, blocking, spec.key), _symbol(contraction, spec), [*inputs, *spec.buffers(result)], location,
        lambda name, types: kernel_function(name, types, contraction, blocking, spec),
    )  # fmt: skip
    context.remark(ContractionsToKernels.name, location, _describe(contraction, blocking, fused))
    op.erase()
    fused.erase()
    drop_dead_views(b)


def _symbol(contraction: Contraction, spec: ResultSpec) -> str:
    """Returns the start of the kernel's name, such as `matmul_add_8x64x16x32_epilogue`: outer loops, M, K, N."""
    prefix = "matmul_add" if spec.accumulate or spec.prologue else "matmul"
    batch = "".join(f"{loop.size}x" for loop in contraction.outer)
    suffix = "_epilogue" if spec.epilogue else ""
    return f"{prefix}_{batch}{contraction.m.size}x{contraction.depth}x{contraction.n.size}{suffix}"


def _describe(contraction: Contraction, blocking: GemmBlocking, fused: FusedNeighbours[Contraction]) -> str:
    """Returns the text of a remark: sizes M, N and K, narrow element types, the blocking and the absorbed ops."""
    batch = "x".join(str(loop.size) for loop in contraction.outer)
    shape = f"{contraction.m.size}x{contraction.n.size}x{contraction.depth}" + (f" over {batch}" if batch else "")
    types = "" if set(contraction.input_elements) <= {"f32", "f64"} else f" {contraction.describe_types()}"
    return ", ".join([f"{shape}{types}: {blocking.describe()}", *fused.notes])

"""Emits one MLIR function per convolution; chooses its kernel and the packing of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import func, ir, memref
from buddy.compiler.passes.kernels.access import UnsupportedError, flatten
from buddy.compiler.passes.kernels.calls import argument_types, flat_operands
from buddy.compiler.passes.kernels.conv import kernels, shape
from buddy.compiler.passes.kernels.conv.shape import Convolution
from buddy.compiler.passes.kernels.conv.winograd import blocking as winograd
from buddy.compiler.passes.kernels.conv.winograd.kernel import Winograd, weights_of
from buddy.compiler.passes.kernels.emit import KernelEmitter
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultSpec
from buddy.compiler.passes.kernels.packing import ALIGNMENT, Packing
from buddy.compiler.support.target import Target


@dataclass(frozen=True)
class BlockedConvolution:
    """A convolution with its blocking."""

    conv: Convolution
    blocking: shape.ConvBlocking | kernels.DepthwiseBlocking | winograd.WinogradBlocking

    @property
    def form(self) -> Packing:
        """Returns the packing of the weights."""
        if isinstance(self.blocking, winograd.WinogradBlocking):
            return weights_of(self.conv, self.blocking)
        if isinstance(self.blocking, kernels.DepthwiseBlocking):
            return kernels.depthwise_panels(self.conv, self.blocking)
        return kernels.gemm_panels(self.conv, self.blocking)

    @property
    def reads_raw(self) -> bool:
        """True if the kernel also reads the unpacked weights."""
        return isinstance(self.blocking, winograd.WinogradBlocking)

    @property
    def symbol(self) -> str:
        conv, verb = self.conv, "winograd" if self.reads_raw else "depthwise" if self.conv.depthwise else "conv"
        window = "x".join(str(loop.size) for loop in conv.k) or "1"
        channels = conv.groups[0].size if conv.depthwise else conv.n.size
        return f"{verb}_{conv.lines.size}x{conv.pixels.size}x{channels}_{window}"

    def describe(self) -> str:
        return f"{self.conv.describe()}: {self.blocking.describe()}"


def choose(conv: Convolution, target: Target) -> BlockedConvolution:
    """Returns the kernel that computes the direct products on `target`."""
    return BlockedConvolution(conv, kernels.choose(conv, target) if conv.depthwise else shape.choose(conv, target))


def choose_winograd(conv: Convolution, target: Target, outputs: int, least: float, packed: bool) -> BlockedConvolution:
    """Returns Winograd's kernel for tiles of `outputs` x `outputs`, with weights `packed` ahead or in each call.

    Raises `UnsupportedError` if it does not fit, or would not be faster by the factor `least`.
    """
    winograd.check(conv)
    gain = winograd.gain(conv, outputs, target, packed)
    if gain < least:
        raise UnsupportedError(f"it would take {1 / gain:.2f} of the time")
    return BlockedConvolution(conv, winograd.choose(conv, outputs, target))


def kernel_function(
    name: str, types: Sequence[Any], chosen: BlockedConvolution, spec: ResultSpec, packed: bool
) -> func.FuncOp:
    """Emits a private function (A, B, buffers of `spec`) at the insertion point; callers pass memrefs of `types`.

    B has the shape `chosen.form.shape` if `packed`, and the unpacked weights follow it if `chosen.reads_raw`; otherwise
    the function packs B in each call. Strides in `spec` are along `chosen.conv.loops`.
    """
    function = func.FuncOp(name, (argument_types(types), []), visibility="private")
    entry = function.add_entry_block()
    with ir.InsertionPoint(entry):
        end = func.ReturnOp([])
    with ir.InsertionPoint(end):
        a, b, *buffers = flat_operands(entry.arguments, types)
        raw = buffers.pop(0) if packed and chosen.reads_raw else b
        e, conv, block = KernelEmitter(entry), chosen.conv, chosen.blocking
        results = KernelResults(e, spec, buffers, block.lanes, ir.Type.parse(conv.element))
        scratch = None if packed else _packed_here(e, chosen.form, b)
        weights = b if scratch is None else flatten(scratch)
        if isinstance(block, winograd.WinogradBlocking):
            Winograd(e, a, weights, raw, results, conv, block).emit()
        elif isinstance(block, kernels.DepthwiseBlocking):
            kernels.Depthwise(e, a, weights, results, conv, block).emit()
        else:
            kernels.ImplicitGemm(e, a, weights, results, conv, block).emit()
        if scratch is not None:
            memref.dealloc(scratch)
    return function


def _packed_here(e: KernelEmitter, form: Packing, weights: Any) -> Any:
    type_ = ir.MemRefType.get(list(form.shape), weights.type.element_type)
    scratch = memref.alloc(type_, [], [], alignment=ALIGNMENT)
    form.fill(e, weights, flatten(scratch))
    return scratch

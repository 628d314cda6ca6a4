"""Wraps a function of a file in one with tensors, or buffers, as arguments and results.

Numbers are passed and returned in tensors without dims. On buffers, a written argument is copied to an out-parameter,
so that the inputs of a run are not modified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.importers.mlir_files.signatures import NotRunnableError, SignatureValue
from buddy.compiler.mlir.bindings import arith, func, ir, memref, passmanager, tensor
from buddy.compiler.ops.utils import mlir_element_type_get

WRAPPER = "program"
# Propagates sizes from callers to callees, and folds ops whose operands become constants.
_SPECIALIZE = "builtin.module(inline,canonicalize,cse,canonicalize,symbol-dce)"


@dataclass(frozen=True)
class FunctionSignature:
    """The arguments and results of a function.

    `written` are the numbers of the buffers and pointers that it may write to.
    """

    name: str
    arguments: tuple[SignatureValue, ...]
    results: tuple[SignatureValue, ...]
    written: tuple[int, ...] = ()

    @property
    def on_buffers(self) -> bool:
        values = (*self.arguments, *self.results)
        holders = {value.holder for value in values}
        if "tensor" in holders and holders & {"buffer", "pointer"}:
            raise NotRunnableError(
                f"@{self.name} has both tensors and buffers in its signature: use only one of the two"
            )
        return "tensor" not in holders

    @property
    def outs(self) -> tuple[SignatureValue, ...]:
        """All outputs of a run: results, then the written buffers."""
        return (*self.results, *(self.arguments[place] for place in self.written))

    @property
    def fits(self) -> bool:
        """Whether the function can be called without a wrapper."""
        values = (*self.arguments, *self.results)
        return not any(value.holder != "tensor" or value.is_dynamic for value in values) and not self.written


def wrap(module: Any, signature: FunctionSignature, shapes: Sequence[tuple[int, ...]]) -> tuple[SignatureValue, ...]:
    """Adds the function `WRAPPER` to `module`; `shapes` are those of the arguments. Returns its outputs.

    Raises `NotRunnableError` if sizes of results stay dynamic.
    """
    with module.context, ir.Location.unknown():
        if not signature.on_buffers:
            _wrap_tensors(module, signature, shapes)
            _specialize(module, signature)
            return _results(module, signature)
        if any(result.is_dynamic for result in signature.results):
            raise NotRunnableError(f"the sizes of the results of @{signature.name} are known only after the run")
        _wrap_buffers(module, signature, shapes)
        _specialize(module, signature)
        return tuple(_static_output(out, shapes, signature) for out in signature.outs)


def _static_output(
    out: SignatureValue, shapes: Sequence[tuple[int, ...]], signature: FunctionSignature
) -> SignatureValue:
    if out not in signature.arguments:
        return out
    shape = shapes[signature.arguments.index(out)]
    return SignatureValue(out.name, out.holder, shape, out.dtype, out.kind)


def _element(value: SignatureValue) -> Any:
    """The element type in the function: `index` is kept, since it is 64 bits in memory."""
    if value.holder in ("tensor", "buffer"):
        return value.kind.element_type
    return mlir_element_type_get(value.dtype)


def _call(signature: FunctionSignature, operands: Sequence[Any], module: Any) -> list[Any]:
    kinds = [value.kind for value in signature.results]
    callee = ir.FlatSymbolRefAttr.get(signature.name)
    if _function(module, signature.name).name == "func.func":
        return list(func.CallOp(kinds, callee, list(operands)).results)
    sizes = ir.DenseI32ArrayAttr.get([len(operands), 0])
    attributes = {"callee": callee, "operandSegmentSizes": sizes, "op_bundle_sizes": ir.DenseI32ArrayAttr.get([])}
    return list(ir.Operation.create("llvm.call", kinds, list(operands), attributes).results)


def _function(module: Any, name: str) -> Any:
    operations = (op.operation for op in module.body if "sym_name" in op.operation.attributes)
    return next(op for op in operations if str(ir.StringAttr(op.attributes["sym_name"]).value) == name)


def _as_number(value: SignatureValue, loaded: Any) -> Any:
    return arith.IndexCastOp(value.kind, loaded).result if isinstance(value.kind, ir.IndexType) else loaded


def _from_number(value: SignatureValue, result: Any) -> Any:
    is_index = isinstance(value.kind, ir.IndexType)
    return arith.IndexCastOp(mlir_element_type_get(TensorDType.Int64), result).result if is_index else result


# ---- tensors ---------------------------------------------------------------------------------------------------------


def _wrap_tensors(module: Any, signature: FunctionSignature, shapes: Sequence[tuple[int, ...]]) -> None:
    inputs = [
        ir.RankedTensorType.get(shape, _element(value))
        for value, shape in zip(signature.arguments, shapes, strict=True)
    ]
    results = [v.kind if v.holder == "tensor" else ir.RankedTensorType.get([], _element(v)) for v in signature.results]
    with ir.InsertionPoint(module.body):
        wrapper = func.FuncOp(WRAPPER, ir.FunctionType.get(inputs, results))
    block = wrapper.add_entry_block()
    with ir.InsertionPoint(block):
        pairs = zip(signature.arguments, block.arguments, strict=True)
        found = _call(signature, [_from_tensor(value, argument) for value, argument in pairs], module)
        func.ReturnOp([_to_tensor(v, result) for v, result in zip(signature.results, found, strict=True)])


def _from_tensor(value: SignatureValue, argument: Any) -> Any:
    if value.holder == "number":
        return _as_number(value, tensor.ExtractOp(argument, []).result)
    return tensor.CastOp(value.kind, argument).result if value.kind != argument.type else argument


def _to_tensor(value: SignatureValue, result: Any) -> Any:
    if value.holder != "number":
        return result
    return tensor.FromElementsOp(ir.RankedTensorType.get([], _element(value)), [_from_number(value, result)]).result


def _results(module: Any, signature: FunctionSignature) -> tuple[SignatureValue, ...]:
    """The wrapper's results after propagation of sizes; also updates its own type."""
    wrapper = _function(module, WRAPPER)
    returned = list(wrapper.regions[0].blocks[0].operations)[-1].operation
    for place, operand in enumerate(list(returned.operands)):
        returned.operands[place] = _without_cast(operand)
    kinds = [operand.type for operand in returned.operands]
    inputs = [argument.type for argument in wrapper.regions[0].blocks[0].arguments]
    wrapper.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, kinds))
    outs = [_resized(value, kind) for value, kind in zip(signature.results, kinds, strict=True)]
    if any(out.is_dynamic for out in outs):
        what = f"the sizes of the results of @{signature.name} do not follow from those of its arguments"
        raise NotRunnableError(f"{what}; they are known only after the run")
    return tuple(outs)


def _specialize(module: Any, signature: FunctionSignature) -> None:
    """Propagates the sizes of the wrapper's arguments into its callee, if the file has dynamic sizes."""
    if not any(value.is_dynamic for value in (*signature.arguments, *signature.results)):
        return
    for op in module.body:
        if op.operation.name == "func.func" and op.operation.attributes["sym_name"].value != WRAPPER:
            op.operation.attributes["sym_visibility"] = ir.StringAttr.get("private")
    passmanager.PassManager.parse(_SPECIALIZE).run(module.operation)


def _without_cast(value: Any) -> Any:
    """The operand of a cast to a type with dynamic sizes, which has more static ones."""
    owner = value.owner
    if isinstance(value, ir.OpResult) and owner.name == "tensor.cast" and not value.type.has_static_shape:
        return owner.operands[0]
    return value


def _resized(value: SignatureValue, kind: Any) -> SignatureValue:
    shape = tuple(None if kind.is_dynamic_dim(i) else kind.get_dim_size(i) for i in range(kind.rank))
    return SignatureValue(value.name, "tensor", shape, value.dtype, kind)


# ---- buffers ---------------------------------------------------------------------------------------------------------


def _wrap_buffers(module: Any, signature: FunctionSignature, shapes: Sequence[tuple[int, ...]]) -> None:
    """Adds a wrapper with the arguments, then an out-parameter for each result and each written buffer."""
    values = list(zip(signature.arguments, shapes, strict=True))
    results = [(value, value.shape) for value in signature.results]
    copies = [values[place] for place in signature.written]
    inputs = [ir.MemRefType.get(shape, _element(value)) for value, shape in (*values, *results, *copies)]
    with ir.InsertionPoint(module.body):
        wrapper = func.FuncOp(WRAPPER, ir.FunctionType.get(inputs, []))
    block = wrapper.add_entry_block()
    given = list(block.arguments)
    outs = given[len(values) :]
    with ir.InsertionPoint(block):
        own = dict(zip(signature.written, outs[len(results) :], strict=True))
        for place, copy in own.items():
            memref.CopyOp(given[place], copy)
        operands = [_from_buffer(value, own.get(i, given[i])) for i, value in enumerate(signature.arguments)]
        for (value, _), result, out in zip(results, _call(signature, operands, module), outs, strict=False):
            _to_buffer(value, result, out)
        func.ReturnOp([])


def _from_buffer(value: SignatureValue, buffer: Any) -> Any:
    if value.holder == "number":
        return _as_number(value, memref.LoadOp(buffer, []).result)
    if value.holder == "buffer":
        return memref.CastOp(value.kind, buffer).result if value.kind != buffer.type else buffer
    address = memref.ExtractAlignedPointerAsIndexOp(buffer).result
    word = arith.IndexCastOp(mlir_element_type_get(TensorDType.Int64), address).result
    return ir.Operation.create("llvm.inttoptr", [value.kind], [word]).result


def _to_buffer(value: SignatureValue, result: Any, out: Any) -> None:
    if value.holder == "number":
        memref.StoreOp(_from_number(value, result), out, [])
    else:
        memref.CopyOp(result, out)

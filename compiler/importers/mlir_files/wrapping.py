"""Wraps a function of a file in one whose arguments and results are all tensors, or all buffers.

Numbers are passed and returned in tensors or buffers without dims. On buffers, a written argument is copied to an
out-parameter, so that the inputs of a run are not modified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.importers.mlir_files.signatures import NotRunnableError, SignatureValue
from buddy.compiler.mlir.bindings import arith, func, ir, memref, passmanager, tensor
from buddy.compiler.ops.utils import mlir_element_type_get

# The name of the function that the wrapper adds.
WRAPPER = "program"
# Propagates sizes from callers to callees, and folds ops whose operands become constants.
_SPECIALIZE = "builtin.module(inline,canonicalize,cse,canonicalize,symbol-dce)"


@dataclass(frozen=True)
class FunctionSignature:
    """The arguments and results of a function.

    `written` are the argument indices of the buffers and pointers that the function may write to.
    """

    name: str
    arguments: tuple[SignatureValue, ...]
    results: tuple[SignatureValue, ...]
    written: tuple[int, ...] = ()

    @property
    def on_buffers(self) -> bool:
        """Whether no argument or result is a tensor. Raises `NotRunnableError` for a mix of tensors and buffers."""
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
        return (*self.results, *(self.arguments[index] for index in self.written))

    @property
    def needs_no_wrapper(self) -> bool:
        """Whether the function can be called directly: it has only static tensors, and writes to no argument."""
        values = (*self.arguments, *self.results)
        return not any(value.holder != "tensor" or value.is_dynamic for value in values) and not self.written


def wrap(
    module: ir.Module, signature: FunctionSignature, shapes: Sequence[tuple[int, ...]]
) -> tuple[SignatureValue, ...]:
    """Adds the function `WRAPPER` to `module` and returns its outputs; `shapes` are those of the arguments.

    Raises `NotRunnableError` if sizes of results stay dynamic, and for a mix of tensors and buffers.
    """
    with module.context, ir.Location.unknown():
        if not signature.on_buffers:
            _wrap_tensors(module, signature, shapes)
            _specialize(module, signature)
            return _set_result_types(module, signature)
        if any(result.is_dynamic for result in signature.results):
            raise NotRunnableError(f"the sizes of the results of @{signature.name} are known only after the run")
        _wrap_buffers(module, signature, shapes)
        _specialize(module, signature)
        return tuple(_static_output(out, shapes, signature) for out in signature.outs)


def _static_output(
    out: SignatureValue, shapes: Sequence[tuple[int, ...]], signature: FunctionSignature
) -> SignatureValue:
    """Returns an output with its static shape; that of a written argument is in `shapes`, those of the arguments."""
    if out not in signature.arguments:
        return out
    shape = shapes[signature.arguments.index(out)]
    return replace(out, shape=shape)


def _element_type(value: SignatureValue) -> ir.Type:
    """Returns the element type in the wrapper: that of a tensor or buffer, else `value.dtype` (i64 for `index`)."""
    if value.holder in ("tensor", "buffer"):
        return value.mlir_type.element_type
    return mlir_element_type_get(value.dtype)


def _insert_call(signature: FunctionSignature, operands: Sequence[ir.Value], module: ir.Module) -> list[ir.Value]:
    """Inserts a call of the function, by `func.call` or `llvm.call`; returns its results."""
    types = [value.mlir_type for value in signature.results]
    callee = ir.FlatSymbolRefAttr.get(signature.name)
    if _find_function(module, signature.name).name == "func.func":
        return list(func.CallOp(types, callee, list(operands)).results)
    sizes = ir.DenseI32ArrayAttr.get([len(operands), 0])
    attributes = {"callee": callee, "operandSegmentSizes": sizes, "op_bundle_sizes": ir.DenseI32ArrayAttr.get([])}
    return list(ir.Operation.create("llvm.call", types, list(operands), attributes).results)


def _find_function(module: ir.Module, name: str) -> ir.Operation:
    operations = (op.operation for op in module.body if "sym_name" in op.operation.attributes)
    return next(op for op in operations if str(ir.StringAttr(op.attributes["sym_name"]).value) == name)


def _as_number(value: SignatureValue, loaded: ir.Value) -> ir.Value:
    """Converts an integer that the wrapper has loaded to the type of `value`, which may be `index`."""
    return arith.IndexCastOp(value.mlir_type, loaded).result if isinstance(value.mlir_type, ir.IndexType) else loaded


def _from_number(value: SignatureValue, result: ir.Value) -> ir.Value:
    """Converts a result of the function to an integer that the wrapper can store: `index` becomes i64."""
    is_index = isinstance(value.mlir_type, ir.IndexType)
    return arith.IndexCastOp(mlir_element_type_get(TensorDType.Int64), result).result if is_index else result


# ---- tensors ---------------------------------------------------------------------------------------------------------


def _wrap_tensors(module: ir.Module, signature: FunctionSignature, shapes: Sequence[tuple[int, ...]]) -> None:
    """Adds a wrapper whose arguments and results are tensors."""
    inputs = [
        ir.RankedTensorType.get(shape, _element_type(value))
        for value, shape in zip(signature.arguments, shapes, strict=True)
    ]
    results = [
        value.mlir_type if value.holder == "tensor" else ir.RankedTensorType.get([], _element_type(value))
        for value in signature.results
    ]
    with ir.InsertionPoint(module.body):
        wrapper = func.FuncOp(WRAPPER, ir.FunctionType.get(inputs, results))
    block = wrapper.add_entry_block()
    with ir.InsertionPoint(block):
        pairs = zip(signature.arguments, block.arguments, strict=True)
        call_results = _insert_call(signature, [_from_tensor(value, argument) for value, argument in pairs], module)
        func.ReturnOp([_to_tensor(v, result) for v, result in zip(signature.results, call_results, strict=True)])


def _from_tensor(value: SignatureValue, argument: ir.Value) -> ir.Value:
    """Converts an argument of the wrapper to that of the function."""
    if value.holder == "number":
        return _as_number(value, tensor.ExtractOp(argument, []).result)
    return tensor.CastOp(value.mlir_type, argument).result if value.mlir_type != argument.type else argument


def _to_tensor(value: SignatureValue, result: ir.Value) -> ir.Value:
    """Converts a result of the function to that of the wrapper."""
    if value.holder != "number":
        return result
    return tensor.FromElementsOp(
        ir.RankedTensorType.get([], _element_type(value)), [_from_number(value, result)]
    ).result


def _set_result_types(module: ir.Module, signature: FunctionSignature) -> tuple[SignatureValue, ...]:
    """Sets the wrapper's type to one with the propagated sizes, and returns its results.

    Raises `NotRunnableError` if a size is still dynamic.
    """
    wrapper = _find_function(module, WRAPPER)
    returned = list(wrapper.regions[0].blocks[0].operations)[-1].operation
    for index, operand in enumerate(list(returned.operands)):
        returned.operands[index] = _without_cast(operand)
    types = [operand.type for operand in returned.operands]
    inputs = [argument.type for argument in wrapper.regions[0].blocks[0].arguments]
    wrapper.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types))
    outs = [_resized(value, mlir_type) for value, mlir_type in zip(signature.results, types, strict=True)]
    if any(out.is_dynamic for out in outs):
        what = f"the sizes of the results of @{signature.name} do not follow from those of its arguments"
        raise NotRunnableError(f"{what}; they are known only after the run")
    return tuple(outs)


def _specialize(module: ir.Module, signature: FunctionSignature) -> None:
    """Propagates the sizes of the wrapper's arguments into its callee, if the file has dynamic sizes."""
    if not any(value.is_dynamic for value in (*signature.arguments, *signature.results)):
        return
    for op in module.body:
        if op.operation.name == "func.func" and op.operation.attributes["sym_name"].value != WRAPPER:
            op.operation.attributes["sym_visibility"] = ir.StringAttr.get("private")
    passmanager.PassManager.parse(_SPECIALIZE).run(module.operation)


def _without_cast(value: ir.Value) -> ir.Value:
    """Returns the operand of the cast if `value` is the result of a cast to dynamic sizes, else `value`."""
    owner = value.owner
    if isinstance(value, ir.OpResult) and owner.name == "tensor.cast" and not value.type.has_static_shape:
        return owner.operands[0]
    return value


def _resized(value: SignatureValue, mlir_type: ir.Type) -> SignatureValue:
    """Returns a result with the type and the sizes of a tensor type."""
    shape = tuple(None if mlir_type.is_dynamic_dim(i) else mlir_type.get_dim_size(i) for i in range(mlir_type.rank))
    return SignatureValue(value.name, "tensor", shape, value.dtype, mlir_type)


# ---- buffers ---------------------------------------------------------------------------------------------------------


def _wrap_buffers(module: ir.Module, signature: FunctionSignature, shapes: Sequence[tuple[int, ...]]) -> None:
    """Adds a wrapper with the arguments, then an out-parameter for each result and each written buffer."""
    values = list(zip(signature.arguments, shapes, strict=True))
    # `wrap` has rejected results of dynamic sizes.
    results = [(value, tuple(size for size in value.shape if size is not None)) for value in signature.results]
    copies = [values[index] for index in signature.written]
    inputs = [ir.MemRefType.get(shape, _element_type(value)) for value, shape in (*values, *results, *copies)]
    with ir.InsertionPoint(module.body):
        wrapper = func.FuncOp(WRAPPER, ir.FunctionType.get(inputs, []))
    block = wrapper.add_entry_block()
    arguments = list(block.arguments)
    outs = arguments[len(values) :]
    with ir.InsertionPoint(block):
        copy_of = dict(zip(signature.written, outs[len(results) :], strict=True))
        for index, copy in copy_of.items():
            memref.CopyOp(arguments[index], copy)
        operands = [_from_buffer(value, copy_of.get(i, arguments[i])) for i, value in enumerate(signature.arguments)]
        for (value, _), result, out in zip(results, _insert_call(signature, operands, module), outs, strict=False):
            _to_buffer(value, result, out)
        func.ReturnOp([])


def _from_buffer(value: SignatureValue, buffer: ir.Value) -> ir.Value:
    """Converts an argument of the wrapper to that of the function: a number, a buffer or a pointer."""
    if value.holder == "number":
        return _as_number(value, memref.LoadOp(buffer, []).result)
    if value.holder == "buffer":
        return memref.CastOp(value.mlir_type, buffer).result if value.mlir_type != buffer.type else buffer
    address = memref.ExtractAlignedPointerAsIndexOp(buffer).result
    integer = arith.IndexCastOp(mlir_element_type_get(TensorDType.Int64), address).result
    return ir.Operation.create("llvm.inttoptr", [value.mlir_type], [integer]).result


def _to_buffer(value: SignatureValue, result: ir.Value, out: ir.Value) -> None:
    """Writes a result of the function to an out-parameter of the wrapper."""
    if value.holder == "number":
        memref.StoreOp(_from_number(value, result), out, [])
    else:
        memref.CopyOp(result, out)

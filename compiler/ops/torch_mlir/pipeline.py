"""Converts a node to a module of the torch dialect, lowers that module to linalg, and inlines the result.

The module has one op and its constant operands. torch-mlir's passes run in a separate process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.serialization import Opaque, from_plain
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import func, ir, torch_dialect
from buddy.compiler.ops.torch_mlir.separate_process import lower_text
from buddy.compiler.ops.utils import LoweringError

# ---- to the torch dialect --------------------------------------------------------------------------------------------


# Element types in the torch dialect, and their numbers as arguments of torch's ops (`c10::ScalarType`).
_ELEMENT_TYPES = {
    TensorDType.Bool: ("i1", 11),
    TensorDType.UInt8: ("ui8", 0),
    TensorDType.Int8: ("si8", 1),
    TensorDType.Int16: ("si16", 2),
    TensorDType.Int32: ("si32", 3),
    TensorDType.Int64: ("si64", 4),
    TensorDType.Float16: ("f16", 5),
    TensorDType.BFloat16: ("bf16", 15),
    TensorDType.Float32: ("f32", 6),
    TensorDType.Float64: ("f64", 7),
}
# The numbers of `c10::Layout` and `c10::MemoryFormat`.
_ENUM_NUMBERS = {
    "torch.strided": 0,
    "torch.contiguous_format": 0,
    "torch.preserve_format": 1,
    "torch.channels_last": 2,
    "torch.channels_last_3d": 3,
}
# The types of list elements in the torch dialect, if the spelling differs from that in schemas.
_LIST_ELEMENT_TYPES = {"Tensor": "vtensor", "Optional[Tensor]": "optional<vtensor>", "number": "int"}


def to_torch_dialect(node: Op) -> tuple[ir.Module, list[Op]]:
    """Returns a module with one function that contains the op, and the node of each argument of the function.

    A node that the op reads several times is several arguments.

    Raises `LoweringError` if the torch dialect has no such op or cannot express an argument.
    """
    if node.schema is None:
        raise LoweringError(f"torch has no schema for {node.target}")
    dialect = torch_dialect()
    if dialect is None:
        raise LoweringError("the MLIR bindings have no torch dialect (the package torch-mlir has it)")
    dialect.register_dialect(ir.Context.current)
    arguments = [(_argument(value), type_) for value, type_ in node.schema.arguments(node.args, node.kwargs)]
    inputs = [op for value, _ in arguments for op in _tensors(value)]
    results = [_tensor_type(meta) for meta in node.metas]
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function = func.FuncOp("node", ir.FunctionType.get([_tensor_type(op.metas[0]) for op in inputs], results))
    with ir.InsertionPoint(function.add_entry_block()):
        builder = _OperandBuilder(list(function.arguments))
        operands = [builder.operand(value, type_) for value, type_ in arguments]
        func.ReturnOp(_call(node, operands, results))
    return module, inputs


def _argument(value: Any) -> Any:
    """Returns an argument as in a node; `value` may also be the default of a schema, which is in plain form."""
    return from_plain(value, {}) if isinstance(value, dict) else value


def _tensors(value: object) -> list[Op]:
    """Returns the nodes in an argument, which is a node, a list with nodes, or neither."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in values if isinstance(item, Op)]


def _tensor_type(meta: TensorMeta | None) -> ir.Type:
    """Returns the torch dialect's type of a tensor. Raises `LoweringError` for a type it lacks, and for no tensor."""
    if meta is None or meta.dtype not in _ELEMENT_TYPES:
        raise LoweringError(f"torch-mlir does not support {'missing results' if meta is None else meta.dtype.value}")
    return ir.Type.parse(f"!torch.vtensor<[{','.join(map(str, meta.shape))}],{_ELEMENT_TYPES[meta.dtype][0]}>")


def _call(node: Op, operands: Sequence[ir.Value], results: Sequence[ir.Type]) -> list[ir.Value]:
    """Emits the op, and returns its results.

    The op of `aten.sort.stable` is `torch.aten.sort.stable`, that of `aten.sort.default` is `torch.aten.sort`.
    """
    packet, _, overload = _qualified(node.target).rpartition(".")
    name = f"torch.{packet}" if overload == "default" else f"torch.{packet}.{overload}"
    if not ir.Context.current.is_registered_operation(name):
        raise LoweringError(f"the torch dialect has no op {name}")
    assert node.schema is not None
    if any(type_.startswith("List") for type_ in node.schema.results):
        tensor_list = ir.Operation.create(name, [ir.Type.parse("!torch.list<vtensor>")], list(operands)).result
        return list(ir.Operation.create("torch.prim.ListUnpack", list(results), [tensor_list]).results)
    return list(ir.Operation.create(name, list(results), list(operands)).results)


def _qualified(target: str) -> str:
    """Returns the target with its namespace, `aten.add.Tensor` for `add.Tensor`, because the graph omits `aten`."""
    return target if target.count(".") > 1 else f"aten.{target}"


class _OperandBuilder:
    """Emits operands at the insertion point; each tensor operand is the next of the function's arguments `tensors`."""

    def __init__(self, tensors: Sequence[ir.Value]) -> None:
        self._tensors = iter(tensors)

    def operand(self, value: object, type_: str) -> ir.Value:
        """Returns `value` as an operand of type `type_`, which is spelled as in schemas."""
        base_type = type_.removeprefix("Optional[").removesuffix("]") if type_.startswith("Optional[") else type_
        if isinstance(value, Op):
            return next(self._tensors)
        if isinstance(value, (list, tuple)):
            return self._list(value, base_type.removeprefix("List[").removesuffix("]"))
        if value is None:
            return _constant("none")
        if isinstance(value, TensorDType):
            return _integer(_dtype_number(value))
        if isinstance(value, Opaque):
            return _opaque(value.text)
        if isinstance(value, str):
            return _constant("str", ir.StringAttr.get(value))
        if not isinstance(value, (bool, int, float)):
            raise LoweringError(f"the torch dialect cannot express the argument {value!r}")
        number = _number(value, base_type)
        return _as_tensor(number, value) if base_type == "Tensor" else number

    def _list(self, values: Sequence[object], element_type: str) -> ir.Value:
        items = [self.operand(value, element_type) for value in values]
        name = _LIST_ELEMENT_TYPES.get(element_type, element_type)
        if element_type == "number" and any(isinstance(value, float) for value in values):
            name = "float"
        return ir.Operation.create("torch.prim.ListConstruct", [ir.Type.parse(f"!torch.list<{name}>")], items).result


def _number(value: bool | int | float, type_: str) -> ir.Value:
    """Returns a number as an operand; the type `number` or `Tensor` takes the type of the Python value."""
    if type_ == "float" or isinstance(value, float):
        return _constant("float", ir.FloatAttr.get(ir.F64Type.get(), float(value)))
    if type_ == "bool" or (isinstance(value, bool) and type_ == "Tensor"):
        return _constant("bool", ir.IntegerAttr.get(ir.IntegerType.get_signless(1), int(bool(value))))
    return _integer(int(value))


def _integer(value: int) -> ir.Value:
    return _constant("int", ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value))


def _constant(kind: str, value: ir.Attribute | None = None) -> ir.Value:
    """Emits `torch.constant.<kind>`, whose result has the type `!torch.<kind>`."""
    attributes = {} if value is None else {"value": value}
    return ir.Operation.create(f"torch.constant.{kind}", [ir.Type.parse(f"!torch.{kind}")], [], attributes).result


def _as_tensor(number: ir.Value, value: bool | int | float) -> ir.Value:
    """Returns a number as a zero-dimensional tensor, of the element type that torch infers for `value`."""
    dtype = TensorDType.Bool if isinstance(value, bool) else TensorDType.Int64
    tensor_type = _tensor_type(TensorMeta((), TensorDType.Float64 if isinstance(value, float) else dtype))
    return ir.Operation.create("torch.prim.NumToTensor.Scalar", [tensor_type], [number]).result


def _dtype_number(dtype: TensorDType) -> int:
    """Returns the number of an element type. Raises `LoweringError` for one that torch-mlir lacks."""
    if dtype not in _ELEMENT_TYPES:
        raise LoweringError(f"torch-mlir does not support {dtype.value}")
    return _ELEMENT_TYPES[dtype][1]


def _opaque(text: str) -> ir.Value:
    """Returns a device, layout or memory format as an operand."""
    if text == "cpu":
        device_type = ir.Type.parse("!torch.Device")
        return ir.Operation.create(
            "torch.constant.device", [device_type], [], {"value": ir.StringAttr.get(text)}
        ).result
    if text not in _ENUM_NUMBERS:
        raise LoweringError(f"the torch dialect cannot express {text}")
    return _integer(_ENUM_NUMBERS[text])


# ---- to linalg -------------------------------------------------------------------------------------------------------


# The dialects that the later passes accept. Not among them: `tm_tensor` (scans, sorts, scatters), a dialect that only
# torch-mlir's passes lower, and `cf`, whose assertions abort the process.
_ACCEPTED_DIALECTS = frozenset({"arith", "func", "linalg", "math", "scf", "tensor"})


def to_linalg(module: ir.Module) -> ir.Module:
    """Lowers a module of the torch dialect to linalg on tensors.

    Raises `LoweringError` with the message of the pass that fails, or for ops that the later passes do not accept.
    """
    text = lower_text(str(module))
    try:
        result = ir.Module.parse(text, ir.Context.current)
    except ir.MLIRError as error:
        raise LoweringError(f"the lowering produces invalid IR ({_first_line(error)})") from error
    _check_ops(result)
    return result


def _first_line(error: ir.MLIRError) -> str:
    """Returns the first line of the first diagnostic."""
    messages = [str(diagnostic.message) for diagnostic in error.error_diagnostics] or [str(error)]
    return messages[0].splitlines()[0]


def _check_ops(module: ir.Module) -> None:
    """Raises `LoweringError` if the module has an op that the later passes do not accept."""
    rejected: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name.partition(".")[0] not in _ACCEPTED_DIALECTS:
            rejected.append(f"{op.name}, which later passes do not accept")
        elif any(isinstance(x.type, ir.ShapedType) and not x.type.has_static_shape for x in op.results):
            rejected.append(f"{op.name} with a dynamic shape")
        return ir.WalkResult.INTERRUPT if rejected else ir.WalkResult.ADVANCE

    for function in module.body:
        function.operation.walk(visit)
    if rejected:
        raise LoweringError(f"the lowering contains {rejected[0]}")


def unused_arguments(module: ir.Module) -> list[int]:
    """Returns the indices of the unused arguments of the only function in `module`."""
    (function,) = module.body
    arguments = function.regions[0].blocks[0].arguments
    return [index for index, argument in enumerate(arguments) if not any(True for _ in argument.uses)]


def inline_body(module: ir.Module, operands: Sequence[ir.Value]) -> list[ir.Value]:
    """Inlines the only function in `module` at the insertion point, with `operands` for its arguments.

    Returns the values that the function returns.
    """
    (function,) = module.body
    location, block = ir.Location.current, function.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, return_op = list(block.operations)
    results = list(return_op.operands)
    return_op.operation.erase()
    for op in body:
        op.operation.detach_from_parent()
        ir.InsertionPoint.current.insert(op)
        op.operation.walk(lambda inner: _set_location(inner, location))
    return results


def _set_location(op: ir.Operation, location: ir.Location) -> ir.WalkResult:
    op.location = location
    return ir.WalkResult.ADVANCE

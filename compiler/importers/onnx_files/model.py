"""Reads an ONNX model, prepares it for import, and converts it to a Buddy graph with a node for each ONNX node.

A prepared model has fixed sizes, large weights as inputs, and a name for every node. The imported IR has the semantics
of the nodes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, new_op
from buddy.compiler.graph.operations.effects import ImportedOp
from buddy.compiler.graph.types import NodeType, TensorDType, TensorMeta
from buddy.compiler.importers.onnx_files.quantised_operators import (
    MIN_OPSET,
    UnknownScaleError,
    pool_bytes_as_floats,
    rewrite_quantised_operators,
)
from buddy.compiler.importers.onnx_files.replacements import UnsupportedNodeError, replace_nodes
from buddy.compiler.protocol.programs import InputShape, check_input_names, find_input_shape
from buddy.compiler.protocol.source_locations import SourceError, source_error

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from google.protobuf.message import Message


# Float initializers with more elements become inputs. Smaller ones are shapes, axes and scales: lowerings read them.
MAX_CONSTANT_FLOATS = 16
# The start of onnx's messages on shape inference, before the reason.
_ERROR_PREFIX = re.compile(r"\[\w+\] (?:Inference error\(s\): )?")
_CHARACTERS_TO_QUOTE = re.compile(r"[^\w./-]")


@dataclass(frozen=True)
class PreparedModel:
    """An ONNX model whose first inputs are the `weights` (arrays by name), followed by those that `inputs` names."""

    model: Any
    weights: dict[str, Any]
    inputs: tuple[str, ...]
    notes: list[str] = field(default_factory=list)


def prepare_model(path: Path, shapes: Sequence[InputShape] = ()) -> PreparedModel:
    """Reads the model at `path`; sets the shapes of its inputs to `shapes`, and other dynamic sizes to 1.

    Raises `SourceError` for a model that is invalid or that the installed `onnx` does not support, for `shapes` that do
    not fit its inputs, and if `onnx` is not installed.
    """
    onnx = _import_onnx()
    model = _load_model(onnx, path)
    _check_model(onnx, model, path)
    _rewrite_quantised_operators(model, path)
    notes = _fix_sizes(onnx, model, path, shapes)
    _name_nodes(model)
    try:
        # Without `strict_mode`, conflicting shapes are not reported.
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        replaced = replace_nodes(model)
        if pool_bytes_as_floats(replaced) or replaced is not model:
            _name_nodes(replaced)
            model = onnx.shape_inference.infer_shapes(replaced, strict_mode=True, data_prop=True)
    except UnsupportedNodeError as error:
        raise _rejection_error(path, str(error), "export the model without it") from error
    except Exception as error:  # of many types of onnx and protobuf
        reason = _ERROR_PREFIX.sub("", _first_line(error))
        todo = "choose other sizes with --shape" if shapes else "export the model again"
        raise _rejection_error(path, f"shape inference failed: {reason}", todo) from error
    weights = _turn_weights_into_inputs(onnx, model)
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    return PreparedModel(model, weights, tuple(inputs), notes)


def _import_onnx() -> ModuleType:
    try:
        import onnx
        import onnx.shape_inference
    except ModuleNotFoundError as error:
        what = f"ONNX models need {error.name}, of the extra `onnx`"
        raise source_error(what, todo="pip install 'buddy-tui[onnx]'") from error
    return onnx


def _rejection_error(path: Path, what: str, todo: str = "export the model again") -> SourceError:
    return source_error(f"{path.name} cannot be used: {what}", str(path), todo)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _load_model(onnx: ModuleType, path: Path) -> onnx.ModelProto:
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(str(path))
    except DecodeError as error:
        todo = "check that the file is complete, and that it is ONNX"
        raise _rejection_error(path, f"it is truncated, or not an ONNX model ({_first_line(error)})", todo) from error
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        todo = "check that the file is readable, and that the files of its external data are in its folder"
        raise _rejection_error(path, _first_line(error), todo) from error


def _check_model(onnx: ModuleType, model: onnx.ModelProto, path: Path) -> None:
    """Raises `SourceError` for a model of a newer version than `onnx` supports, and for an invalid one."""
    newest_format, newest_opset = onnx.IR_VERSION, onnx.defs.onnx_opset_version()
    model_opset = _opset_of(model)
    todo = f"install a newer onnx than {onnx.__version__}, or export the model for an older version"
    if model.ir_version > newest_format:
        raise _rejection_error(
            path,
            f"it uses ONNX format version {model.ir_version}, and {newest_format} is the newest supported version",
            todo,
        )
    if model_opset > newest_opset:
        raise _rejection_error(
            path, f"it uses ONNX operator set {model_opset}, and {newest_opset} is the newest supported version", todo
        )
    try:
        onnx.checker.check_model(_with_output_shapes(onnx, model))
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError) as error:
        raise _rejection_error(path, f"it is not valid: {_first_line(error)}") from error
    if not _strings_are_utf8(model):
        raise _rejection_error(path, "it has names that are not valid UTF-8")
    if not model.graph.output:
        raise _rejection_error(path, "it has no outputs")


def _opset_of(model: onnx.ModelProto) -> int:
    """Returns the version of ONNX's own operator set in a model, 0 if it has none."""
    return max((entry.version for entry in model.opset_import if not entry.domain), default=0)


def _with_output_shapes(onnx: ModuleType, model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model to check: with inferred shapes if an output has none, which the checker rejects.

    Exporters leave them out, and runtimes do not need them.
    """
    types = [value.type.tensor_type for value in model.graph.output if value.type.HasField("tensor_type")]
    if all(tensor_type.HasField("shape") for tensor_type in types):
        return model
    return onnx.shape_inference.infer_shapes(model)


def _rewrite_quantised_operators(model: onnx.ModelProto, path: Path) -> None:
    """Replaces ops on quantised tensors: torch-mlir computes some wrongly, and rejects those of ONNX Runtime."""
    opset, todo = _opset_of(model), "quantise the model with QuantizeLinear and DequantizeLinear (format QDQ)"
    node = next((node for node in model.graph.node if node.op_type == "QLinearConv"), None)
    if node is not None and opset < MIN_OPSET:
        what = f"its node {node.name or node.output[0]} is a QLinearConv of operator set {opset}"
        raise _rejection_error(path, f"{what}; {MIN_OPSET} is the first that is supported", todo)
    try:
        rewrite_quantised_operators(model)
    except UnknownScaleError as error:
        raise _rejection_error(path, str(error), todo) from error


def _strings_are_utf8(message: Message) -> bool:
    """Returns whether all strings of a message are UTF-8: protobuf returns the others as bytes."""
    for descriptor, value in message.ListFields():
        if descriptor.type not in (descriptor.TYPE_STRING, descriptor.TYPE_MESSAGE):
            continue
        for item in [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value:
            if isinstance(item, bytes) or (descriptor.type == descriptor.TYPE_MESSAGE and not _strings_are_utf8(item)):
                return False
    return True


def _fix_sizes(onnx: ModuleType, model: onnx.ModelProto, path: Path, shapes: Sequence[InputShape]) -> list[str]:
    """Sets the sizes of inputs to those of `shapes`, and other dynamic sizes to 1; returns notes about the latter."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initializers]
    try:
        check_input_names(shapes, [value.name for value in inputs])
    except ValueError as error:
        raise _rejection_error(path, str(error), "give NAME=4x128 for one of these") from error
    notes, is_resized = [], False
    for index, value in enumerate(inputs):
        tensor_type = value.type.tensor_type
        if value.type.WhichOneof("value") != "tensor_type" or not tensor_type.HasField("shape"):
            raise _rejection_error(
                path, f"its input {value.name} is not a tensor of known rank", "export it with only tensors as inputs"
            )
        user_shape = find_input_shape(shapes, value.name, index)
        if user_shape is not None and len(user_shape.shape) != len(tensor_type.shape.dim):
            raise _rejection_error(
                path, f"its input {value.name} has {len(tensor_type.shape.dim)} dims", "give a size for each"
            )
        if user_shape is not None:
            is_resized |= _set_shape(tensor_type, user_shape.shape)
        else:
            notes += _fix_dynamic_sizes(value.name, tensor_type)
    if notes or shapes:  # the stored shapes of intermediate values may be dynamic: they are inferred again
        del model.graph.value_info[:]
    # Declared shapes of outputs are inferred again if they are dynamic, or if they may follow from a replaced size.
    for value in model.graph.output:
        if is_resized or any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
            value.type.tensor_type.ClearField("shape")
    return notes


def _set_shape(tensor_type: onnx.TypeProto.Tensor, shape: Sequence[int]) -> bool:
    """Sets the sizes of a type to `shape`; returns whether a static size changes."""
    is_resized = False
    for dim, size in zip(tensor_type.shape.dim, shape, strict=True):
        is_resized |= dim.HasField("dim_value") and dim.dim_value != size
        dim.dim_value = size
    return is_resized


def _fix_dynamic_sizes(name: str, tensor_type: onnx.TypeProto.Tensor) -> list[str]:
    """Sets the dynamic sizes of the type of input `name` to 1; returns a note on each."""
    notes = []
    for number, dim in enumerate(tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            size = f"its size `{dim.dim_param}`" if dim.dim_param else f"the size of its dim {number}"
            notes.append(f"{name}: {size} is set to 1; choose others with --shape")
            dim.dim_value = 1
    return notes


def _name_nodes(model: onnx.ModelProto) -> None:
    """Gives each node a unique name that options of the command line and recipes can have without quotes."""
    used_names: Counter[str] = Counter()
    for node in model.graph.node:
        stem = _CHARACTERS_TO_QUOTE.sub("_", node.name or node.op_type).strip("/") or node.op_type
        name = stem
        while used_names[name]:
            name = f"{stem}_{used_names[stem]}"
            used_names[stem] += 1
        used_names[name] += 1
        node.name = name


def _turn_weights_into_inputs(onnx: ModuleType, model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Turns large initializers into the first inputs of the model; returns them by name, in this order.

    Large initializers have more than `MAX_CONSTANT_FLOATS` elements of f16, f32 or f64, or of 8-bit integers in several
    dims. Only inputs can be packed before the program is called.
    """
    graph = model.graph
    weights = [tensor for tensor in graph.initializer if _is_weight(onnx, tensor)]
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in weights}
    constants = [tensor for tensor in graph.initializer if tensor.name not in arrays]
    inputs = [value for value in graph.input if value.name not in {t.name for t in graph.initializer}]
    weight_inputs = [onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in weights]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(constants)
    graph.input.extend([*weight_inputs, *inputs])
    return arrays


def _is_weight(onnx: ModuleType, tensor: onnx.TensorProto) -> bool:
    proto = onnx.TensorProto
    floats = (proto.FLOAT, proto.DOUBLE, proto.FLOAT16)
    size = math.prod(tensor.dims)
    # Matrices and kernels of bytes; vectors of bytes are zero points.
    is_bytes = tensor.data_type in (proto.INT8, proto.UINT8) and len(tensor.dims) > 1
    return (tensor.data_type in floats or is_bytes) and size > MAX_CONSTANT_FLOATS


# ---- graphs ----------------------------------------------------------------------------------------------------------


# Maximum length of an attribute in the node table, in characters.
_MAX_ATTRIBUTE_CHARACTERS = 60
# Keys are the names of NumPy's dtypes, which ONNX's own helper returns.
_DTYPES = {
    "bool": TensorDType.Bool,
    "uint8": TensorDType.UInt8,
    "int8": TensorDType.Int8,
    "int16": TensorDType.Int16,
    "int32": TensorDType.Int32,
    "int64": TensorDType.Int64,
    "float16": TensorDType.Float16,
    "float32": TensorDType.Float32,
    "float64": TensorDType.Float64,
}


def build_graph(prepared: PreparedModel, name: str, path: Path) -> Graph:
    """Converts a model. Raises `SourceError` for an input or a result of an unsupported dtype or size."""
    return _GraphBuilder(prepared, path).build(name)


class _GraphBuilder:
    """Builds the graph of one model; `_values` maps names of ONNX values to their ops."""

    def __init__(self, prepared: PreparedModel, path: Path) -> None:
        proto = prepared.model.graph
        values = [*proto.value_info, *proto.output, *proto.input]
        self._prepared, self._proto, self._path = prepared, proto, path
        self._metas = {value.name: _meta(value.type.tensor_type) for value in values}
        self._values: dict[str, Op] = {}

    def build(self, name: str) -> Graph:
        graph = Graph(name)
        for value in self._proto.input:
            op = new_op(PlaceholderOp, value.name, value.name, (), [self._meta_of(value.name)])
            self._values[value.name] = op
            graph.add_node(op, NodeType.FakeNode if value.name in self._prepared.weights else NodeType.InputNode)
        for node in self._proto.node:
            for op in self._make_nodes(node):
                graph.add_node(op)
        results = [self._result(value.name) for value in self._proto.output]
        graph.add_node(new_op(OutputOp, "output", "output", [results]))
        return graph

    def _meta_of(self, name: str) -> TensorMeta:
        """Returns the shape and dtype of an input or a result. Raises `SourceError` if they are not supported."""
        meta = self._metas.get(name)
        if meta is None:
            what = f"{self._path.name}: the shape of {name}, or its element type, is not known{self._first_unknown()}"
            raise source_error(what, str(self._path), "give sizes of inputs (--shape NAME=4x128), or export without it")
        if 0 in meta.shape:
            what = f"{self._path.name}: {name} has no elements, so there is nothing to compute"
            raise source_error(what, str(self._path), "give it another size (--shape NAME=4x128)")
        return meta

    def _first_unknown(self) -> str:
        """Describes the first node whose result ONNX cannot infer, such as one with an unknown operator; else ""."""
        for node in self._proto.node:
            if any(name and self._metas.get(name) is None for name in node.output):
                kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
                return f": the result of {node.name} ({kind}) is unknown"
        return ""

    def _result(self, name: str) -> Op:
        """Returns the node of a result. Raises `SourceError` if its shape or dtype is unknown, or it is a constant."""
        self._meta_of(name)
        if name not in self._values:
            what = f"{self._path.name}: its result {name} is a constant"
            raise source_error(what, str(self._path), "remove it from the model's results")
        return self._values[name]

    def _make_nodes(self, node: onnx.NodeProto) -> list[Op]:
        """Returns the op of an ONNX node, and one for each of its results if there are several."""
        outputs = [name for name in node.output if name]
        metas = [self._metas.get(name) for name in outputs]
        operands = [self._values[name] for name in node.input if name in self._values]
        op = new_op(ImportedOp, node.name, f"onnx.{node.op_type}", operands, metas)
        op._keyword_arguments = {attribute.name: _attribute_text(attribute) for attribute in node.attribute}
        if len(outputs) < 2:
            self._values.update(dict.fromkeys(outputs, op))
            return [op]
        op.multiple = True
        parts = [
            new_op(GetItemOp, f"{node.name}.{index}", "getitem", [op, index], [meta])
            for index, meta in enumerate(metas)
        ]
        self._values.update(zip(outputs, parts, strict=True))
        return [op, *parts]


def _meta(tensor_type: onnx.TypeProto.Tensor) -> TensorMeta | None:
    """Returns the shape and dtype of a value; `None` if they are unknown or unsupported."""
    import onnx.helper

    sizes = list(tensor_type.shape.dim)
    if (
        not tensor_type.elem_type
        or not tensor_type.HasField("shape")
        or not all(size.HasField("dim_value") for size in sizes)
    ):
        return None
    try:
        dtype = _DTYPES.get(str(onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type)))
    except KeyError:
        return None
    return None if dtype is None else TensorMeta(tuple(size.dim_value for size in sizes), dtype)


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    import onnx.helper

    text = str(onnx.helper.printable_attribute(attribute)).partition(" = ")[2]
    return text if len(text) <= _MAX_ATTRIBUTE_CHARACTERS else text[: _MAX_ATTRIBUTE_CHARACTERS - 1] + "…"

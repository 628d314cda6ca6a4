"""Converts a prepared ONNX model to a Buddy graph with a node for each ONNX node; the imported IR has the semantics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp, new_op
from buddy.compiler.graph.operations.effects import ImportedOp
from buddy.compiler.graph.types import NodeType, TensorDType, TensorMeta
from buddy.compiler.importers.onnx_files.model import PreparedModel
from buddy.compiler.protocol.source_locations import source_error

if TYPE_CHECKING:
    import onnx


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
    return _GraphBuilder(prepared, path).graph(name)


class _GraphBuilder:
    """Builds the graph of one model; `_values` maps names of ONNX values to their ops."""

    def __init__(self, prepared: PreparedModel, path: Path) -> None:
        proto = prepared.model.graph
        values = [*proto.value_info, *proto.output, *proto.input]
        self._prepared, self._proto, self._path = prepared, proto, path
        self._metas = {value.name: _meta(value.type.tensor_type) for value in values}
        self._values: dict[str, Op] = {}

    def graph(self, name: str) -> Graph:
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
        """Returns the node, and one for each of its results if there are several."""
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

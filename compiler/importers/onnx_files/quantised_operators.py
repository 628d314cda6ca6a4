"""Replaces ONNX ops on quantised tensors (the format QOperator) by ops on dequantised ones (the format QDQ).

`y = op(x)` on integers becomes `QuantizeLinear(op(DequantizeLinear(x)))`, which is its definition. The ops are
QLinearConv and QLinearMatMul of ONNX, and ops of ONNX Runtime (domain com.microsoft), whose operands come in the same
order. The pass `narrow-products` then multiplies the integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from buddy.compiler.protocol.errors import BuddyError

if TYPE_CHECKING:
    import numpy as np
    import onnx

_MICROSOFT = "com.microsoft"
# `DequantizeLinear` has scales by channel from this operator set on.
MIN_OPSET = 13


class UnknownScaleError(BuddyError):
    """A scale or a bias, on which the rewriting depends, is computed by the model; the text names the node."""


def rewrite_quantised_operators(model: onnx.ModelProto) -> None:
    """Replaces the nodes of `model`, in place. Raises `UnknownScaleError`."""
    rewriter = _OperatorRewriter(model)
    for node in list(model.graph.node):
        rewrite = _REWRITES.get((node.domain, node.op_type))
        if rewrite is None:
            rewriter.nodes.append(node)
        else:
            rewrite(rewriter, node)
    del model.graph.node[:]
    model.graph.node.extend(rewriter.nodes)
    used = {name for node in rewriter.nodes for name in node.input} | {value.name for value in model.graph.output}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)


def pool_bytes_as_floats(model: onnx.ModelProto) -> bool:
    """Converts unsigned bytes to floats around each max pool of a model; returns whether there is one.

    torch-mlir compares unsigned bytes as signed ones. Floats represent bytes exactly, so their maximum is the same.
    """
    import onnx

    unsigned = onnx.TensorProto.UINT8
    values = [*model.graph.value_info, *model.graph.input]
    unsigned_values = {value.name for value in values if value.type.tensor_type.elem_type == unsigned}
    nodes, has_pool = list[onnx.NodeProto](), False
    for node in model.graph.node:
        if node.op_type != "MaxPool" or node.input[0] not in unsigned_values or len(node.output) > 1:
            nodes.append(node)
            continue
        has_pool, source, result = True, node.input[0], node.output[0]
        node.input[0], node.output[0] = f"{node.name}_floats", f"{node.name}_largest"
        make = onnx.helper.make_node
        widen = make("Cast", [source], [node.input[0]], name=f"{node.name}_to_floats", to=onnx.TensorProto.FLOAT)
        nodes += [widen, node, make("Cast", [node.output[0]], [result], name=f"{node.name}_to_bytes", to=unsigned)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return has_pool


class _OperatorRewriter:
    """Makes the new nodes of a model (`nodes`); has its constants by name.

    The names in the methods are those of ONNX's and ONNX Runtime's documentation. Each quantised operand is a tensor,
    its scale and its zero point; the result has only the last two.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._initializers = model.graph.initializer
        self._constants = {tensor.name: tensor for tensor in self._initializers}

    def rewrite_convolution(self, node: onnx.NodeProto) -> None:
        x, w, (y_scale, y_zero), bias = node.input[:3], node.input[3:6], node.input[6:8], node.input[8:]
        operands = [self._dequantise(node, "x", x), self._dequantise(node, "w", w, axis=0)]
        if bias:
            operands.append(self._add_bias(node, bias[0], x[1], w[1]))
        self._append_quantised(node, "Conv", operands, y_scale, y_zero, node.attribute)

    def rewrite_matrix_product(self, node: onnx.NodeProto) -> None:
        a, b, (y_scale, y_zero) = node.input[:3], node.input[3:6], node.input[6:]
        operands = [self._dequantise(node, "a", a), self._dequantise(node, "b", b, axis=1)]
        self._append_quantised(node, "MatMul", operands, y_scale, y_zero, ())

    def rewrite_gemm(self, node: onnx.NodeProto) -> None:
        names = [*node.input, *[""] * (9 - len(node.input))]
        a, b, bias, (y_scale, y_zero) = names[:3], names[3:6], names[6], names[7:]
        attributes = {attribute.name: attribute for attribute in node.attribute}
        is_transposed = "transB" in attributes and attributes["transB"].i
        operands = [self._dequantise(node, "a", a), self._dequantise(node, "b", b, axis=0 if is_transposed else 1)]
        if bias:
            alpha = attributes["alpha"].f if "alpha" in attributes else 1.0
            operands.append(self._add_bias(node, bias, a[1], b[1], alpha))
        self._append_quantised(node, "Gemm", operands, y_scale, y_zero, node.attribute)

    def rewrite_binary(self, node: onnx.NodeProto) -> None:
        operands = [self._dequantise(node, "a", node.input[:3]), self._dequantise(node, "b", node.input[3:6])]
        name = node.op_type.removeprefix("QLinear")
        self._append_quantised(node, name, operands, *_scale_and_zero(node.input[6:]), ())

    def rewrite_unary(self, node: onnx.NodeProto) -> None:
        operands = [self._dequantise(node, "x", node.input[:3])]
        # ONNX Runtime's op has these attributes, ONNX's op does not.
        attributes = [attribute for attribute in node.attribute if attribute.name not in ("opset", "channels_last")]
        name = node.op_type.removeprefix("QLinear")
        self._append_quantised(node, name, operands, *_scale_and_zero(node.input[3:]), attributes)

    def _dequantise(self, node: onnx.NodeProto, role: str, tensor: Sequence[str], axis: int | None = None) -> str:
        """Appends the node that dequantises `tensor`: the names of a tensor, of its scale, perhaps of its zero point.

        `role` ends the name of the new value, which is returned. `axis` is the dim of channels that may have scales.
        """
        name, scale, zero = [*tensor, "", ""][:3]
        is_by_channel = axis is not None and self._constant_array(node, scale).size > 1
        inputs = [name, self._as_scalar(scale), self._as_scalar(zero)] if not is_by_channel else [name, scale, zero]
        output = f"{self._stem(node)}_{role}"
        if is_by_channel:
            return self._append_node("DequantizeLinear", output, inputs, axis=axis)
        return self._append_node("DequantizeLinear", output, inputs)

    def _add_bias(self, node: onnx.NodeProto, bias: str, x_scale: str, w_scale: str, factor: float = 1.0) -> str:
        """Adds the bias in floats as a constant: its scale is the product of those of both operands."""
        import onnx.numpy_helper

        scale = self._constant_array(node, x_scale) * self._constant_array(node, w_scale) * factor
        floats = (self._constant_array(node, bias) * scale).astype("float32")
        name = f"{self._stem(node)}_add_bias"
        self._initializers.append(onnx.numpy_helper.from_array(floats, name))
        return name

    def _append_quantised(
        self, node: onnx.NodeProto, op_type: str, operands: Sequence[str], scale: str, zero: str, attributes: Any
    ) -> None:
        """Appends the op in floats, and the node that quantises its result if that has a scale."""
        import onnx.helper

        result = f"{self._stem(node)}_float" if scale else node.output[0]
        floats = onnx.helper.make_node(op_type, operands, [result], name=node.name)
        floats.attribute.extend(attributes)
        self.nodes.append(floats)
        if scale:
            inputs = [result, self._as_scalar(scale), self._as_scalar(zero)]
            self._append_node("QuantizeLinear", node.output[0], inputs, name=f"{self._stem(node)}_quantize")

    def _append_node(self, op_type: str, output: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        import onnx.helper

        present_inputs = list(inputs)
        while not present_inputs[-1]:  # missing optional inputs
            present_inputs.pop()
        self.nodes.append(onnx.helper.make_node(op_type, present_inputs, [output], name=name or output, **attributes))
        return output

    def _constant_array(self, node: onnx.NodeProto, name: str) -> np.ndarray:
        """Returns the value of a constant operand of `node`. Raises `UnknownScaleError` if it is no constant."""
        import onnx.numpy_helper

        if name not in self._constants:
            raise UnknownScaleError(f"{name} of its node {self._stem(node)} is not a constant")
        array: np.ndarray = onnx.numpy_helper.to_array(self._constants[name])
        return array

    def _as_scalar(self, name: str) -> str:
        """Removes the dims of the constant `name` if it has one element: a scale of a whole tensor is a scalar.

        Returns `name`.
        """
        constant = self._constants.get(name)
        if constant is not None and list(constant.dims) == [1]:
            del constant.dims[:]
        return name

    @staticmethod
    def _stem(node: onnx.NodeProto) -> str:
        """Returns the start of the names of new values and nodes."""
        return node.name or node.output[0]


def _scale_and_zero(names: Sequence[str]) -> tuple[str, str]:
    """Returns the scale and the zero point of a result, "" for a missing one."""
    scale, zero = [*names, ""][:2]
    return scale, zero


_REWRITES: dict[tuple[str, str], Callable[[_OperatorRewriter, Any], None]] = {
    ("", "QLinearConv"): _OperatorRewriter.rewrite_convolution,
    ("", "QLinearMatMul"): _OperatorRewriter.rewrite_matrix_product,
    (_MICROSOFT, "QGemm"): _OperatorRewriter.rewrite_gemm,
    (_MICROSOFT, "QLinearAdd"): _OperatorRewriter.rewrite_binary,
    (_MICROSOFT, "QLinearMul"): _OperatorRewriter.rewrite_binary,
    (_MICROSOFT, "QLinearSoftmax"): _OperatorRewriter.rewrite_unary,
    (_MICROSOFT, "QLinearSigmoid"): _OperatorRewriter.rewrite_unary,
    (_MICROSOFT, "QLinearLeakyRelu"): _OperatorRewriter.rewrite_unary,
    (_MICROSOFT, "QLinearGlobalAveragePool"): _OperatorRewriter.rewrite_unary,
}

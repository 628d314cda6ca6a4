"""Runs an ONNX model, with ONNX Runtime if it is installed and with ONNX's own evaluator otherwise.

Also runs a quantised model with random errors of the size of roundings, to measure how much correct runs may differ.
Where a number is close to the middle between two integers, the last bit of a float op decides which one
`QuantizeLinear` returns, and both are right. Each float op that rounds therefore gets an error of plus or minus the
bound of its roundings, with random signs. A run and the run with all signs reversed put such a number on either side of
the middle, so each integer that may differ does so in one of the two.

The bound for a sum of n products is `_DEVIATIONS` times the deviation of a sequential sum in float32, as modelled in
`runtime.sensitivity`: u sqrt(n (Q / 2 + s² / 3) / 3), where u is the unit roundoff, Q the sum of the squares of the
products and s the result. The same op computes Q on the squares of its operands. Sums of integers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from buddy.compiler.support.target import host_has_features

if TYPE_CHECKING:
    import onnx


# Computes a model's results from NumPy arrays, by the names of the inputs.
Evaluate = Callable[[dict[str, Any]], Sequence[Any]]


class Reference:
    """Computes a model's results from tensors in the order of its inputs.

    The evaluator is created at the first call.
    """

    def __init__(self, content: bytes, names: Sequence[str]) -> None:
        self._content, self._names = content, tuple(names)
        self._evaluate: Evaluate | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._evaluate is None:
            self._evaluate = _make_runtime_evaluation(self._content) or _make_evaluator_evaluation(self._content)
        feeds = {name: tensor.numpy() for name, tensor in zip(self._names, tensors, strict=True)}
        return [torch.as_tensor(result) for result in self._evaluate(feeds)]


def _make_runtime_evaluation(content: bytes) -> Evaluate | None:
    """Returns the evaluation by ONNX Runtime; `None` if that is not installed."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Without this, ONNX Runtime multiplies the integers of dequantised tensors by kernels of its own, whose roundings
    # differ from those of the model's ops by a step of the next integers.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if not (host_has_features("avx512_vnni") or host_has_features("avx_vnni")):
        # Without this, sums of two products of 8-bit integers saturate at 16 bits.
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def _make_evaluator_evaluation(content: bytes) -> Evaluate:
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load_model_from_string(content))
    return lambda feeds: evaluator.run(None, feeds)


# ---- random errors ---------------------------------------------------------------------------------------------------


_QUANTISER_OPS = {"QuantizeLinear", "DynamicQuantizeLinear"}
# Ops that select or move elements, or compute with integers and one rounding, which all implementations do equally.
_EXACT_OPS = {
    *_QUANTISER_OPS, "Abs", "Cast", "Ceil", "Clip", "Compress", "Concat", "Constant", "ConstantOfShape", "CumMax",
    "DepthToSpace", "DequantizeLinear", "Dropout", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
    "Identity", "LeakyRelu", "Max", "MaxPool", "Min", "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape",
    "Round", "ScatterElements", "ScatterND", "Sign", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK",
    "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
_PRODUCT_OPS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_MEAN_OPS = {"AveragePool", "GlobalAveragePool", "ReduceMean"}
_UNIT_ROUNDOFF = 2.0**-24  # of float32
# 95 % of the errors of a sum are below two deviations.
_DEVIATIONS = 2.0
# Unit roundoffs of other ops: exponentials and the like are approximated on both sides, each with an error of up to two
# units in the last place, which are four unit roundoffs.
_ROUNDINGS = 8.0
# Unit roundoffs of a quantiser's division by its scale, which may be a multiplication by the inverse: one of the
# inverse, and one of each of both results. They are fewer than `_ROUNDINGS`, so that the error of a quantiser and that
# of the op before it do not cancel where their signs differ.
_ROUNDINGS_OF_DIVISION = 3.0
# The name of the additional input of the changed model.
_SIGNS_INPUT = "random_signs"


def quantises(model: onnx.ModelProto) -> bool:
    """Returns whether a node of the model rounds floats to integers."""
    return any(node.op_type in _QUANTISER_OPS for node in model.graph.node)


class DisturbedReference:
    """Computes the results of a model from tensors in the order of its inputs, with random errors in its float ops.

    The changed model is made at the first call.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._reference: Reference | None = None
        self._n_signs = 0

    def __call__(self, tensors: Sequence[torch.Tensor], seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns the results with random signs from `seed`, and those with the opposite signs."""
        if self._reference is None:
            model, self._n_signs = _add_errors(self._content)
            self._reference = Reference(model.SerializeToString(), [value.name for value in model.graph.input])
        signs = torch.randint(2, (self._n_signs,), generator=torch.Generator().manual_seed(seed)).float() * 2 - 1
        return self._reference([*tensors, signs]), self._reference([*tensors, -signs])


def _add_errors(content: bytes) -> tuple[onnx.ModelProto, int]:
    """Returns the model with errors, whose last input is a vector of signs, and the length of that vector."""
    import onnx

    model = onnx.load_model_from_string(content)
    inserter = _ErrorInserter(model)
    for node in model.graph.node:
        inserter.add(node)
    del model.graph.node[:]
    model.graph.node.extend(inserter.nodes)
    model.graph.initializer.extend(inserter.constants)
    signs = onnx.helper.make_tensor_value_info(_SIGNS_INPUT, onnx.TensorProto.FLOAT, [inserter.n_signs])
    model.graph.input.append(signs)
    return model, inserter.n_signs


class _ErrorInserter:
    """Makes the nodes of the changed model, its further constants, and the number of signs that it reads."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import onnx

        graph = model.graph
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.n_signs = 1
        # The shapes of single-precision values.
        types = {value.name: value.type.tensor_type for value in [*graph.value_info, *graph.input, *graph.output]}
        self._shapes = {
            name: tuple(dim.dim_value for dim in tensor_type.shape.dim)
            for name, tensor_type in types.items()
            if tensor_type.elem_type == onnx.TensorProto.FLOAT and tensor_type.HasField("shape")
        }
        self._shapes |= {
            tensor.name: tuple(tensor.dims)
            for tensor in graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT
        }

    def add(self, node: onnx.NodeProto) -> None:
        """Appends a copy of `node` with errors in its first result; a quantiser gets them in its operand."""
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if node.op_type in _QUANTISER_OPS and node.input[0] in self._shapes:
            copy.input[0] = f"{node.output[0]}/operand"
            self._add_error(node.input[0], copy.input[0], self._shapes[node.input[0]], f"{copy.input[0]}_error", None)
        self.nodes.append(copy)
        if node.op_type in _EXACT_OPS or node.output[0] not in self._shapes:
            return
        result = node.output[0]
        copy.output[0] = f"{result}/exact"
        self._add_error(copy.output[0], result, self._shapes[result], f"{result}/error", copy)

    def _add_error(
        self, exact: str, result: str, shape: tuple[int, ...], stem: str, node: onnx.NodeProto | None
    ) -> None:
        """Appends `result` = `exact` + sign * bound, for each element.

        `node` computes `exact`; without it, the error is that of a quantiser's division.
        """
        # With the squares Q, the bound of a sum is at most the sum of two parts: sqrt(n) |s| / 3 and sqrt(n Q / 6).
        squares, count = (None, 0) if node is None else self._sum_of_squares(node, stem)
        relative = (_ROUNDINGS_OF_DIVISION if node is None else _ROUNDINGS) + _DEVIATIONS * math.sqrt(count) / 3
        bound = self._append_scaled(self._append_node("Abs", [exact], f"{stem}/size"), relative, f"{stem}/relative")
        if squares is not None:
            # The deviation of a mean of n numbers is that of their sum, divided by n; its Q is n times the mean square.
            factor = _DEVIATIONS * math.sqrt((1 if node is not None and node.op_type in _MEAN_OPS else count) / 6)
            root = self._append_node("Sqrt", [squares], f"{stem}/root")
            bound = self._append_node(
                "Add", [bound, self._append_scaled(root, factor, f"{stem}/of_sum")], f"{stem}/bound"
            )
        error = self._append_node("Mul", [bound, self._append_signs(shape, stem)], f"{stem}/signed")
        self._append_node("Add", [exact, error], result)

    def _sum_of_squares(self, node: onnx.NodeProto, stem: str) -> tuple[str | None, int]:
        """Returns the sums of the squares of all addends, and their number; (None, 0) for ops that do not sum."""
        if node.op_type not in _PRODUCT_OPS | _MEAN_OPS:
            return None, 0
        operands = list(node.input[: 2 if node.op_type in _PRODUCT_OPS else 1])
        if any(name not in self._shapes for name in operands):
            return None, 0
        squared = [
            self._append_node("Mul", [name, name], f"{stem}/square_{index}") for index, name in enumerate(operands)
        ]
        others = list(node.input[1:]) if node.op_type in _MEAN_OPS else []
        squares = self._append_node(node.op_type, [*squared, *others], f"{stem}/squares")
        attributes = {attribute.name: attribute for attribute in node.attribute}
        for name, attribute in attributes.items():
            copied = self.nodes[-1].attribute.add()
            copied.CopyFrom(attribute)
            if name == "alpha":
                copied.f = attribute.f**2
        return squares, self._count_addends(node, attributes)

    def _count_addends(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> int:
        """Returns the number of addends of each element of the result of a product or a mean."""
        shapes = [self._shapes[name] for name in node.input[:2] if name in self._shapes]
        if node.op_type == "Conv":
            return math.prod(shapes[1][1:])
        if node.op_type == "ConvTranspose":
            groups = attributes["group"].i if "group" in attributes else 1
            return math.prod(shapes[1]) // (shapes[1][1] * groups)
        if node.op_type in _PRODUCT_OPS:
            is_transposed = "transA" in attributes and attributes["transA"].i
            return shapes[0][0] if is_transposed else shapes[0][-1]
        return math.prod(shapes[0]) // max(1, math.prod(self._shapes[node.output[0].removesuffix("/exact")]))

    def _append_signs(self, shape: tuple[int, ...], stem: str) -> str:
        """Appends nodes that read a part of the signs as a tensor of `shape`.

        The parts of different calls overlap, but each begins at another sign.
        """
        start, count = len(self.constants), math.prod(shape)
        self.n_signs = max(self.n_signs, start + count)
        limits = [self._add_integers([start], f"{stem}/start"), self._add_integers([start + count], f"{stem}/end")]
        part = self._append_node("Slice", [_SIGNS_INPUT, *limits], f"{stem}/signs")
        return self._append_node("Reshape", [part, self._add_integers(list(shape), f"{stem}/shape")], f"{stem}/sign")

    def _append_scaled(self, name: str, factor: float, output: str) -> str:
        """Appends `output` = `name` * `factor` unit roundoffs; returns `output`."""
        import numpy as np
        import onnx.numpy_helper

        constant = np.array(factor * _UNIT_ROUNDOFF, dtype=np.float32)
        self.constants.append(onnx.numpy_helper.from_array(constant, f"{output}/factor"))
        return self._append_node("Mul", [name, f"{output}/factor"], output)

    def _add_integers(self, values: Sequence[int], name: str) -> str:
        """Adds a constant vector called `name`; returns the name."""
        import numpy as np
        import onnx.numpy_helper

        self.constants.append(onnx.numpy_helper.from_array(np.array(values, dtype=np.int64), name))
        return name

    def _append_node(self, op_type: str, inputs: Sequence[str], output: str) -> str:
        import onnx.helper

        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [output], name=output))
        return output

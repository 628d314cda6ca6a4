"""Replaces nodes of ONNX models that torch-mlir lowers to wrong numbers by nodes that it lowers right.

The differences were found by the node tests of the `onnx` package and by comparison with ONNX Runtime. Each replacement
is a function of ONNX ops, written in ONNX's text format, which is then inlined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from buddy.compiler.protocol.errors import BuddyError

if TYPE_CHECKING:
    import onnx

    # The element type and the shape of each value, by name.
    Types = dict[str, onnx.TypeProto.Tensor]

_DOMAIN = "buddy"
# Models of older operator sets are converted to this one if they have one of these ops: torch-mlir lowers only the
# present semantics, and ONNX's text of a replacement has operands that were attributes before.
_OPSET = 13
_UPGRADED_OPS = {"Softmax", "LpNormalization"}
# The activations for which torch-mlir's lowering is right; they include ONNX's defaults.
_ACTIVATIONS = {"Sigmoid", "Tanh", "Relu"}
_RECURRENT_OPS = {"RNN", "GRU", "LSTM"}
# The names of ONNX's float types in its text format, by their numbers in `TensorProto.DataType`.
_FLOAT_NAMES = {1: "float", 10: "float16", 11: "double"}
_INT64 = 7


class UnsupportedNodeError(BuddyError):
    """A node that would compute wrong numbers, and that no other nodes replace; the text names it and the reason."""


def replace_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns `model` with replacements for the nodes that torch-mlir lowers wrong.

    The types of the values in `model` must be known; those of new values are not inferred. Returns the same object if
    no node has to be replaced. Raises `UnsupportedNodeError` for a node without a replacement.
    """
    import onnx.inliner
    import onnx.version_converter

    opset = max((entry.version for entry in model.opset_import if not entry.domain), default=_OPSET)
    if opset < _OPSET:
        _check_old_ops(model)
    if opset < _OPSET and any(node.op_type in _UPGRADED_OPS for node in model.graph.node):
        model, opset = onnx.version_converter.convert_version(model, _OPSET), _OPSET
    types = {
        value.name: value.type.tensor_type
        for value in (*model.graph.value_info, *model.graph.input, *model.graph.output)
    }
    types |= {tensor.name: _type_of(tensor) for tensor in model.graph.initializer}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    texts = {number: _replacement_text(node, types, constants) for number, node in enumerate(model.graph.node)}
    replaced = {number: text for number, text in texts.items() if text}
    return _inline_functions(model, replaced, opset) if replaced else model


def _replacement_text(node: onnx.NodeProto, types: Types, constants: dict[str, onnx.TensorProto]) -> str:
    """Returns the text of the replacement of a node; "" if it is not replaced. Raises `UnsupportedNodeError`."""
    if node.domain:
        return ""
    if node.op_type in _RECURRENT_OPS:
        _check_recurrent(node, types, constants)
    elif node.op_type == "SoftmaxCrossEntropyLoss":
        if len(node.input) > 2 and _attribute(node, "reduction", "mean") == "mean":
            # torch-mlir divides by the number of the losses instead of the sum of their weights.
            _reject(node, "class weights with the reduction `mean`")
    elif node.op_type == "Pad" and _attribute(node, "mode", "constant") == "wrap":
        _reject(node, "the mode `wrap`")  # torch-mlir's lowering never ends
    elif replacement := _REPLACEMENTS.get(node.op_type):
        return replacement(node, types)
    return ""


def _inline_functions(model: onnx.ModelProto, texts: dict[int, str], opset: int) -> onnx.ModelProto:
    """Replaces nodes by functions of their operands, and inlines these; `texts` has their bodies by number of node."""
    import onnx.inliner
    import onnx.parser

    result = type(model)()
    result.CopyFrom(model)
    result.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    for number, text in texts.items():
        node, name = result.graph.node[number], f"replacement_{number}"
        header = f'<domain: "{_DOMAIN}", opset_import: ["" : {opset}]>'
        inputs, outputs = (
            ", ".join(f"{kind}{n}" for n in range(len(names)))
            for kind, names in (("x", node.input), ("y", node.output))
        )
        result.functions.append(
            onnx.parser.parse_function(f"{header}\n{name} ({inputs}) => ({outputs}) {{\n{text}\n}}")
        )
        node.domain, node.op_type = _DOMAIN, name
        del node.attribute[:]
    return onnx.inliner.inline_local_functions(result)


def _type_of(tensor: onnx.TensorProto) -> onnx.TypeProto.Tensor:
    import onnx.helper

    return onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims)).tensor_type


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Returns the value of an attribute of `node`, or `default` if the node does not have it."""
    import onnx.helper

    attribute = next((attribute for attribute in node.attribute if attribute.name == name), None)
    if attribute is None:
        return default
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _shape(value_type: onnx.TypeProto.Tensor) -> list[int]:
    return [size.dim_value for size in value_type.shape.dim]


# ---- rejected nodes -----------------------------------------------------------------------------------------------


def _check_old_ops(model: onnx.ModelProto) -> None:
    """Raises `UnsupportedNodeError` for nodes of old operator sets that torch-mlir reads as those of a newer one."""
    for node in model.graph.node:
        if node.op_type == "Hardmax":
            _reject(node, "the meaning of an operator set before 13")
        if node.op_type == "Upsample" and _attribute(node, "mode", "nearest") != "nearest":
            _reject(node, "linear interpolation of an operator set before 10")
        if (
            node.op_type == "AveragePool"
            and _attribute(node, "ceil_mode", 0)
            and _attribute(node, "count_include_pad", 0)
        ):
            _reject(node, "windows beyond the padding (ceil_mode) of an operator set before 13")


def _check_recurrent(node: onnx.NodeProto, types: Types, constants: dict[str, onnx.TensorProto]) -> None:
    """Raises `UnsupportedNodeError` for a recurrent layer with a part that torch-mlir ignores."""
    import onnx.numpy_helper

    inputs = [*node.input, *[""] * (8 - len(node.input))]
    steps = _shape(types[inputs[0]])[0]
    lengths = constants.get(inputs[4])
    if inputs[4] and (lengths is None or any(onnx.numpy_helper.to_array(lengths) != steps)):
        _reject(node, "sequences of different lengths (sequence_lens)")
    if inputs[7]:
        _reject(node, "peephole weights (P)")
    names = [name.decode() for name in _attribute(node, "activations", [])]
    unknown = next((name for name in names if name not in _ACTIVATIONS), "")
    if unknown:
        _reject(node, f"the activation {unknown}")
    for name in ("clip", "activation_alpha", "activation_beta"):
        if _attribute(node, name, None) is not None:
            _reject(node, f"the attribute {name}")


def _reject(node: onnx.NodeProto, what: str) -> None:
    """Raises the error for a node; `what` is the part of it that torch-mlir lowers wrong."""
    raise UnsupportedNodeError(f"its node {node.name or node.output[0]} ({node.op_type}) has {what}")


# ---- replacements ----------------------------------------------------------------------------------------------------
# The text of a replacement has the operands x0, x1 and so on, and the results y0, y1 and so on.


def _float_constant(element_type: int, value: float) -> str:
    """Returns the text of a constant in one of ONNX's float types, a key of `_FLOAT_NAMES`."""
    return f"Constant <value = {_FLOAT_NAMES[element_type]} {{{value!r}}}> ()"


def _lp_normalization(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a node in which torch-mlir makes NaN of a vector of norm 0, which stays 0."""
    axis, p = _attribute(node, "axis", -1), _attribute(node, "p", 2)
    powers = "Abs (x0)" if p == 1 else "Mul (x0, x0)"
    shape = _shape(types[node.input[0]])
    kind = types[node.input[0]].elem_type
    return f"""
        powers = {powers}
        axes = Constant <value_ints = [{axis % len(shape)}]> ()
        sum = ReduceSum <keepdims = 1> (powers, axes)
        norm = {"Identity" if p == 1 else "Sqrt"} (sum)
        zero = {_float_constant(kind, 0.0)}
        one = {_float_constant(kind, 1.0)}
        is_zero = Equal (norm, zero)
        divisor = Where (is_zero, one, norm)
        y0 = Div (x0, divisor)"""


def _space_to_depth(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a node in the mode CRD, which torch-mlir computes as DCR: blocks are columns, rows, depth."""
    if _attribute(node, "mode", "DCR") != "CRD":
        return ""
    size = _attribute(node, "blocksize", 1)
    n, c, h, w = _shape(types[node.input[0]])
    split, joined = [n, c, h // size, size, w // size, size], [n, c * size * size, h // size, w // size]
    return f"""
        split = Constant <value_ints = {split}> ()
        blocks = Reshape (x0, split)
        moved = Transpose <perm = [0, 1, 3, 5, 2, 4]> (blocks)
        joined = Constant <value_ints = {joined}> ()
        y0 = Reshape (moved, joined)"""


def _dequantize(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a node with zero points by channel in unsigned bytes, which torch-mlir reads as signed ones."""
    import onnx

    zeros = types.get(node.input[2]) if len(node.input) > 2 else None
    if zeros is None or zeros.elem_type != onnx.TensorProto.UINT8 or len(_shape(zeros)) != 1 or _shape(zeros) == [1]:
        return ""
    dims = len(_shape(types[node.input[0]]))
    axis = _attribute(node, "axis", 1) % dims
    by_channel = [1] * dims
    by_channel[axis] = -1
    kind = types[node.input[1]].elem_type
    return f"""
        by_channel = Constant <value_ints = {by_channel}> ()
        flat_zeros = Cast <to = {onnx.TensorProto.INT32}> (x2)
        zeros = Reshape (flat_zeros, by_channel)
        scales = Reshape (x1, by_channel)
        wide = Cast <to = {onnx.TensorProto.INT32}> (x0)
        steps = Sub (wide, zeros)
        floats = Cast <to = {kind}> (steps)
        y0 = Mul (floats, scales)"""


def _average_pool(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a node with windows beyond the padding (`ceil_mode`): torch-mlir divides by all of their elements.

    The divisor is the number of a window's elements in the padded tensor, as in the definition of AveragePool in ONNX's
    documentation of operators.
    """
    if not (_attribute(node, "ceil_mode", 0) and _attribute(node, "count_include_pad", 0)):
        return ""
    window = _attribute(node, "kernel_shape", [])
    ones, zeros = [1] * len(window), [0] * 2 * len(window)
    strides, dilations = _attribute(node, "strides", ones), _attribute(node, "dilations", ones)
    pads, sizes = _attribute(node, "pads", zeros), _shape(types[node.input[0]])[2:]
    result_sizes, begins, ends = _shape(types[node.output[0]])[2:], pads[: len(window)], pads[len(window) :]
    counts, beyond = list[list[int]](), list[int]()
    for taps, stride, step, size, begin, end, results in zip(
        window, strides, dilations, sizes, begins, ends, result_sizes, strict=True
    ):
        padded = begin + size + end
        counts.append(
            [len(range(start, min(padded, start + taps * step), step)) for start in range(0, results * stride, stride)]
        )
        beyond.append(max(0, (results - 1) * stride + (taps - 1) * step + 1 - padded))
    if not any(beyond) or _attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return ""
    kind = types[node.input[0]].elem_type
    # An attribute of AveragePool since operator set 19.
    spacing = f", dilations = {dilations}" if dilations != ones else ""
    factors = ", ".join(repr(math.prod(window) / math.prod(elements)) for elements in product(*counts))
    return f"""
        borders = Constant <value_ints = {[0, 0, *begins, 0, 0, *(map(sum, zip(ends, beyond, strict=True)))]}> ()
        zero = {_float_constant(kind, 0.0)}
        padded = Pad (x0, borders, zero)
        means = AveragePool <kernel_shape = {window}, strides = {strides}{spacing}> (padded)
        factors = Constant <value = {_FLOAT_NAMES[kind]}[1, 1, {", ".join(map(str, result_sizes))}] {{{factors}}}> ()
        y0 = Mul (means, factors)"""


def _max_pool(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a node whose positions of maxima torch-mlir counts within each channel, not within the whole tensor."""
    if len(node.output) < 2 or not node.output[1] or _attribute(node, "storage_order", 0):
        return ""  # torch-mlir rejects columns first
    n, c, *sizes = _shape(types[node.input[0]])
    channel = math.prod(sizes)
    firsts = ", ".join(str(number * channel) for number in range(n * c))
    return f"""
        y0, in_channel = MaxPool {_attributes(node)} (x0)
        firsts = Constant <value = int64[{", ".join(map(str, [n, c, *[1] * len(sizes)]))}] {{{firsts}}}> ()
        y1 = Add (in_channel, firsts)"""


def _attributes(node: onnx.NodeProto) -> str:
    """Returns the attributes of a node in ONNX's text format."""
    import onnx.helper

    values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    texts = (f'{name} = "{v.decode()}"' if isinstance(v, bytes) else f"{name} = {v}" for name, v in values.items())
    return f"<{', '.join(texts)}>" if values else ""


def _in_wider_integers(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a node on unsigned bytes, which torch-mlir reads as signed ones, by the op on 32-bit integers."""
    import onnx

    kind = types[node.input[0]].elem_type
    if kind != onnx.TensorProto.UINT8:
        return ""
    names = [f"x{number}" if name else "" for number, name in enumerate(node.input)]
    casts = [f"wide_{name} = Cast <to = {onnx.TensorProto.INT32}> ({name})" for name in names if name]
    wide_names = ", ".join(f"wide_{name}" if name else "" for name in names)
    return "\n".join(
        [*casts, f"wide = {node.op_type} {_attributes(node)} ({wide_names})", f"y0 = Cast <to = {kind}> (wide)"]
    )


def _integer_product(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a product of unsigned bytes without a zero point, which torch-mlir multiplies as signed ones."""
    import onnx

    zero_points = [*node.input, "", ""][2:4]
    kinds = [types[name].elem_type for name in node.input[:2]]
    is_missing = [not name and kind == onnx.TensorProto.UINT8 for name, kind in zip(zero_points, kinds, strict=True)]
    if not any(is_missing):
        return ""
    names = {onnx.TensorProto.UINT8: "uint8", onnx.TensorProto.INT8: "int8"}
    zeros = [f"zero{number} = Constant <value = {names[kind]} {{0}}> ()" for number, kind in enumerate(kinds)]
    chosen = [f"x{number + 2}" if name else f"zero{number}" for number, name in enumerate(zero_points)]
    return "\n".join([*zeros, f"y0 = MatMulInteger (x0, x1, {', '.join(chosen)})"])


def _power(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a power of integers with a float exponent, which torch-mlir rounds to nearest, not towards zero."""
    kind, exponent = (types[name].elem_type for name in node.input)
    if kind in _FLOAT_NAMES or exponent not in _FLOAT_NAMES:
        return ""
    return f"""
        base = Cast <to = {exponent}> (x0)
        power = Pow (base, x1)
        y0 = Cast <to = {kind}> (power)"""


def _grid_sample(node: onnx.NodeProto, types: Types) -> str:
    """Replaces a node in which torch-mlir rounds points between two pixels up, and reads outside of the image.

    Follows the definition of GridSample in ONNX's documentation of operators, for images.
    """
    mode, padding = _attribute(node, "mode", "linear"), _attribute(node, "padding_mode", "zeros")
    image, grid = types[node.input[0]], types[node.input[1]]
    if len(_shape(image)) != 4 or mode not in ("linear", "bilinear", "nearest"):
        return ""  # torch-mlir rejects them
    n, c, h, w = _shape(image)
    _, rows, columns, _ = _shape(grid)
    number = partial(_float_constant, grid.elem_type)
    aligned, lines = bool(_attribute(node, "align_corners", 0)), list[str]()
    lines.append(f"zero = {number(0.0)}\n half = {number(0.5)}\n one = {number(1.0)}\n two = {number(2.0)}")
    for axis, index, size in (("u", 0, w), ("v", 1, h)):
        lines += _locate_pixels(axis, index, size, mode, padding, aligned, number)
    lines.append(f"""
        flat = Constant <value_ints = {[n, c, h * w]}> ()
        pixels = Reshape (x0, flat)
        row = Constant <value_ints = {[n, 1, rows * columns]}> ()
        every = Constant <value_ints = {[n, c, rows * columns]}> ()
        shape = Constant <value_ints = {[n, c, rows, columns]}> ()
        width = Constant <value_int = {w}> ()""")
    corners = [("u0", "v0")] if mode == "nearest" else [(u, v) for v in ("v0", "v1") for u in ("u0", "u1")]
    for index, (u, v) in enumerate(corners):
        lines += _read_corner(u, v, f"c{index}", weighted=mode != "nearest", image_type=image.elem_type)
    names = [f"c{index}_part" for index in range(len(corners))]
    total = names[0] if len(names) == 1 else "total"
    if len(names) > 1:
        lines.append(f"total = Sum ({', '.join(names)})")
    lines.append(f"y0 = Reshape ({total}, shape)")
    return "\n".join(lines)


def _locate_pixels(
    axis: str, index: int, size: int, mode: str, padding: str, aligned: bool, number: Callable[[float], str]
) -> Iterable[str]:
    """Yields the lines of `{axis}0`, the pixels along the axis that the grid's coordinates `index` point to.

    Unless the mode is "nearest", `{axis}1` are the next pixels, and both have weights. `size` is that of the image.
    """
    yield f"""
            {axis}_index = Constant <value_int = {index}> ()
            {axis}_grid = Gather <axis = 3> (x1, {axis}_index)
            {axis}_last = {number(float(size - 1))}
            {axis}_size = {number(float(size))}
            {axis}_from_one = Add ({axis}_grid, one)"""
    if aligned:
        yield f"{axis}_halves = Div ({axis}_from_one, two)\n {axis}_raw = Mul ({axis}_halves, {axis}_last)"
    else:
        yield f"""
                {axis}_scaled = Mul ({axis}_from_one, {axis}_size)
                {axis}_doubled = Sub ({axis}_scaled, one)
                {axis}_raw = Div ({axis}_doubled, two)"""
    position = f"{axis}_raw"  # the name of the value with the position along the axis so far
    if mode == "nearest":
        yield f"{axis}_rounded = Round ({position})"
        position = f"{axis}_rounded"
    if padding == "reflection":
        yield from _reflect(axis, position, size, aligned, number)
        position = f"{axis}_reflected"
    if padding != "zeros":
        yield f"{axis}_raised = Max ({position}, zero)\n {axis}_inside = Min ({axis}_raised, {axis}_last)"
        position = f"{axis}_inside"
    if mode == "nearest":
        yield f"{axis}0 = Identity ({position})"
    else:
        yield f"""
                {axis}0 = Floor ({position})
                {axis}1 = Add ({axis}0, one)
                {axis}1_weight = Sub ({position}, {axis}0)
                {axis}0_weight = Sub (one, {axis}1_weight)"""


def _reflect(axis: str, position: str, size: int, aligned: bool, number: Callable[[float], str]) -> Iterable[str]:
    """Yields the lines of `{axis}_reflected`: `position` reflected at the edges of the image.

    The edges go through the centres of the outermost pixels if `aligned`, else around these.
    """
    low, span = (0.0, float(size - 1)) if aligned else (-0.5, float(size))
    if not span:  # a single aligned pixel
        yield f"{axis}_reflected = Mul ({position}, zero)"
        return
    yield f"""
        {axis}_low = {number(low)}
        {axis}_span = {number(span)}
        {axis}_period = {number(2 * span)}
        {axis}_signed = Sub ({position}, {axis}_low)
        {axis}_distance = Abs ({axis}_signed)
        {axis}_times = Div ({axis}_distance, {axis}_period)
        {axis}_whole = Floor ({axis}_times)
        {axis}_before = Mul ({axis}_whole, {axis}_period)
        {axis}_forth = Sub ({axis}_distance, {axis}_before)
        {axis}_back = Sub ({axis}_period, {axis}_forth)
        {axis}_nearer = Min ({axis}_forth, {axis}_back)
        {axis}_reflected = Add ({axis}_nearer, {axis}_low)"""


def _read_corner(u: str, v: str, name: str, *, weighted: bool, image_type: int) -> Iterable[str]:
    """Yields the lines of `{name}_part`: the pixels at column `u` and row `v`, 0 outside, times the corner's weight."""
    for axis, value in (("u", u), ("v", v)):
        yield f"""
            {name}_{axis}_low = GreaterOrEqual ({value}, zero)
            {name}_{axis}_high = LessOrEqual ({value}, {axis}_last)
            {name}_{axis}_is_inside = And ({name}_{axis}_low, {name}_{axis}_high)
            {name}_{axis}_safe = Where ({name}_{axis}_is_inside, {value}, zero)
            {name}_{axis}_integer = Cast <to = {_INT64}> ({name}_{axis}_safe)"""
    yield f"""
        {name}_before = Mul ({name}_v_integer, width)
        {name}_position = Add ({name}_before, {name}_u_integer)
        {name}_row = Reshape ({name}_position, row)
        {name}_positions = Expand ({name}_row, every)
        {name}_values = GatherElements <axis = 2> (pixels, {name}_positions)
        {name}_is_inside = And ({name}_u_is_inside, {name}_v_is_inside)"""
    if weighted:
        yield f"""
            {name}_product = Mul ({u}_weight, {v}_weight)
            {name}_factor = Where ({name}_is_inside, {name}_product, zero)"""
    else:
        yield f"{name}_factor = Where ({name}_is_inside, one, zero)"
    yield f"""
        {name}_typed = Cast <to = {image_type}> ({name}_factor)
        {name}_factors = Reshape ({name}_typed, row)
        {name}_part = Mul ({name}_values, {name}_factors)"""


# By op type, the function that returns the text of a replacement, or "" if torch-mlir lowers the node right.
_REPLACEMENTS: dict[str, Callable[[onnx.NodeProto, Types], str]] = {
    "AveragePool": _average_pool,
    "LpNormalization": _lp_normalization,
    "SpaceToDepth": _space_to_depth,
    "DequantizeLinear": _dequantize,
    "GridSample": _grid_sample,
    "MaxPool": _max_pool,
    **dict.fromkeys(("Abs", "Clip", "Div", "Mod"), _in_wider_integers),
    "MatMulInteger": _integer_product,
    "Pow": _power,
}

"""Exports a model for ONNX Runtime, OpenVINO or IREE, quantises it by the tools of the runtime, and loads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from buddy.compiler.codegen.iree import options as iree_options
from buddy.compiler.codegen.iree.options import INSTALL_COMMAND, missing_packages
from buddy.compiler.codegen.iree.runtime import IreeModule
from buddy.compiler.mlir.bindings import exported_program_importer
from buddy.compiler.protocol.run_report import ONNX_RUNTIME
from buddy.compiler.support import files
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.target import host_has_features
from buddy.compiler.tools.bench.errors import WEIGHT_PRECISIONS
from buddy.compiler.tools.bench.plan import BenchPrecision
from buddy.compiler.tools.bench.subjects import FlatModel, LoadedModel, SideError, SubjectCall
from buddy.compiler.tools.runtimes import sessions
from buddy.compiler.tools.runtimes.onnx_model import as_array, as_tensor, suppress_exporter_warnings

_FUNCTION_NAME = "main"
# A protocol buffer has at most 2 GiB; ONNX Runtime's tools read larger models from several files only in part.
_MAX_FILE_BYTES = 1900 << 20
# The number of weights that share a scale in models with 8-bit and with 4-bit weights.
_GROUP_SIZE = 128


def prepare_iree(loaded: LoadedModel, threads: int) -> SubjectCall:
    """Compiles the subject for IREE, and returns a function that runs it.

    Parameters are constants of the module; inputs are already in device buffers. Raises `SideError`.
    """
    if problem := missing_packages():
        raise SideError(f"{problem}: {INSTALL_COMMAND}")
    import iree.compiler as compiler

    flat = FlatModel(loaded)
    # torch-mlir's importer rejects buffers that `state_dict` leaves out.
    for submodule in flat.modules():
        submodule._non_persistent_buffers_set.clear()
    (tensors,) = flat.inputs
    text = str(
        exported_program_importer().export_and_import(flat.export(), output_type="torch", func_name=_FUNCTION_NAME)
    )
    binary = compiler.compile_str(
        text, input_type=compiler.InputType.TORCH, extra_args=list(iree_options.DEFAULT_FLAGS)
    )
    module = IreeModule(
        binary, _FUNCTION_NAME, iree_options.runtime_driver(iree_options.DEFAULT_FLAGS, threads), threads
    )
    buffers = [module.on_device(tensor.numpy()) for tensor in tensors]
    return lambda: [torch.from_numpy(value) for value in module(buffers)]


@dataclass(frozen=True)
class PreparedRuntime:
    """A call that runs the subject, and a note for the report.

    `matrices` are the weights that the runtime multiplies by, as floats, if it rounds only weights.
    """

    call: SubjectCall
    note: str = ""
    matrices: list[torch.Tensor] = field(default_factory=list)


def prepare_runtime(name: str, loaded: LoadedModel, precision: BenchPrecision, threads: int) -> PreparedRuntime:
    """Exports the subject to ONNX, and loads it in runtime `name`, in a precision that the runtime's tools give it.

    Parameters are constants of the model. Raises `SideError`.
    """
    if problem := sessions.missing_packages(name):
        raise SideError(f"{problem}: {sessions.INSTALL_COMMAND}")
    flat = FlatModel(loaded)
    with suppress_exporter_warnings(), torch.no_grad():
        program = torch.onnx.export(flat.export(), dynamo=True, verbose=False)
    assert program is not None
    arrays = [[as_array(tensor) for tensor in tensors] for tensors in flat.inputs]
    with scratch_folder(files.RUNTIMES) as folder:
        path = Path(folder, "model.onnx")
        program.save(path, external_data=sum(tensor.nbytes for tensor in flat.state_dict().values()) > _MAX_FILE_BYTES)
        if name == ONNX_RUNTIME:
            quantized, note = _quantize_onnx(path, precision, arrays[0]), ""
            run = sessions.load_onnx_runtime(quantized, threads)
            matrices = list(_onnx_weights(quantized)) if precision in WEIGHT_PRECISIONS else []
        else:
            run, note, matrices = _load_openvino(path, precision, arrays[0], threads)
    if precision in WEIGHT_PRECISIONS and not matrices:
        # ONNX Runtime's tool rounds weights of `MatMul` only; a product of tensors of two dims is exported as `Gemm`.
        raise SideError(f"its tool rounds no weights of this model, so it has no {precision}")
    return PreparedRuntime(lambda: [[as_tensor(value) for value in run(inputs)] for inputs in arrays], note, matrices)


# ---- ONNX Runtime ----------------------------------------------------------------------------------------------------


def _quantize_onnx(path: Path, precision: BenchPrecision, inputs: Sequence[Any]) -> Path:
    """Quantises a model by ONNX Runtime's own tools, and returns the new file; in float32, the model as it is."""
    if precision == "f32":
        return path
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader
    from onnxruntime.quantization.shape_inference import quant_pre_process

    preprocessed, quantized = path.with_name("prepared.onnx"), path.with_name("quantized.onnx")
    # The optimisations fold batch norms into convolutions. Symbolic shapes fail on models of the exporter.
    quant_pre_process(str(path), str(preprocessed), skip_symbolic_shape=True)
    # Without an instruction for dot products of bytes, sums of two products saturate at 16 bits: the documentation asks
    # for weights of 7 bits there.
    reduce_range = not (host_has_features("avx512_vnni") or host_has_features("avx_vnni"))
    if precision == "int8-dynamic":
        quantize_dynamic(str(preprocessed), str(quantized), per_channel=True, reduce_range=reduce_range)
    elif precision == "int8-static":

        class Reader(CalibrationDataReader):
            """The example inputs, once."""

            def __init__(self) -> None:
                self._calls = iter([dict(zip(_input_names(preprocessed), inputs, strict=True))])

            def get_next(self) -> dict[str, Any] | None:
                return next(self._calls, None)

        quantize_static(
            str(preprocessed), str(quantized), Reader(), per_channel=True, reduce_range=reduce_range,
            activation_type=QuantType.QUInt8,
        )  # fmt: skip
    else:
        _pack_weights(preprocessed, quantized, 8 if precision == "int8-weights" else 4)
    return quantized


def _pack_weights(path: Path, packed_path: Path, bits: int) -> None:
    """Writes the model with its matrices in groups of small integers, which the op `MatMulNBits` multiplies."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    int8_products = 4  # the fastest of its accuracy levels: activations are rounded to 8 bits
    quantizer = MatMulNBitsQuantizer(
        onnx.load(str(path)), bits=bits, block_size=_GROUP_SIZE, is_symmetric=True, accuracy_level=int8_products
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(packed_path), use_external_data_format=True)


def _onnx_weights(path: Path) -> Iterator[torch.Tensor]:
    """Yields the matrices [n, k] of a model of `_pack_weights`, as floats."""
    import onnx

    model = onnx.load(str(path))
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
            packed, scales = (torch.from_numpy(arrays[name].copy()) for name in node.input[1:3])
            bits, size, columns = (attributes[name] for name in ("bits", "block_size", "N"))
            # Of two integers in a byte, the first one is in the low half. Zero is in the middle of the unsigned range.
            steps = packed if bits == 8 else torch.stack([packed & 15, packed >> 4], -1)
            groups = steps.reshape(columns, -1, size).float() - (1 << (bits - 1))
            yield (groups * scales.reshape(columns, -1, 1)).flatten(1)[:, : attributes["K"]]


def _input_names(path: Path) -> list[str]:
    """Returns the names of the inputs of the ONNX model at `path`."""
    import onnx

    return [value.name for value in onnx.load(str(path), load_external_data=False).graph.input]


# ---- OpenVINO --------------------------------------------------------------------------------------------------------


def _load_openvino(
    path: Path, precision: BenchPrecision, inputs: Sequence[Any], threads: int
) -> tuple[sessions.Call, str, list[torch.Tensor]]:
    """Loads a model in OpenVINO; NNCF quantises one in integers.

    Returns a call from inputs to results, a note, and the weights if only these are rounded. With integers, the other
    ops have the precision that OpenVINO chooses, which the note names.
    """
    if precision in ("f32", "bf16"):
        return sessions.load_openvino(path, threads, precision)[0], "", []
    if find_spec("nncf") is None:
        raise SideError(f"OpenVINO needs NNCF for {precision}, not installed: pip install 'buddy-tui[bench]'")
    matrices = list[torch.Tensor]()

    def transform(model: Any) -> Any:
        compressed = _quantize_openvino(model, precision, inputs)
        if precision in WEIGHT_PRECISIONS:
            matrices.extend(_openvino_weights(compressed))
        return compressed

    run, float_precision = sessions.load_openvino(path, threads, transform=transform)
    return run, f"floats are {float_precision}", matrices


def _openvino_weights(model: Any) -> Iterator[torch.Tensor]:
    """Yields the constant matrices that a model multiplies by, as OpenVINO makes floats of them."""
    import openvino

    core = openvino.Core()
    for op in model.get_ordered_ops():
        for value in op.input_values() if op.get_type_name() == "MatMul" else ():
            if value.get_partial_shape().rank.get_length() == 2 and _is_constant(value.get_node()):
                constant_model = openvino.Model([openvino.opset8.result(value)], [])
                compiled = core.compile_model(constant_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
                yield torch.from_numpy(compiled([])[0].copy()).float()


def _is_constant(node: Any) -> bool:
    """Returns whether a node of OpenVINO's model depends on constants only."""
    inputs = [value.get_node() for value in node.input_values()]
    return all(map(_is_constant, inputs)) if inputs else bool(node.get_type_name() == "Constant")


def _quantize_openvino(model: Any, precision: BenchPrecision, inputs: Sequence[Any]) -> Any:
    """Quantises OpenVINO's `model` by NNCF; its dynamic quantisation at run time applies to compressed weights."""
    import nncf

    nncf.set_log_level("ERROR")
    if precision == "int8-static":
        op_types = {op.get_type_name() for op in model.get_ops()}
        attention_ops = op_types & {"Softmax", "ScaledDotProductAttention"}
        model_type = nncf.ModelType.TRANSFORMER if attention_ops else None
        dataset = nncf.Dataset([list(inputs)], lambda item: item)
        return nncf.quantize(model, dataset, subset_size=1, model_type=model_type)
    if precision == "int4-weights":
        mode = nncf.CompressWeightsMode.INT4_SYM
        return nncf.compress_weights(model, mode=mode, group_size=_GROUP_SIZE)
    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)

"""Exports programs as ONNX models, and maps each node to the value of the model that has its result."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.graph.operations.effects import RandomOp
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import compute_node, symbol_values
from buddy.compiler.runtime.torch_values import dense, to_torch_dtype
from buddy.compiler.tools.runtimes.sessions import ModelFile, write_arrays

if TYPE_CHECKING:
    import numpy as np
    import onnx


# The key of the metadata of the exporter's nodes that has the name of the program's node.
_NODE_KEY = "buddy_node"
# Initializers of at least this size are written to a separate file: a protocol buffer has at most 2 GiB.
_MIN_EXTERNAL_BYTES = 1024
_MAX_MESSAGE_CHARACTERS = 300


class NoModelError(BuddyError):
    """A program cannot be exported as an ONNX model; the diagnostic has the reason."""


@dataclass(frozen=True)
class RuntimeModel:
    """An ONNX model in `folder`, with its large initializers in another file of the folder.

    `proto` is the model without the data of these initializers. `inputs` are the tensors to call it with, in order.
    `values` maps the name of each node that can be marked to the name of its value in the model, in the program's
    order. `results` has, for each tensor that the program returns, the index of the model's output, or the tensor
    itself if it is an input of the program.
    """

    folder: Path
    proto: Any
    inputs: tuple[torch.Tensor, ...]
    values: dict[str, str]
    results: tuple[int | torch.Tensor, ...]

    def write(self, marked: Sequence[str] = (), name: str = "model") -> ModelFile:
        """Writes the model with the values of the nodes `marked` as further outputs, in order. Raises `OSError`."""
        import onnx

        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        value_infos = {value.name: value for value in proto.graph.value_info}
        for node in marked:
            proto.graph.output.append(value_infos[self.values[node]])
        path, inputs = self.folder / f"{name}.onnx", self.folder / "inputs.bin"
        path.write_bytes(proto.SerializeToString())
        arrays = write_arrays(inputs, [as_array(tensor) for tensor in self.inputs])
        return ModelFile(path, inputs, arrays)

    def split(self, outputs: Sequence[np.ndarray]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Splits the outputs of the model with marked nodes into the program's results and the values of the nodes."""
        tensors = [as_tensor(output) for output in outputs]
        count = len(self.proto.graph.output)
        results = [entry if isinstance(entry, torch.Tensor) else tensors[entry] for entry in self.results]
        return results, tensors[count:]


def make_model(captured: CapturedGraph, folder: Path) -> RuntimeModel:
    """Exports a program, or reads the model that it comes from, and writes its weights to `folder`.

    Raises `NoModelError`.
    """
    if captured.onnx_model:
        return _read_model_file(captured, folder)
    if captured.graph.imported_ir is not None and captured.torch_dialect is None and captured.eager is None:
        raise NoModelError("a program in MLIR has no ONNX form", captured.info.name, "open the PyTorch or ONNX program")
    random = next((op for op in captured.graph.operations if isinstance(op, RandomOp)), None)
    if random is not None or captured.seed is not None:
        what = "the program draws random numbers, and other runtimes draw different numbers"
        where = captured.info.name if random is None else random.location
        raise NoModelError(what, where, "set the model to eval mode, or pass the numbers as inputs")
    return _export_program(captured, folder)


# ---- programs of PyTorch ---------------------------------------------------------------------------------------------


class _GraphModule(torch.nn.Module):
    """Computes the nodes of a graph in order, with the name of each as metadata, and returns the values of `returned`.

    Parameters of the graph are buffers of the module, and its other placeholders are arguments of `forward`.
    """

    def __init__(self, captured: CapturedGraph, returned: Sequence[Op]) -> None:
        super().__init__()
        self._graph, self._returned = captured.graph, returned
        self._symbols = symbol_values(captured.graph, captured.tensors, captured.numbers)
        for index in captured.parameters:
            self.register_buffer(f"parameter_{index}", captured.tensors[index])

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        remaining = iter(inputs)
        values: dict[str, Any] = {}
        for index, placeholder in enumerate(self._graph.placeholders):
            buffer = getattr(self, f"parameter_{index}", None)
            values[placeholder.name] = next(remaining) if buffer is None else buffer
        for op in self._graph.operations:
            with torch.fx.traceback.annotate({_NODE_KEY: op.name}):
                values[op.name] = compute_node(op, values, self._symbols)
        return tuple(values[op.name] for op in self._returned)


def _export_program(captured: CapturedGraph, folder: Path) -> RuntimeModel:
    """Exports the captured graph by PyTorch's exporter. Raises `NoModelError` if that rejects it."""
    graph = captured.graph
    returned = [op for op in graph.results if isinstance(op, Op)]
    placeholders = dict(zip((op.name for op in graph.placeholders), captured.tensors, strict=True))
    outputs = list({op.name: op for op in returned if op.name not in placeholders}.values())
    if not outputs:
        raise NoModelError("the program computes nothing", captured.info.name)
    inputs = tuple(tensor for index, tensor in enumerate(captured.tensors) if index not in captured.parameters)
    try:
        with suppress_exporter_warnings(), torch.no_grad(), torch.fx.traceback.preserve_node_meta():
            exported = torch.export.export(_GraphModule(captured, outputs), inputs, strict=False)
            program = torch.onnx.export(exported, dynamo=True, verbose=False)
    except Exception as error:  # any error of an op's translation
        raise NoModelError(_export_problem(error), captured.info.name, "run it without this runtime") from error
    assert program is not None
    folder.mkdir(parents=True, exist_ok=True)
    program.save(folder / "exported.onnx", external_data=True)
    proto = _load_without_weights(folder / "exported.onnx")
    names = [op.name for op in outputs]
    results = tuple(placeholders[op.name] if op.name in placeholders else names.index(op.name) for op in returned)
    values = _value_names(program.exported_program, graph.operations)
    if len(proto.graph.input) != len(inputs):
        raise NoModelError(f"the exported model has {len(proto.graph.input)} inputs, the program {len(inputs)}")
    return RuntimeModel(folder, proto, inputs, _markable_values(proto, captured, values), results)


def _export_problem(error: Exception) -> str:
    """Returns an error message with the first line of the root cause of the exporter's error."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and isinstance(cause, Exception):
        causes.append(cause)
    lines = [line.strip() for line in str(causes[-1]).splitlines() if line.strip()]
    return f"PyTorch's exporter to ONNX rejects the program: {(lines or [type(error).__name__])[0]}"[
        :_MAX_MESSAGE_CHARACTERS
    ]


def _value_names(exported: Any, operations: Sequence[Op]) -> dict[str, str]:
    """Returns the name of the value in the exported program that has the result of each node, by the node's name.

    The exporter may compute a node by several nodes, of which the last has the result. A node with several results has
    no value; the `GetItemOp` nodes that select the results have one each.
    """
    # The last node that computes each node, and the node that selects each of several results.
    last: dict[str, str] = {}
    items: dict[tuple[str, Any], str] = {}
    for node in exported.graph.nodes:
        owner = (node.meta.get("custom") or {}).get(_NODE_KEY)
        if owner is None or node.op != "call_function":
            continue
        last[owner] = node.name
        if len(node.args) > 1 and isinstance(node.args[1], int):
            items[owner, node.args[1]] = node.name
    names = {}
    for op in operations:
        name = items.get((op.args[0].name, op.args[1])) if isinstance(op, GetItemOp) else last.get(op.name)
        if name is not None and not op.multiple:
            names[op.name] = name
    return names


@contextmanager
def suppress_exporter_warnings() -> Iterator[None]:
    """Suppresses the warnings of PyTorch's exporter, which concern its own packages."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# ---- ONNX files ------------------------------------------------------------------------------------------------------


def _read_model_file(captured: CapturedGraph, folder: Path) -> RuntimeModel:
    """Returns the model of an ONNX file, with the inputs that are weights converted back to initializers."""
    import onnx
    from onnx import numpy_helper

    proto = onnx.load_model_from_string(captured.onnx_model)
    tensors = dict(zip([value.name for value in proto.graph.input], captured.tensors, strict=True))
    weights = {value.name for index, value in enumerate(proto.graph.input) if index in captured.parameters}
    inputs = [value for value in proto.graph.input if value.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    proto.graph.initializer.extend(numpy_helper.from_array(tensors[name].numpy(), name) for name in sorted(weights))
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        proto, str(folder / "exported.onnx"), save_as_external_data=True, location="exported.data",
        size_threshold=_MIN_EXTERNAL_BYTES,
    )  # fmt: skip
    proto = _load_without_weights(folder / "exported.onnx")
    # The nodes of the captured graph have the names of the model's nodes.
    outputs_of_node = {node.name: [name for name in node.output if name] for node in proto.graph.node}
    values = {}
    for op in captured.graph.operations:
        if isinstance(op, GetItemOp):
            values[op.name] = outputs_of_node[op.args[0].name][op.args[1]]
        elif not op.multiple and len(outputs_of_node.get(op.name, ())) == 1:
            values[op.name] = outputs_of_node[op.name][0]
    output_indices = {value.name: index for index, value in enumerate(proto.graph.output)}
    results = tuple(
        tensors[op.name] if op.name in tensors else output_indices[values[op.name]] for op in captured.graph.results
    )
    input_tensors = tuple(tensors[value.name] for value in inputs)
    return RuntimeModel(folder, proto, input_tensors, _markable_values(proto, captured, values), results)


def make_evaluator(
    captured: CapturedGraph,
) -> Callable[[Sequence[torch.Tensor], Collection[str]], dict[str, torch.Tensor]]:
    """Returns a function that evaluates the model of an ONNX file with ONNX's reference evaluator.

    The function takes the tensors of all inputs and the names of values in the model, and returns these values by name.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = onnx.load_model_from_string(captured.onnx_model)
    inputs = [value.name for value in proto.graph.input]

    def evaluate(tensors: Sequence[torch.Tensor], names: Collection[str]) -> dict[str, torch.Tensor]:
        value_infos = {value.name: value for value in (*proto.graph.value_info, *proto.graph.output)}
        marked = onnx.ModelProto()
        marked.CopyFrom(proto)
        del marked.graph.output[:]
        marked.graph.output.extend(value_infos[name] for name in names)
        feeds = {name: tensor.numpy() for name, tensor in zip(inputs, tensors, strict=True)}
        return dict(zip(names, map(as_tensor, ReferenceEvaluator(marked).run(None, feeds)), strict=True))

    return evaluate


def make_result_function(captured: CapturedGraph) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """Returns a function that evaluates an ONNX file: it takes the tensors of all inputs and returns the results."""
    import onnx

    names = [value.name for value in onnx.load_model_from_string(captured.onnx_model).graph.output]
    evaluate = make_evaluator(captured)

    def results(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        values = evaluate(tensors, list(dict.fromkeys(names)))
        return [values[name] for name in names]

    return results


# ---- shared ----------------------------------------------------------------------------------------------------------


def _load_without_weights(path: Path) -> onnx.ModelProto:
    """Reads a model without the initializers that are in another file."""
    import onnx

    return onnx.load(str(path), load_external_data=False)


def _markable_values(proto: onnx.ModelProto, captured: CapturedGraph, values: dict[str, str]) -> dict[str, str]:
    """Returns the entries of `values` that the model can return with the shape and type of the node.

    Omits values that the exporter has folded or replaced, and the outputs of the model.
    """
    from onnx import helper

    type_of_value = {value.name: value.type.tensor_type for value in proto.graph.value_info}
    computed = {name for node in proto.graph.node for name in node.output}
    used_names = {value.name for value in proto.graph.output}
    markable = {}
    for op in captured.graph.operations:
        name = values.get(op.name, "")
        meta = op.metas[0] if op.metas else None
        if meta is None or name not in type_of_value or name not in computed or name in used_names:
            continue
        value_type = type_of_value[name]
        shape = tuple(dim.dim_value for dim in value_type.shape.dim)
        try:
            dtype = str(helper.tensor_dtype_to_np_dtype(value_type.elem_type))
        except KeyError:
            continue
        if shape == tuple(meta.shape) and dtype == str(to_torch_dtype(meta.dtype)).removeprefix("torch."):
            markable[op.name] = name
            used_names.add(name)
    return markable


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a tensor as a NumPy array; bfloat16 is a type of the package `ml_dtypes`."""
    dense_tensor = dense(tensor.detach())
    if dense_tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return dense_tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return dense_tensor.numpy()


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a NumPy array as a tensor."""
    import numpy as np

    value = np.asarray(array)
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.as_tensor(value)

"""Readers of files through PyTorch, ONNX and MLIR, with valid files as seeds; each library in its own process."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reliability.hostile_files import FileReader
from tests.reliability.readers import MLIR, in_memory, written


def _opened(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    path = Path(in_memory()) / name
    return lambda data: read(written(path, data))


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def _torch() -> dict[str, FileReader]:
    import torch

    from buddy.compiler.importers.sources import exported_program, modules, torchscript
    from buddy.compiler.importers.sources.opening import Opening
    from buddy.compiler.importers.sources.pickles import list_globals, read_weights
    from buddy.compiler.protocol.source_locations import SourceError
    from buddy.compiler.runtime.captured import InputError

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval()
    refuses = (SourceError,)

    def opening(path: Path) -> Opening:
        return Opening(path, title=path.name)

    def exported(path: Path) -> None:
        exported_program.check_ops(opening(path), exported_program._read(opening(path)))

    def pickled(path: Path) -> None:
        list_globals(path)
        modules._no_program_error(path.name, read_weights(path, path.name))

    return {
        "weights (.pt)": FileReader((_saved(model.state_dict()),), _opened("a.pt", pickled), refuses),
        "pickle": FileReader(_pickles(model), _opened("b.pt", pickled), refuses),
        "TorchScript": FileReader(
            (_scripted(model),), _opened("c.pt", lambda path: torchscript._read(opening(path))), refuses
        ),
        "exported program (.pt2)": FileReader(_exported(model), _opened("d.pt2", exported), refuses),
        "inputs (.npy)": FileReader(_arrays(), lambda data: _inputs("a.npy", data), (InputError,)),
        "inputs (.npz)": FileReader((_archive(),), lambda data: _inputs("a.npz", data), (InputError,)),
    }


def _saved(value: Any, **options: Any) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def _pickles(model: Any) -> tuple[bytes, ...]:
    """Files of PyTorch's former format, plain pickles, and ones that would run code."""

    class Harm:
        def __reduce__(self) -> Any:
            import os

            return os.system, ("true",)

    old = _saved(model.state_dict(), _use_new_zipfile_serialization=False)
    return old, pickle.dumps({"a": [1, 2.5, "x"]}), pickle.dumps(Harm()), pickle.dumps(Harm(), protocol=0)


def _scripted(model: Any) -> bytes:
    import torch

    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    return file.getvalue()


def _exported(model: Any) -> tuple[bytes, ...]:
    import torch

    found = []
    batch = torch.export.Dim("batch")
    for dims in (None, [{0: batch}]):
        file = io.BytesIO()
        torch.export.save(torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=dims), file)
        found.append(file.getvalue())
    return tuple(found)


def _arrays() -> tuple[bytes, ...]:
    import numpy as np

    found = []
    odd = (np.array(["a", "b"]), np.zeros(2, "i4,f8"), np.asfortranarray(np.ones((2, 2))))
    for array in (np.ones((2, 3), "f4"), np.arange(4), *odd):
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return tuple(found)


def _archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in zip(("x.npy", "input/y.npy"), _arrays()[:1] * 2, strict=True):
            archive.writestr(name, data)
    return file.getvalue()


def _inputs(title: str, data: bytes) -> None:
    import torch

    from buddy.compiler.protocol.run_report import InputChoice
    from buddy.compiler.runtime import captured as choose_inputs

    found = choose_inputs._read_file(InputChoice("file", title=title, content=data))
    for value in choose_inputs._order_by_inputs(found, ["x", "y"] if title.endswith("z") else ["x"]):
        choose_inputs._fit_input(value, torch.ones(2, 3), "x")


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def _onnx() -> dict[str, FileReader]:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    from buddy.compiler.importers.onnx_files.model import build_graph, prepare_model
    from buddy.compiler.protocol.source_locations import SourceError

    def read(path: Path) -> None:
        model = prepare_model(path)
        build_graph(model, "small", path)

    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "m"])]
    weights = [numpy_helper.from_array(np.ones((8, 4), "f4"), "w"), numpy_helper.from_array(np.array([-1]), "axes")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="/layer/MatMul"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("ReduceSum", ["r", "axes"], ["y"], keepdims=1),
    ]
    graph = helper.make_graph(nodes, "small", values, results, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return {"ONNX model": FileReader((model.SerializeToString(),), _opened("a.onnx", read), (SourceError,))}


# ---- MLIR ------------------------------------------------------------------------------------------------------------

_PROGRAM = """func.func @main(%x: tensor<4x?xf32>, %s: f32) -> tensor<4x?xf32> {
  %c1 = arith.constant 1 : index
  %d = tensor.dim %x, %c1 : tensor<4x?xf32>
  %e = tensor.empty(%d) : tensor<4x?xf32>
  %f = linalg.fill ins(%s : f32) outs(%e : tensor<4x?xf32>) -> tensor<4x?xf32>
  %0 = linalg.add ins(%x, %f : tensor<4x?xf32>, tensor<4x?xf32>) outs(%e : tensor<4x?xf32>) -> tensor<4x?xf32>
  return %0 : tensor<4x?xf32>
}
"""
_LLVM_DIALECT = """llvm.func @f(%p: !llvm.ptr, %n: i64) {
  %0 = llvm.mlir.constant(1.0 : f32) : f32
  %1 = llvm.getelementptr %p[%n] : (!llvm.ptr, i64) -> !llvm.ptr, f32
  llvm.store %0, %1 : f32, !llvm.ptr
  llvm.return
}
"""


class _NotReadError(Exception):
    """The answer contains an error."""


def _mlir() -> dict[str, FileReader]:
    from buddy.compiler.importers.mlir_files.entry_points import read_entry_points
    from buddy.compiler.importers.mlir_files.read_request import ReadRequest
    from buddy.compiler.importers.mlir_files.reading import new_context
    from buddy.compiler.mlir.bindings import ir

    def read(data: bytes) -> None:
        found = read_entry_points(ReadRequest(data, "a.mlir", "", ()))
        if found.problem is not None:
            raise _NotReadError(found.problem.what)

    texts = (_PROGRAM, _LLVM_DIALECT, f"{_PROGRAM}// -----\n{_LLVM_DIALECT}", MLIR)
    bytecodes = []
    for text in texts[:2]:
        file = io.BytesIO()
        with new_context():
            ir.Module.parse(text).operation.write_bytecode(file)
        bytecodes.append(file.getvalue())
    encoded = tuple(text.encode() for text in texts)
    return {
        "MLIR": FileReader(encoded, read, (_NotReadError,)),
        "MLIR bytecode": FileReader(tuple(bytecodes), read, (_NotReadError,)),
    }


LIBRARIES: dict[str, Callable[[], dict[str, FileReader]]] = {"torch": _torch, "onnx": _onnx, "mlir": _mlir}

"""Imports an ONNX model by torch-mlir, in a one-shot process: it loads MLIR, which the caller avoids, and no torch."""

from __future__ import annotations

import msgspec

# How much of an error is told.
_LONGEST = 400


class ImportedModel(msgspec.Struct, frozen=True):
    """The model's text, or the reason why the importer rejects it."""

    text: str = ""
    problem: str = ""


def imported(content: bytes) -> ImportedModel:
    """Imports a serialized model."""
    try:
        return ImportedModel(_written(content))
    except Exception as error:  # the importer has no exception type for unsupported models
        line = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
        return ImportedModel(problem=f"{type(error).__name__}: {line}"[:_LONGEST])


def _written(content: bytes) -> str:
    import onnx

    from buddy.compiler.mlir import bindings

    found, dialect = bindings.onnx_importer(), bindings.torch_dialect()
    assert dialect is not None
    context = bindings.ir.Context()
    dialect.register_dialect(context)
    info = found.ModelInfo(onnx.load_model_from_string(content))
    module = info.create_module(context).operation
    found.NodeImporter.define_function(info.main_graph, module).import_all()
    module.verify()
    return str(module.get_asm(enable_debug_info=True))

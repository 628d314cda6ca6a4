"""Runs torch-mlir's importer of ONNX models, in a one-shot process that loads MLIR but not torch."""

from __future__ import annotations

import msgspec

# Maximum length of a reported error, in characters.
_MAX_PROBLEM_CHARACTERS = 400


class ImportedModel(msgspec.Struct, frozen=True):
    """The model's text, or the reason why the importer rejects it."""

    text: str = ""
    problem: str = ""


def import_model(content: bytes) -> ImportedModel:
    """Imports a serialized `ModelProto`."""
    try:
        return ImportedModel(_to_mlir(content))
    except Exception as error:  # the importer has no exception type for unsupported models
        line = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
        return ImportedModel(problem=f"{type(error).__name__}: {line}"[:_MAX_PROBLEM_CHARACTERS])


def _to_mlir(content: bytes) -> str:
    """Returns the model as text in the torch dialect, with locations."""
    import onnx

    from buddy.compiler.mlir import bindings

    importer, dialect = bindings.onnx_importer(), bindings.torch_dialect()
    assert dialect is not None
    context = bindings.ir.Context()
    dialect.register_dialect(context)
    info = importer.ModelInfo(onnx.load_model_from_string(content))
    module = info.create_module(context).operation
    importer.NodeImporter.define_function(info.main_graph, module).import_all()
    module.verify()
    return str(module.get_asm(enable_debug_info=True))

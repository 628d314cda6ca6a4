"""Imports an ONNX model into the torch dialect, by torch-mlir's importer in a one-shot process that loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from buddy.compiler.protocol.source_locations import source_error
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait

if TYPE_CHECKING:
    import onnx


# ---- in the process --------------------------------------------------------------------------------------------------


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
    model_info = importer.ModelInfo(onnx.load_model_from_string(content))
    module = model_info.create_module(context).operation
    importer.NodeImporter.define_function(model_info.main_graph, module).import_all()
    module.verify()
    return str(module.get_asm(enable_debug_info=True))


# ---- the client ------------------------------------------------------------------------------------------------------


# Time limit in seconds; printing the text of a large model takes several.
SECONDS = 120.0
_IMPORTER = "buddy.compiler.importers.onnx_files.importing:import_model"


def import_onnx(model: onnx.ModelProto, path: Path) -> str:
    """Returns the model in the torch dialect, with the node's name as the location of each op.

    Raises `SourceError` for what the importer does not support.
    """
    todo = "export the model for another operator set, or without that op"
    try:
        imported = call_and_wait(_IMPORTER, model.SerializeToString(), ImportedModel, SECONDS)
    except TookTooLong as error:
        raise source_error(f"{path.name} was not imported within {SECONDS:g} s", str(path), todo) from error
    except CallFailed as error:
        what = f"torch-mlir's importer ended with {error.how} on {path.name}"
        raise source_error(what, str(path), todo, error.printed) from error
    if imported.problem:
        raise source_error(f"torch-mlir's importer rejects {path.name}: {imported.problem}", str(path), todo)
    return imported.text

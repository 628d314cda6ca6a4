"""Imports an ONNX model into the torch dialect: the client of the process that runs `import_process`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from buddy.compiler.importers.onnx_files.import_process import ImportedModel
from buddy.compiler.protocol.source_locations import source_error
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_and_wait

if TYPE_CHECKING:
    import onnx


# Time limit in seconds; printing the text of a large model takes several.
SECONDS = 120.0
_IMPORTER = "buddy.compiler.importers.onnx_files.import_process:import_model"


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

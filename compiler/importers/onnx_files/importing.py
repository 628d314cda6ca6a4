"""Imports an ONNX model into the torch dialect with torch-mlir's importer, in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from buddy.compiler.importers.onnx_files.worker import REFUSED
from buddy.compiler.importers.sources.program import source_error
from buddy.compiler.support.processes.worker_process import safe_path

# A large model's text takes seconds.
SECONDS = 120.0


def import_onnx(model: Any, path: Path) -> str:
    """The model in the torch dialect, with the node's name as the location of each op.

    Raises `SourceError` for what the importer does not support.
    """
    command = [sys.executable, *safe_path(), "-m", "buddy.compiler.importers.onnx_files.worker"]
    todo = "export the model for another operator set, or without that op"
    try:
        done = subprocess.run(command, input=model.SerializeToString(), capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as error:
        raise source_error(f"{path.name} was not imported within {SECONDS:g} s", str(path), todo) from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == REFUSED:
        raise source_error(f"torch-mlir's importer rejects {path.name}: {said}", str(path), todo)
    if done.returncode:
        what = f"torch-mlir's importer exited with code {done.returncode} on {path.name}"
        raise source_error(what, str(path), todo, said)
    return done.stdout.decode()

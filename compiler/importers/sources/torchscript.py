"""Loads TorchScript of `torch.jit.save`, through PyTorch's own converter to an exported program."""

from __future__ import annotations

import logging
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.utils._pytree import tree_leaves

from buddy.compiler.importers.sources.exported_program import FILE_OPS, capture_exported
from buddy.compiler.importers.sources.modules import make_inputs
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.program import CapturedProgram
from buddy.compiler.protocol.source_locations import SourceError, source_error
from buddy.compiler.runtime.compare import compare

# Calls of ops that access files (`FILE_OPS`), in the text of a module's methods.
_FILE_CALL = re.compile(rf"\b(?:torch|ops\.\w+)\.({'|'.join(FILE_OPS)})\(")
# The method that `torch.utils.bundled_inputs` adds to a module with inputs.
_BUNDLED_INPUTS_METHOD = "get_all_bundled_inputs"
_SAVE = "save the model again with torch.jit.save"
_EXPORT = "export the model with torch.export.save instead, if you have its Python code"


def load(opening: Opening) -> CapturedProgram:
    """Returns the graphs of a script module, on the inputs bundled with it, or random ones of the given shapes.

    Raises `SourceError`.
    """
    module = _read(opening)
    args = _choose_inputs(opening, module)
    opening.report("converting TorchScript")
    program = _convert(opening, module, args)
    captured = capture_exported(_without_shapes(opening), program)
    captured.notes[:0] = _compare_with_script(module, program, args)
    return captured


def _read(opening: Opening) -> torch.jit.ScriptModule:
    """Returns the module in the file, in eval mode. Raises `SourceError`."""
    try:
        _check_code(opening)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.jit.load(str(opening.path), map_location="cpu").eval()
    except SourceError:
        raise
    except Exception as error:
        what = f"{opening.title} is not TorchScript that PyTorch {torch.__version__} can read: {_first_line(error)}"
        raise source_error(what, opening.title, f"check that the file is complete, or {_SAVE}") from error
    if not hasattr(module, "forward"):
        raise source_error(f"{opening.title} has no method forward", opening.title, _SAVE)
    return module


def _check_code(opening: Opening) -> None:
    """Raises `SourceError` if a method accesses files: reading a module runs its `__setstate__`, if it has one."""
    with zipfile.ZipFile(opening.path) as archive:
        for name in archive.namelist():
            match = _FILE_CALL.search(archive.read(name).decode(errors="replace")) if name.endswith(".py") else None
            if match is not None:
                what = f"{opening.title} calls {match[0][:-1]}, which accesses files"
                raise source_error(what, f"{name} in it", _EXPORT)


def _choose_inputs(opening: Opening, module: torch.jit.ScriptModule) -> tuple[object, ...]:
    """Returns the first inputs bundled with the module; random ones if there are none, or if the user sets shapes."""
    if hasattr(module, _BUNDLED_INPUTS_METHOD) and not opening.shapes:
        bundled = getattr(module, _BUNDLED_INPUTS_METHOD)()
        if bundled:
            return tuple(bundled[0])
    parameters = list(module.forward.schema.arguments)[1:]  # without the module itself, whatever its name
    needed = [parameter.name for parameter in parameters if not parameter.has_default_value()]
    unsupported = [p for p in parameters if p.name in needed and str(p.type) != "Tensor"]
    if unsupported:
        types = ", ".join(f"{parameter.name}: {parameter.type}" for parameter in unsupported)
        what = f"{opening.title} takes {types}, which a shape cannot describe"
        raise source_error(what, "its forward", "bundle inputs with it (torch.utils.bundled_inputs)")
    tensors = make_inputs(opening, needed)
    return tuple(tensors.get(parameter.name, parameter.default_value) for parameter in parameters)


def _convert(opening: Opening, module: torch.jit.ScriptModule, args: Sequence[object]) -> torch.export.ExportedProgram:
    """Returns the module as an exported program, after a test run. Raises `SourceError` if one of these fails."""
    from torch._export.converter import TS2EPConverter

    try:
        with _quiet_converter_logs(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            module(*args)
            return TS2EPConverter(module, tuple(args)).convert()
    except SourceError:
        raise
    except Exception as error:
        what = f"PyTorch's converter does not support {opening.title}: {type(error).__name__}: {_first_line(error)}"
        raise source_error(what, "TorchScript to an exported program", _EXPORT, str(error)[:4000]) from error


@contextmanager
def _quiet_converter_logs() -> Iterator[None]:
    """Disables the converter's logs, which repeat the error that it raises."""
    logger = logging.getLogger("torch._export.converter")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _compare_with_script(
    module: torch.jit.ScriptModule, program: torch.export.ExportedProgram, args: Sequence[object]
) -> list[str]:
    """Returns a note if the converted program returns other results than the script module, otherwise no notes.

    Runs are compared with the converted program in eager, not with the script module.
    """
    with torch.no_grad():
        script_results = tree_leaves(module(*args))
        converted_results = tree_leaves(program.module(check_guards=False)(*args))
    has_difference = len(script_results) != len(converted_results) or any(
        compare("", converted, script, equal_nan=True).verdict != "ok"
        for script, converted in zip(script_results, converted_results, strict=True)
        if isinstance(script, torch.Tensor)
    )
    note = "the program from PyTorch's converter gives OTHER RESULTS than the script module; runs are compared with "
    return [f"{note}the converted program"] if has_difference else []


def _without_shapes(opening: Opening) -> Opening:
    """Returns `opening` without shapes, because the inputs already have them."""
    return replace(opening, shapes=())


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]

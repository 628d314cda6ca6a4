"""Reads programs of `torch.export.save` without executing anything in them, and captures them."""

from __future__ import annotations

import io
import logging
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from buddy.compiler.frontend.names import node_title
from buddy.compiler.importers.sources.inputs import apply_shapes, new_generator, random_tensor, shape_error
from buddy.compiler.importers.sources.modules import capture_call, parse_checked_shapes
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.pickles import UnsafeError, without_running_code
from buddy.compiler.importers.sources.program import CapturedProgram
from buddy.compiler.protocol.programs import find_input_shape
from buddy.compiler.protocol.source_locations import source_error
from buddy.compiler.runtime.torch_values import from_torch_dtype

# Ops that access files; a model does not need them.
FILE_OPS = ("from_file", "save", "_save", "load")
# In the JSON of a program: the module of a class that the structure of inputs needs, and those that are allowed.
_NAMED_MODULE = re.compile(rb'default_factory_module\\*"\s*:\s*\\*"([\w.]+)')
_ALLOWED_MODULES = (b"builtins", b"collections")
# The exceptions of `zipfile` for archives that are truncated, encrypted, or have invalid names.
ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    ValueError,
    KeyError,
)
# The value of symbolic sizes that were unknown at export.
_DEFAULT_SIZE = 4
_HINT = "write it again with torch.export.save, by a PyTorch of this version or an earlier one"


def load(opening: Opening) -> CapturedProgram:
    """Returns the graphs of an exported program, on its stored inputs, or else on random inputs of its shapes.

    Raises `SourceError`.
    """
    program = _read(opening)
    return capture_exported(opening, program)


def capture_exported(opening: Opening, program: ExportedProgram) -> CapturedProgram:
    """Returns the graphs of a loaded exported program. Raises `SourceError`."""
    check_ops(opening, program)
    args, kwargs, notes = _choose_inputs(opening, program)
    # Guards are left out: they are text of the file, which would be executed as Python.
    module = program.module(check_guards=False)
    if opening.shapes:
        args, kwargs = _change_shapes(opening, module, args, kwargs)
    captured = capture_call(opening, module, args, kwargs)
    captured.notes[:0] = notes
    return captured


def _read(opening: Opening) -> ExportedProgram:
    """Returns the program in the file, without running code in it. Raises `SourceError`."""
    content = opening.path.read_bytes()
    _check_modules(opening)
    try:
        with without_running_code(), _collect_causes() as logged_causes, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(io.BytesIO(content))
    except Exception as error:
        unsafe = _find_cause(error, UnsafeError) or next(
            (cause for cause in logged_causes if isinstance(cause, UnsafeError)), None
        )
        if unsafe is not None:
            what = f"{opening.title} would execute code when read: {unsafe}"
            raise source_error(what, opening.title, "export it again without objects of your own classes") from error
        reason = next(iter(logged_causes), error)
        first_line = str(reason).strip().partition("\n")[0] or type(reason).__name__
        what = f"{opening.title} cannot be read by PyTorch {torch.__version__}: {first_line[:300]}"
        raise source_error(what, opening.title, _HINT) from error


def _find_cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Returns the first exception of `kind` among an error and its causes, which may form a cycle."""
    seen: set[int] = set()
    while error is not None and not isinstance(error, kind):
        if id(error) in seen:
            return None
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def _collect_causes() -> Iterator[list[BaseException]]:
    """Yields a list for the first causes of exceptions that PyTorch logs before it raises other exceptions."""
    causes: list[BaseException] = []

    class CauseCollector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                cause = record.exc_info[1]
                causes.append(_find_cause(cause, UnsafeError) or cause)

    logger, collector = logging.getLogger("torch.export"), CauseCollector()
    propagate = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield causes
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagate


def _check_modules(opening: Opening) -> None:
    """Raises `SourceError` for a damaged archive, and if reading its structure of inputs would import a module."""
    try:
        with zipfile.ZipFile(opening.path) as archive:
            for name in archive.namelist():
                if not name.endswith(".json"):
                    continue
                unexpected = set(_NAMED_MODULE.findall(archive.read(name))) - set(_ALLOWED_MODULES)
                if unexpected:
                    module = sorted(unexpected)[0].decode()
                    what = f"{opening.title} would import the module {module} when read"
                    raise source_error(what, opening.title, "export it with inputs in Python's own containers")
    except ARCHIVE_ERRORS as error:
        raise source_error(
            f"{opening.title} is damaged: {error}", opening.title, "check that the file is complete"
        ) from error


def check_ops(opening: Opening, program: ExportedProgram) -> None:
    """Raises `SourceError` for a node that is not a PyTorch op on tensors and sizes, or that accesses files."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            for callee in _forbidden_callees(node):
                what = f"{opening.title} calls {callee}, which is not a computation on tensors"
                raise source_error(what, f"node {node_title(node)}", "export the model without it")


def _forbidden_callees(node: torch.fx.Node) -> Iterator[object]:
    """Yields the forbidden callees of a node. Functions among its operands, as of higher-order ops, must be ops."""
    if node.op == "call_function" and not _is_allowed(node.target):
        yield node.target
    for value in filter(callable, tree_leaves((node.args, node.kwargs))):
        if not isinstance(value, torch._ops.OperatorBase) or not _is_allowed(value):
            yield value


def _is_allowed(target: object) -> bool:
    """Returns whether a callee is a PyTorch op that accesses no files, or arithmetic on sizes."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2] not in FILE_OPS
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    return getattr(target, "__module__", "") in ("_operator", "math", "torch", "torch.fx.experimental.sym_node")


def _choose_inputs(
    opening: Opening, program: ExportedProgram
) -> tuple[tuple[object, ...], dict[str, object], list[str]]:
    """Returns the inputs stored with the program, else random inputs of its shapes; and a note on random inputs."""
    if program.example_inputs is not None and tree_flatten(program.example_inputs)[0]:
        args, kwargs = program.example_inputs
        return tuple(args), dict(kwargs), []
    user_inputs = _user_inputs(program)
    leaves, generator, user_shapes = [], new_generator(), parse_checked_shapes(opening, list(user_inputs))
    for index, (name, value) in enumerate(user_inputs.items()):
        if not isinstance(value, torch.Tensor):
            leaves.append(_size_at_export(value) if isinstance(value, torch.SymInt) else value)
            continue
        user_shape = find_input_shape(user_shapes, name, index)
        dtype = from_torch_dtype(value.dtype)
        if dtype is None:
            raise source_error(f"{opening.title} takes {value.dtype}, for which there are no random inputs", name)
        shape = user_shape.shape if user_shape is not None else tuple(_size_at_export(size) for size in value.shape)
        leaves.append(random_tensor(shape, dtype, generator))
    args, kwargs = tree_unflatten(leaves, program.call_spec.in_spec)
    return tuple(args), dict(kwargs), [f"{opening.title} contains no inputs: random ones are used"]


def _user_inputs(program: ExportedProgram) -> dict[str, object]:
    """Returns the value of each input, by its name: a fake tensor, a size, or the constant in the program."""
    specs = [spec.arg for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return {arg.name: arg.value if isinstance(arg, ConstantArgument) else values[arg.name] for arg in specs}


def _size_at_export(size: int | torch.SymInt) -> int:
    """Returns the value of a size; for a symbolic size its value at export, or `_DEFAULT_SIZE` if that is unknown."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else _DEFAULT_SIZE


def _change_shapes(
    opening: Opening, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Returns the arguments with the shapes that the user sets, after a test run. Raises `SourceError` if it fails."""
    args, kwargs = apply_shapes(module, args, kwargs, opening.shapes)
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    except Exception as error:
        raise shape_error(opening.shapes, error) from error
    return args, kwargs

"""Reads the programs in an MLIR file, in a one-shot process, since bad input may crash MLIR's readers."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from buddy.compiler.graph.serialization import to_bytes
from buddy.compiler.importers.mlir_files.module_graph import FUNCTIONS, ModuleGraphBuilder
from buddy.compiler.importers.mlir_files.read_request import EntryPoint, ReadAnswer, ReadRequest
from buddy.compiler.importers.mlir_files.reading import ModulePart, UnreadableError, new_context, parse_modules
from buddy.compiler.importers.mlir_files.signatures import (
    DEFAULT_SIZE,
    NotRunnableError,
    SignatureValue,
    argument_types,
    dialects_of,
    fix_sizes,
    phase_of,
    signature_values,
)
from buddy.compiler.importers.mlir_files.wrapping import WRAPPER, FunctionSignature, wrap
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import WriteEffects, symbol_of
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.plain_values import ImportedIR
from buddy.compiler.protocol.programs import InputShape, check_input_names, parse_input_shape

# The maximum number of functions of a file that are opened.
MAX_ENTRIES = 32
# CPU time limit for a file: these seconds, and one more for this many bytes. MLIR never finishes reading some bytecode.
# CPU time, unlike elapsed time, does not depend on the load of the machine.
CPU_SECONDS, BYTES_PER_CPU_SECOND = 20, 1 << 20


def read_entry_points_in_time(request: ReadRequest) -> ReadAnswer:
    """Returns the answer of `read_entry_points`; the system kills this process if it exceeds a limit on CPU time."""
    seconds = CPU_SECONDS + len(request.content) // BYTES_PER_CPU_SECOND
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    if hard_limit == resource.RLIM_INFINITY or seconds < hard_limit:  # a lower limit cannot be raised
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    return read_entry_points(request)


def read_entry_points(request: ReadRequest) -> ReadAnswer:
    """Returns the programs in a file, each with its graph; or the error."""
    try:
        user_shapes = [parse_input_shape(text) for text in request.shapes]
    except ValueError as error:
        todo = "give NAME=4x128, or NUMBER=4x128xf32, for an argument of the function"
        return ReadAnswer(problem=Diagnostic(str(error), "the shapes to open with", todo))
    context = new_context()
    try:
        with context:
            parts = parse_modules(request.content, request.title, context)
            return _open_entries(request, parts, user_shapes)
    except UnreadableError as error:
        return ReadAnswer(problem=error.diagnostic)
    except RuntimeError as error:  # raised by the bindings for names that are not valid text
        what = f"{request.title} cannot be read: {str(error).partition(chr(10))[0]}"
        return ReadAnswer(problem=Diagnostic(what, request.title, "check that the file is complete"))


def _open_entries(request: ReadRequest, parts: list[ModulePart], user_shapes: list[InputShape]) -> ReadAnswer:
    names = [(number, name) for number, part in enumerate(parts) for name in _entry_names(part.module, request.entry)]
    if not names:
        return ReadAnswer(problem=_describe_missing_entry(request, parts))
    arity = max(_arity(parts[number].module, name) for number, name in names)
    try:
        check_input_names(user_shapes, [f"arg{index}" for index in range(arity)])
    except ValueError as error:
        return ReadAnswer(problem=Diagnostic(str(error), request.title, "name an argument of the function to open"))
    notes = () if len(names) <= MAX_ENTRIES else (f"only the first {MAX_ENTRIES} of {len(names)} functions are opened",)
    entry_points = []
    for number, name in names[:MAX_ENTRIES]:
        title = f"{name} (part {number + 1})" if len(parts) > 1 else name
        entry_points.append(_open_entry(parts[number], name, title, request, user_shapes))
    return ReadAnswer(tuple(entry_points), notes=notes)


def _arity(module: ir.Module, name: str) -> int:
    """Returns the number of arguments of a function."""
    entry = next(function for function in _functions(module) if symbol_of(function) == name)
    return len(entry.regions[0].blocks[0].arguments)


def _functions(module: ir.Module) -> Iterator[ir.Operation]:
    """Returns the functions of a module that have a body."""
    operations = (op.operation for op in module.body if op.operation.name in FUNCTIONS)
    return (op for op in operations if len(op.regions[0].blocks))


def _is_public(function: ir.Operation) -> bool:
    attributes = function.attributes
    is_private = "sym_visibility" in attributes and str(ir.StringAttr(attributes["sym_visibility"]).value) != "public"
    return not is_private and "internal" not in str(attributes.get("linkage"))


def _entry_names(module: ir.Module, entry: str) -> list[str]:
    """Returns the names of the functions to open: `entry`, or all public ones; those without callers come first."""
    names = [symbol_of(function) for function in _functions(module) if entry or _is_public(function)]
    if entry:
        return [name for name in names if name == entry]
    called = _called_functions(module)
    return [*(name for name in names if name not in called), *(name for name in names if name in called)]


def _called_functions(module: ir.Module) -> set[str]:
    callees: set[str] = set()

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in ("func.call", "llvm.call") and "callee" in op.attributes:
            callees.add(str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return callees


def _describe_missing_entry(request: ReadRequest, parts: list[ModulePart]) -> Diagnostic:
    functions = [symbol_of(function) for part in parts for function in _functions(part.module)]
    if not functions:
        what = f"{request.title} has no function with a body"
        return Diagnostic(what, request.title, "give a file with a func.func or llvm.func to call")
    names = ", ".join(functions)
    if request.entry:
        return Diagnostic(f"{request.title} has no function {request.entry}", request.title, f"it has {names}")
    what = f"none of the functions of {request.title} is public"
    return Diagnostic(what, request.title, f"name the one to call: {request.title}:{functions[0]} (there are {names})")


def _open_entry(
    part: ModulePart, name: str, title: str, request: ReadRequest, user_shapes: list[InputShape]
) -> EntryPoint:
    """Opens one function as a program, in a copy of its module.

    A function that cannot be called becomes a program without inputs and results, with a note on the reason.
    """
    module = _copy_module(part.module)
    text, dialects, entry_phase = str(part.module), dialects_of(module), phase_of(module)
    entry = next(function for function in _functions(module) if symbol_of(function) == name)
    notes: list[str] = []
    try:
        signature = _read_signature(entry, module, name, user_shapes)
        arguments, notes = fix_sizes(signature.arguments), _default_size_notes(signature)
        builder = ModuleGraphBuilder(module, entry, arguments, request.title, part.lines_before)
        results, callee = signature.results, name
        if not signature.needs_no_wrapper:
            shapes = [tuple(map(_static_size, value.shape)) for value in arguments]
            results, callee = wrap(module, signature, shapes), WRAPPER
    except NotRunnableError as error:
        notes = [f"@{name} cannot be run: {error}"]
        module = _copy_module(part.module)
        entry = next(function for function in _functions(module) if symbol_of(function) == name)
        builder = ModuleGraphBuilder(module, entry, (), request.title, part.lines_before)
        results, callee = (), name
    graph = builder.make_graph(title, results)
    located_text = module.operation.get_asm(enable_debug_info=True, assume_verified=True)
    graph.imported_ir = ImportedIR(located_text, entry_phase, callee)
    return EntryPoint(title, to_bytes(graph), entry_phase, dialects, text, tuple(notes))


def _copy_module(module: ir.Module) -> ir.Module:
    """Returns a separate module with the same locations."""
    return ir.Module.parse(module.operation.get_asm(enable_debug_info=True), module.context)


def _static_size(size: int | None) -> int:
    assert size is not None
    return size


def _read_signature(
    entry: ir.Operation, module: ir.Module, name: str, user_shapes: list[InputShape]
) -> FunctionSignature:
    """Returns the signature of the function `entry`. Raises `NotRunnableError`."""
    inputs, results = argument_types(entry)
    arguments, outputs = signature_values(inputs, "arg", user_shapes), signature_values(results, "result")
    writes = WriteEffects(module.operation)
    values = entry.regions[0].blocks[0].arguments
    written_arguments = tuple(
        index
        for index, (argument, value) in enumerate(zip(arguments, values, strict=True))
        if argument.holder in ("buffer", "pointer") and writes.may_write(value)
    )
    return FunctionSignature(name, tuple(arguments), tuple(outputs), written_arguments)


def _default_size_notes(signature: FunctionSignature) -> list[str]:
    """Returns a note on the dynamic sizes that are set to the default, if any."""
    names = [value.name for value in signature.arguments if value.is_dynamic]
    if not names:
        return []
    options = " ".join(
        f"--shape {value.name}={_default_option(value)}" for value in signature.arguments if value.is_dynamic
    )
    return [f"dynamic sizes of {', '.join(names)} are set to {DEFAULT_SIZE}; choose other sizes with {options}"]


def _default_option(value: SignatureValue) -> str:
    """Returns the sizes of an argument as in the option `--shape`, with the default for dynamic ones."""
    return "x".join(str(DEFAULT_SIZE if size is None else size) for size in value.shape)

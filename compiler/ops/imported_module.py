"""Converts an imported module to top-level IR: parses it, sets the entry's signature, and maps locations to nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from buddy.compiler.graph import partition
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op
from buddy.compiler.mlir.bindings import ir, register_external_dialects
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import LoweredModule
from buddy.compiler.protocol.errors import BuddyError, Diagnostic
from buddy.compiler.protocol.plain_values import Assignment, ImportedIR
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, Recipe

# The name that the table of nodes shows as the lowering of nodes, if the user supplied the module.
USER_MODULE_LOWERING = "mlir"

_QUOTED_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')


class ImportedIRError(BuddyError):
    """An imported module cannot be compiled; `diagnostic` says why, where, and what to do."""


def imported_ir_of(graph: Graph, recipe: Recipe) -> ImportedIR | None:
    """Returns the imported IR that `recipe` compiles for `graph`, or `None` if `recipe` lowers the graph's nodes.

    Raises `ImportedIRError` if the recipe's frontend has not imported the graph.
    """
    imported = graph.imported_ir
    if imported is not None and not imported.frontend:
        return imported
    if recipe.frontend in OWN_FRONTENDS:
        return None
    if imported is None or imported.frontend != recipe.frontend:
        raise ImportedIRError(
            Diagnostic(
                f"the graph {graph.name} has not been imported by {recipe.frontend}",
                "the recipe's frontend",
                f"open the program with --frontend {recipe.frontend}, or select the frontend dynamo",
            )
        )
    return imported


def lower_imported(graph: Graph, imported: ImportedIR, context: ir.Context, locations: LocationSets) -> LoweredModule:
    """Parses the module `imported` in `context` and prepares it for passes.

    The entry takes all placeholders that are not empty, in order, as tensors or buffers. If it takes buffers, further
    arguments are out-parameters. All other functions become private. Raises `ImportedIRError` if the text is not a
    module, or its entry takes too few arguments.
    """
    register_external_dialects(context)
    with context:
        module = _parse(imported, context)
        _replace_locations(module.operation, {op.stable for op in graph.body}, locations)
        entry = _select_entry(module, imported)
        _set_signature(entry, graph, locations)
    nodes = [op.stable for op in graph.operations]
    lowering = imported.frontend or USER_MODULE_LOWERING
    assignments = tuple(Assignment(node, lowering, (lowering,)) for node in nodes)
    return LoweredModule(module, assignments, partition.as_one_function(graph), phase=imported.phase, is_imported=True)


def _parse(imported: ImportedIR, context: ir.Context) -> ir.Module:
    """Returns the parsed module. Raises `ImportedIRError` if the text is not a module."""
    try:
        return ir.Module.parse(imported.text, context)
    except ir.MLIRError as error:
        messages = [str(diagnostic.message) for diagnostic in error.error_diagnostics] or [str(error)]
        problem = f"the module cannot be parsed: {messages[0].splitlines()[0]}"
        hint = "check that it was printed by the MLIR version of the bindings"
        detail = "\n".join(messages)
        raise ImportedIRError(Diagnostic(problem, "the imported module", hint, detail=detail)) from error


# ---- locations -------------------------------------------------------------------------------------------------------


def _replace_locations(root: ir.Operation, names: set[str], locations: LocationSets) -> None:
    """Replaces name locations by the sets of nodes with these names; drops names that no node has."""

    def visit(op: ir.Operation) -> ir.WalkResult:
        op.location = locations.location(_nodes_named_in(op.location, names))
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.set_location(locations.location(_nodes_named_in(argument.location, names)))
        return ir.WalkResult.ADVANCE

    root.walk(visit)


def _nodes_named_in(location: ir.Location, names: set[str]) -> list[str]:
    """Returns the name locations inside `location` that are in `names`, in order."""
    return [name for name in _QUOTED_NAME.findall(str(location)) if name in names]


# ---- the entry -------------------------------------------------------------------------------------------------------


def _functions(module: ir.Module) -> Iterator[ir.Operation]:
    """Yields the functions of a module, of any dialect: `func.func`, `llvm.func`."""
    return (op.operation for op in module.body if op.operation.name.endswith(".func"))


def _symbol_name(function: ir.Operation) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)


def _select_entry(module: ir.Module, imported: ImportedIR) -> ir.Operation:
    """Returns the entry function, and makes all other functions private.

    Raises `ImportedIRError` if no function has the name `imported.entry`, or, without a name, if not exactly one
    function is public.
    """
    functions = [function for function in _functions(module) if len(function.regions[0].blocks)]
    if imported.entry:
        candidates = [function for function in functions if _symbol_name(function) == imported.entry]
    else:
        candidates = [function for function in functions if "sym_visibility" not in function.attributes]
    if len(candidates) != 1:
        names = ", ".join(map(_symbol_name, functions)) or "no functions"
        problem = f"unknown function {imported.entry}" if imported.entry else f"{len(candidates)} functions are public"
        raise ImportedIRError(
            Diagnostic(f"{problem}: the module has {names}", "the entry", "name the function to call")
        )
    for function in functions:
        if function.name == "func.func":
            function.attributes["sym_visibility"] = ir.StringAttr.get("private")
    entry = candidates[0]
    if "sym_visibility" in entry.attributes:
        del entry.attributes["sym_visibility"]
    return entry


def _set_signature(entry: ir.Operation, graph: Graph, locations: LocationSets) -> None:
    """Renames the entry to the graph's function name, and sets the argument attributes that passes read.

    Raises `ImportedIRError` if the entry takes too few arguments.
    """
    entry.attributes["sym_name"] = ir.StringAttr.get(graph._func_name)
    # Needed even if unused: this numbers the set of all nodes, which has nodes without an op, such as `getitem`.
    all_nodes = locations.location((), derived=[op.stable for op in graph.operations])
    if not locations.number_of(entry.location):
        entry.location = all_nodes
    if entry.name != "func.func":
        return
    inputs = [(i, op) for i, op in enumerate(graph.placeholders) if 0 not in op.tensor_meta.stored.shape]
    arguments = entry.regions[0].blocks[0].arguments
    if len(arguments) < len(inputs):
        problem = f"@{_symbol_name(entry)} takes {len(arguments)} arguments, the graph has {len(inputs)} inputs"
        raise ImportedIRError(Diagnostic(problem, "the entry", "open the file again, since its signature has changed"))
    for argument, (_, op) in zip(arguments, inputs, strict=False):
        argument.set_location(locations.location([op.stable]))
    attributes = [_argument_attributes(index, op, graph) for index, op in inputs]
    empty = ir.DictAttr.get({})
    entry.attributes["arg_attrs"] = ir.ArrayAttr.get([*attributes, *[empty] * (len(arguments) - len(inputs))])


def _argument_attributes(index: int, op: Op, graph: Graph) -> ir.DictAttr:
    """Returns the attributes of an argument: not writable, the index of the placeholder, whether it is a parameter."""
    attributes = {
        "bufferization.writable": ir.BoolAttr.get(False),
        "buddy.source": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), index),
    }
    if op in graph.params:
        attributes["buddy.parameter"] = ir.UnitAttr.get()
    return ir.DictAttr.get(attributes)

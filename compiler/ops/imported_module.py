"""Converts an imported module to top-level IR: parses it, sets its entry's signature, maps locations to nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from buddy.compiler.graph import partition as cut
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op
from buddy.compiler.mlir.bindings import ir, register_external_dialects
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import LoweredModule
from buddy.compiler.protocol.plain_values import Assignment, Diagnostic, ImportedIR
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, Recipe

# The name of the lowering of all nodes of an imported module without a frontend.
BY_MODULE = "mlir"

_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')


class ImportedIRError(Exception):
    """An imported module cannot be compiled; `diagnostic` says what, where, and what to do."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic


def imported_ir_of(graph: Graph, recipe: Recipe) -> ImportedIR | None:
    """Returns the imported IR that `recipe` compiles for `graph`, or `None` if its nodes are lowered one by one.

    Raises `ImportedIRError` if the recipe's frontend has not imported the graph.
    """
    given = graph.given
    if given is not None and not given.frontend:
        return given
    if recipe.frontend in OWN_FRONTENDS:
        return None
    if given is None or given.frontend != recipe.frontend:
        raise ImportedIRError(
            Diagnostic(
                f"the graph {graph.name} has not been imported by {recipe.frontend}",
                "the recipe's frontend",
                f"open the program with --frontend {recipe.frontend}, or choose the frontend dynamo",
            )
        )
    return given


def lower_imported(graph: Graph, given: ImportedIR, context: Any, locations: LocationSets) -> LoweredModule:
    """Parses the module of `given` in `context` and prepares it for passes.

    The entry takes all placeholders that have elements, in order, as tensors or buffers; further arguments of an entry
    on buffers are its out-parameters. All other functions become private. Raises `ImportedIRError` if the text is not a
    module, or its entry takes too few arguments.
    """
    register_external_dialects(context)
    with context:
        module = _parse(given, context)
        _replace_locations(module.operation, {op.stable for op in graph.body}, locations)
        entry = _entry(module, given)
        _set_signature(entry, graph, locations)
    nodes = [op.stable for op in graph.operations]
    word = given.frontend or BY_MODULE
    assignments = tuple(Assignment(node, word, (word,)) for node in nodes)
    return LoweredModule(module, assignments, cut.as_one_function(graph), phase=given.phase, given=True)


def _parse(given: ImportedIR, context: Any) -> Any:
    try:
        return ir.Module.parse(given.text, context)
    except ir.MLIRError as error:
        messages = [str(found.message) for found in error.error_diagnostics] or [str(error)]
        what = f"the module cannot be parsed: {messages[0].splitlines()[0]}"
        todo = "check that it was printed by the MLIR version of the bindings"
        where = "the imported module"
        raise ImportedIRError(Diagnostic(what, where, todo, detail="\n".join(messages))) from error


# ---- locations -------------------------------------------------------------------------------------------------------


def _replace_locations(root: Any, names: set[str], locations: LocationSets) -> None:
    """Replaces name locations by sets of nodes; drops names that no node has."""

    def visit(op: Any) -> Any:
        op.location = locations.location(_nodes_named_in(op.location, names))
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.set_location(locations.location(_nodes_named_in(argument.location, names)))
        return ir.WalkResult.ADVANCE

    root.walk(visit)


def _nodes_named_in(location: Any, names: set[str]) -> list[str]:
    return [name for name in _NAME.findall(str(location)) if name in names]


# ---- the entry -------------------------------------------------------------------------------------------------------


def _functions(module: Any) -> Iterator[Any]:
    return (op.operation for op in module.body if op.operation.name.endswith(".func"))


def _name(function: Any) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)


def _entry(module: Any, given: ImportedIR) -> Any:
    """Returns the entry function, and makes all other functions private.

    Raises `ImportedIRError` if the module has no function of that name, or not exactly one public one without a name.
    """
    functions = [function for function in _functions(module) if len(function.regions[0].blocks)]
    private = [f for f in functions if "sym_visibility" in f.attributes]
    public = [f for f in functions if f not in private]
    found = [f for f in functions if _name(f) == given.entry] if given.entry else public
    if len(found) != 1:
        have = ", ".join(map(_name, functions)) or "none"
        what = f"unknown function {given.entry}" if given.entry else f"{len(found)} functions are public"
        raise ImportedIRError(Diagnostic(f"{what}: the module has {have}", "the entry", "name the function to call"))
    for function in functions:
        if function.name == "func.func":
            function.attributes["sym_visibility"] = ir.StringAttr.get("private")
    if "sym_visibility" in found[0].attributes:
        del found[0].attributes["sym_visibility"]
    return found[0]


def _set_signature(entry: Any, graph: Graph, locations: LocationSets) -> None:
    """Renames the entry to the graph's function name, and sets the argument attributes that passes read."""
    entry.attributes["sym_name"] = ir.StringAttr.get(graph._func_name)
    whole = locations.location((), derived=[op.stable for op in graph.operations])
    if not locations.number_of(entry.location):
        entry.location = whole
    if entry.name != "func.func":
        return
    taken = [(i, op) for i, op in enumerate(graph.placeholders) if 0 not in op.tensor_meta.stored.shape]
    arguments = entry.regions[0].blocks[0].arguments
    if len(arguments) < len(taken):
        what = f"@{_name(entry)} takes {len(arguments)} arguments, the graph has {len(taken)} inputs"
        raise ImportedIRError(Diagnostic(what, "the entry", "open the file again, since its signature has changed"))
    for argument, (_, op) in zip(arguments, taken, strict=False):
        argument.set_location(locations.location([op.stable]))
    flags = [_argument_attributes(index, op, graph) for index, op in taken]
    empty = ir.DictAttr.get({})
    entry.attributes["arg_attrs"] = ir.ArrayAttr.get([*flags, *[empty] * (len(arguments) - len(taken))])


def _argument_attributes(index: int, op: Op, graph: Graph) -> Any:
    """Returns the attributes of an argument: read-only, the number of its placeholder, whether it is a parameter."""
    attributes = {
        "bufferization.writable": ir.BoolAttr.get(False),
        "buddy.source": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), index),
    }
    if op in graph.params:
        attributes["buddy.parameter"] = ir.UnitAttr.get()
    return ir.DictAttr.get(attributes)

"""Converts top-level IR to a program for IREE: a module as text, with a public wrapper of the graph's function."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from buddy.compiler.codegen.iree.options import PARAMETER_SCOPE, WRAPPER_NAME, IreeConvention, IreeProgram
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.mlir.walk import callee_of, calls_in, find_ops
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.protocol.artifact import ArtifactSymbol, TensorSpec
from buddy.compiler.protocol.errors import BuddyError

# Prefixes of attributes that IREE does not know.
_REMOVED_ATTRIBUTES = ("buddy.", "bufferization.")


class IreeUnsupportedError(BuddyError):
    """IREE cannot run the graph; the text says why, `node` is the stable name of a node that prevents it."""

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


def program_of(graph: Graph, module: ir.Operation, locations: LocationSets) -> IreeProgram:
    """Returns the program for top-level IR (`module`), which is not changed; adds a set per weight to `locations`.

    Omits calls of eager PyTorch without results, which only check data such as indices; `unchecked` lists their ops.
    Raises `IreeUnsupportedError` for other calls of eager PyTorch, and for `scf.forall`: IREE supports only those that
    it has created.
    """
    calls = eager_calls(module)
    if fallbacks := {call.symbol: call.target for call in calls if call.results}:
        message = f"IREE cannot call eager PyTorch, which computes {', '.join(sorted(set(fallbacks.values())))}"
        raise IreeUnsupportedError(message, _first_node(next(iter(_calls_of(module, fallbacks)), None), locations))
    if loops := find_ops(module, "scf.forall"):
        raise IreeUnsupportedError(
            "IREE supports scf.forall only inside of its own dispatches", _first_node(loops[0], locations)
        )
    with module.context, locations.unmapped_location(module.context):
        clone = module.clone(ip=False).operation
        function = _graph_function(clone, graph._func_name)
        arguments = [_Argument(attributes) for attributes in function.attributes["arg_attrs"]]
        wrapper, parameters = _wrapper(graph, function, arguments, locations)
        _erase_functions(clone, {call.symbol for call in calls})
        clone.walk(_remove_attributes)
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        text = clone.get_asm(enable_debug_info=True, assume_verified=True)
    inputs = tuple(
        argument.placeholder for argument in arguments if argument.placeholder is not None and not argument.is_weight
    )
    specs = tuple(_spec_of(op) for op in graph.results if isinstance(op, Op))
    unchecked = tuple(sorted({call.target for call in calls}))
    convention = IreeConvention(inputs, parameters, specs, _symbol_arguments(graph, arguments), unchecked)
    return IreeProgram(_append_ops(text, wrapper), convention, tuple(locations.sets), dict(locations.derived))


class _Argument:
    """An argument of the graph's function: an input, a weight, or the value of a symbol.

    `placeholder` is the number of the input or weight, else `None`. `symbol` is the name of the symbol, else "".
    """

    def __init__(self, attributes: ir.DictAttr) -> None:
        source = int(attributes["buddy.source"].value) if "buddy.source" in attributes else -1
        self.placeholder = source if source >= 0 else None
        self.is_weight = "buddy.parameter" in attributes and self.placeholder is not None
        self.symbol = str(attributes["buddy.symbol"].value) if "buddy.symbol" in attributes else ""


def _graph_function(module: ir.Operation, name: str) -> ir.Operation:
    for op in module.regions[0].blocks[0]:
        if op.operation.name == "func.func" and op.operation.attributes["sym_name"].value == name:
            return op.operation
    raise IreeUnsupportedError(f"the module has no function {name}")


def _symbol_arguments(graph: Graph, arguments: Sequence[_Argument]) -> tuple[ArtifactSymbol, ...]:
    """Returns the symbols that the graph's function takes, in the order of its arguments."""
    symbols = {symbol.name: symbol for symbol in symbols_of(graph)}
    return tuple(symbols[argument.symbol] for argument in arguments if argument.symbol)


def _wrapper(
    graph: Graph, function: ir.Operation, arguments: Sequence[_Argument], locations: LocationSets
) -> tuple[str, dict[str, int]]:
    """Returns the text of a public function that loads the weights and calls the graph's function.

    The second value has the number of the placeholder of each weight, by the key of its parameter in IREE.
    """
    function_type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    result_types = [str(type_) for type_ in function_type.results]
    names = [op.stable for op in graph.placeholders]
    # Lines of text: the globals for weights, the ops that compute operands of the call; and the wrapper's parameters.
    globals_, loads, wrapper_arguments, operands = [], [], [], []
    parameters: dict[str, int] = {}
    for i, (argument, type_) in enumerate(zip(arguments, function_type.inputs, strict=True)):
        operands.append(f"%a{i}")
        if argument.is_weight and argument.placeholder is not None:
            key = f"p{argument.placeholder}"
            location = f'loc("{FILE}":{locations.intern([names[argument.placeholder]])}:0)'
            parameters[key] = argument.placeholder
            parameter = f'#flow.parameter.named<"{PARAMETER_SCOPE}"::"{key}">'
            globals_.append(f"  util.global private @{key} = {parameter} : {type_} {location}")
            loads.append(f"    %a{i} = util.global.load @{key} : {type_} {location}")
        elif argument.symbol:
            wrapper_arguments.append(f"%s{i}: i64")
            loads.append(f"    %a{i} = arith.index_cast %s{i} : i64 to {type_}")
        else:
            wrapper_arguments.append(f"%a{i}: {type_}")
    call = f"func.call @{graph._func_name}({', '.join(operands)}) : {function_type}"
    return_op = "return"
    if result_types:
        call = f"%r:{len(result_types)} = {call}"
        values = ", ".join(f"%r#{number}" for number in range(len(result_types)))
        return_op = f"return {values} : {', '.join(result_types)}"
    lines = [
        *globals_,
        f"  func.func public @{WRAPPER_NAME}({', '.join(wrapper_arguments)}) -> ({', '.join(result_types)}) {{",
        *loads,
        f"    {call}",
        f"    {return_op}",
        "  }",
    ]
    return "\n".join(lines), parameters


def _remove_attributes(op: ir.Operation) -> ir.WalkResult:
    """Removes the attributes `buddy.*` and `bufferization.*`, and all attributes of arguments and results."""
    for attribute in [name for name in op.attributes if name.startswith(_REMOVED_ATTRIBUTES)]:
        del op.attributes[attribute]
    for name in ("arg_attrs", "res_attrs"):
        if op.name == "func.func" and name in op.attributes:
            del op.attributes[name]
    return ir.WalkResult.ADVANCE


def _calls_of(module: ir.Operation, functions: Collection[str]) -> list[ir.Operation]:
    return [op for op in calls_in(module) if callee_of(op) in functions]


def _first_node(op: ir.Operation | None, locations: LocationSets) -> str:
    """Returns the first node that an op comes from, or ""."""
    return next(iter(locations.sets[locations.number_of(op.location)]), "") if op is not None else ""


def _erase_functions(module: ir.Operation, functions: Collection[str]) -> None:
    """Erases the declarations of `functions`, which have no results, and their calls."""
    symbols = [op.operation for op in module.regions[0].blocks[0] if "sym_name" in op.operation.attributes]
    declarations = [op for op in symbols if op.attributes["sym_name"].value in functions]
    for op in [*_calls_of(module, functions), *declarations]:
        op.erase()


def _append_ops(module: str, ops: str) -> str:
    """Returns the text of a module with the text `ops` added at its end."""
    end = module.rindex("\n}")
    return f"{module[:end]}\n{ops}{module[end:]}"


def _spec_of(op: Op) -> TensorSpec:
    return TensorSpec(tuple(map(plain_size, op.tensor_meta.shape)), op.tensor_meta.dtype.value)

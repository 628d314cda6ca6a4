"""Converts top-level IR to a program for IREE: text with weights as parameters, and a wrapper of its entry."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from buddy.compiler.codegen.iree.options import ENTRY, SCOPE, IreeConvention, IreeProgram
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.protocol.artifact import ArtifactSymbol, TensorSpec

_OWN_DIALECTS = ("buddy.", "bufferization.")


class IreeUnsupportedError(Exception):
    """IREE cannot run the graph; the text says why, `node` is the stable name of a node that prevents it."""

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(message)
        self.node = node


def program_of(graph: Graph, module: Any, locations: LocationSets) -> IreeProgram:
    """Returns the program for top-level IR (an operation), which is not changed.

    Calls that fall back to eager only for its error, such as for an index out of range, are omitted and listed as
    `unchecked`. Raises `IreeUnsupportedError` for ops in eager, and for parallel loops, which IREE creates itself.
    """
    calls = eager_calls(module)
    if computing := {call.symbol: call.target for call in calls if call.results}:
        what = f"IREE cannot call eager PyTorch, which computes {', '.join(sorted(set(computing.values())))}"
        raise IreeUnsupportedError(what, _node(next(iter(_calls(module, computing)), None), locations))
    if loops := _ops(module, "scf.forall"):
        raise IreeUnsupportedError(
            "IREE supports scf.forall only inside of its own dispatches", _node(loops[0], locations)
        )
    with module.context, locations.nowhere(module.context):
        clone = module.clone(ip=False).operation
        entry = _entry(clone, graph._func_name)
        arguments = [_Argument(attributes) for attributes in entry.attributes["arg_attrs"]]
        wrapper, parameters = _wrapper(graph, entry, arguments, locations)
        _erase(clone, {call.symbol for call in calls})
        clone.walk(_strip)
        entry.attributes["sym_visibility"] = ir.StringAttr.get("private")
        text = clone.get_asm(enable_debug_info=True, assume_verified=True)
    inputs = tuple(found.source for found in arguments if found.is_input)
    specs = tuple(_spec(op) for op in graph.results if isinstance(op, Op))
    unchecked = tuple(sorted({call.target for call in calls}))
    convention = IreeConvention(inputs, parameters, specs, _symbols(graph, arguments), unchecked)
    return IreeProgram(_with_functions(text, wrapper), convention, tuple(locations.sets), dict(locations.derived))


class _Argument:
    """An argument of the entry, from its attributes: its placeholder, whether it is a weight, or its symbol."""

    def __init__(self, attributes: Any) -> None:
        self.source = int(attributes["buddy.source"].value) if "buddy.source" in attributes else -1
        self.is_parameter = "buddy.parameter" in attributes and self.source >= 0
        self.symbol = str(attributes["buddy.symbol"].value) if "buddy.symbol" in attributes else ""

    @property
    def is_input(self) -> bool:
        return self.source >= 0 and not self.is_parameter


def _entry(module: Any, name: str) -> Any:
    for op in module.regions[0].blocks[0]:
        if op.operation.name == "func.func" and op.operation.attributes["sym_name"].value == name:
            return op.operation
    raise IreeUnsupportedError(f"the module has no function {name}")


def _symbols(graph: Graph, arguments: Sequence[_Argument]) -> tuple[ArtifactSymbol, ...]:
    """Returns where a call finds the entry's symbols, in the order in which it takes them."""
    known = {symbol.name: symbol for symbol in symbols_of(graph)}
    return tuple(known[found.symbol] for found in arguments if found.symbol)


def _wrapper(
    graph: Graph, entry: Any, arguments: Sequence[_Argument], locations: LocationSets
) -> tuple[str, dict[str, int]]:
    """Returns a public function that calls the entry with weights from parameters, and their placeholders."""
    kind = ir.FunctionType(ir.TypeAttr(entry.attributes["function_type"]).value)
    results = [str(found) for found in kind.results]
    names = [op.stable for op in graph.placeholders]
    globals_, loads, taken, operands = [], [], [], []
    parameters: dict[str, int] = {}
    for place, (argument, found) in enumerate(zip(arguments, kind.inputs, strict=True)):
        operands.append(f"%a{place}")
        if argument.is_parameter:
            key, at = f"p{argument.source}", f'loc("{FILE}":{locations.intern([names[argument.source]])}:0)'
            parameters[key] = argument.source
            globals_.append(f'  util.global private @{key} = #flow.parameter.named<"{SCOPE}"::"{key}"> : {found} {at}')
            loads.append(f"    %a{place} = util.global.load @{key} : {found} {at}")
        elif argument.symbol:
            taken.append(f"%s{place}: i64")
            loads.append(f"    %a{place} = arith.index_cast %s{place} : i64 to {found}")
        else:
            taken.append(f"%a{place}: {found}")
    given = [f"%r:{len(results)}" for _ in results[:1]]
    values = [f"%r#{number}" for number in range(len(results))]
    call = f"func.call @{graph._func_name}({', '.join(operands)}) : {kind}"
    return "\n".join(
        [
            *globals_,
            f"  func.func public @{ENTRY}({', '.join(taken)}) -> ({', '.join(results)}) {{",
            *loads,
            f"    {' = '.join([*given, call])}",
            f"    return {', '.join(values)}{' : ' * bool(results)}{', '.join(results)}",
            "  }",
        ]
    ), parameters


def _strip(op: Any) -> Any:
    """Removes the attributes of our own passes; IREE does not know their dialect."""
    for attribute in [name for name in op.attributes if name.startswith(_OWN_DIALECTS)]:
        del op.attributes[attribute]
    for name in ("arg_attrs", "res_attrs"):
        if op.name == "func.func" and name in op.attributes:
            del op.attributes[name]
    return ir.WalkResult.ADVANCE


def _ops(module: Any, name: str) -> list[Any]:
    """Returns the ops of that name, at any depth."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == name:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return found


def _calls(module: Any, functions: Collection[str]) -> list[Any]:
    return [op for op in _ops(module, "func.call") if op.attributes["callee"].value in functions]


def _node(op: Any, locations: LocationSets) -> str:
    """Returns the first node that an op comes from, or ""."""
    return next(iter(locations.sets[locations.number_of(op.location)]), "") if op is not None else ""


def _erase(module: Any, functions: Collection[str]) -> None:
    """Erases declarations without results, and their calls."""
    declared = [op.operation for op in module.regions[0].blocks[0]]
    named = [op for op in declared if "sym_name" in op.attributes and op.attributes["sym_name"].value in functions]
    for op in [*_calls(module, functions), *named]:
        op.erase()


def _with_functions(module: str, functions: str) -> str:
    """Returns the text of a module with `functions` appended to its own."""
    end = module.rindex("\n}")
    return f"{module[:end]}\n{functions}{module[end:]}"


def _spec(op: Op) -> TensorSpec:
    return TensorSpec(tuple(map(plain_size, op.tensor_meta.shape)), op.tensor_meta.dtype.value)

"""Memref types, entry functions and `linalg.generic` ops as MLIR text."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A value, its type, and how the loops index it: ("%x", "memref<4x8xf32>", "i,j").
Operand = tuple[str, str, str]


def memref(*shape: int, element: str = "f32") -> str:
    return "memref<" + "".join(f"{size}x" for size in shape) + element + ">"


def entry_function(arguments: str, body: str, name: str = "f") -> str:
    """Returns a function without results that `mlir_jit.Compiled` can call."""
    return f"""
    func.func @{name}({arguments}) attributes {{llvm.emit_c_interface}} {{
      {body}
      return
    }}"""


def from_node(node: int, function: str) -> str:
    """Returns the function, with node number `node` as the location of its last op before the return."""
    return function.replace("\n      return", f' loc("graph":{node}:0)\n      return')


def generic(
    loops: str,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    body: str,
    *,
    reductions: str = "",
    yields: str = "%r",
    results: str = "",
) -> str:
    """Returns a `linalg.generic` over `loops`, each named by one letter; those in `reductions` are reduction loops.

    The block arguments are %in0, %in1, ... and %out0, %out1, ... in the order of the operands. `body` defines the
    values that `yields` names.
    With `results` (such as "%y"), the op is on tensors and defines these values.
    """
    operands = [*inputs, *outputs]
    names = ", ".join(loops)
    maps = ", ".join(f"affine_map<({names}) -> ({indices})>" for _, _, indices in operands)
    iterators = ", ".join('"reduction"' if loop in reductions else '"parallel"' for loop in loops)
    elements = [_element(type_) for _, type_, _ in operands]
    block = [f"%in{i}" for i in range(len(inputs))] + [f"%out{i}" for i in range(len(outputs))]
    arguments = ", ".join(f"{name}: {element}" for name, element in zip(block, elements, strict=True))
    types = ", ".join(type_ for _, type_, _ in outputs)
    return f"""
      {f"{results} = " if results else ""}linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
          {_group("ins", inputs)} {_group("outs", outputs)} {{
        ^bb0({arguments}):
          {body}
          linalg.yield {yields} : {", ".join(elements[len(inputs) :])}
      }}{f" -> {types}" if results else ""}"""


def elementwise_function(body: str, count: int, element: str = "f32", inputs: int = 1) -> str:
    """Returns an entry function that computes the value %r of `body` for each element of `inputs` vectors."""
    vectors = [(name, memref(count, element=element), "i") for name in [*(f"%x{i}" for i in range(inputs)), "%y"]]
    arguments = ", ".join(f"{name}: {type_}" for name, type_, _ in vectors)
    return entry_function(arguments, generic("i", vectors[:-1], vectors[-1:], body))


def _element(type_: str) -> str:
    """Returns the element type of a memref or tensor type."""
    found = re.match(r"\w+<(?:[\d?]+x)*(\w+)", type_)
    assert found, type_
    return found[1]


def _group(name: str, operands: Sequence[Operand]) -> str:
    if not operands:
        return ""
    values, types = (", ".join(operand[i] for operand in operands) for i in (0, 1))
    return f"{name}({values} : {types})"

"""Traversal of IR: nested ops, attributes, symbols and calls, and copies of a block's body."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import ir


def collect(root: Any) -> list[Any]:
    """Returns all ops nested in `root`, in pre-order, without `root` itself."""
    found: list[Any] = []
    add, advance = found.append, ir.WalkResult.ADVANCE

    def visit(op: Any) -> Any:
        add(op)
        return advance

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[1:]


def find_ops(root: Any, *names: str) -> list[Any]:
    """Returns the ops nested in `root` that have one of `names`, in pre-order, without `root` itself."""
    found: list[Any] = []
    advance = ir.WalkResult.ADVANCE

    def visit(op: Any) -> Any:
        if op.name in names:
            found.append(op)
        return advance

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return [op for op in found if op != root.operation]


def enclosing_entry_block(op: Any) -> tuple[Any, bool] | None:
    """Returns the entry block of the function around `op`, and whether `op` is inside a parallel loop.

    Returns `None` if no `func.func` encloses it, such as after `convert-func-to-llvm`.
    """
    parent, shared = op.parent, False
    while parent is not None and parent.operation.name != "func.func":
        shared = shared or parent.operation.name == "scf.parallel"
        parent = parent.operation.parent
    return (parent.regions[0].blocks[0], shared) if parent is not None else None


def attributes_of(op: Any) -> dict[str, Any]:
    """Returns the attributes of an op by name."""
    names = [name if isinstance(name, str) else name.name for name in op.attributes]
    return {name: op.attributes[name] for name in names}


def symbol_of(op: Any) -> str:
    """Returns the symbol name of an op, such as a function."""
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def callee_of(call: Any) -> str:
    """Returns the name of the function that a `func.call` calls."""
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def calls_in(function: Any) -> list[Any]:
    """Returns the `func.call` ops of a function."""
    return find_ops(function, "func.call")


def unique_symbol(module: Any, base: str) -> str:
    """Returns a symbol name that `module` does not have: `base`, or `base` with a number."""
    taken = {symbol_of(op) for op in module.regions[0].blocks[0] if "sym_name" in op.attributes}
    number, name = 0, base
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def clone_body(block: Any, known: dict[Any, Any]) -> list[Any]:
    """Clones the ops of `block` at the insertion point; returns the values that its terminator would yield.

    `known` maps values to their replacements, such as the block's arguments; the clones' results are added to it.
    """
    *body, end = block.operations
    for op in body:
        clone = op.operation.clone()
        # Ops in nested regions, such as loop bodies, may use the values too.
        for inner in (clone.operation, *(collect(clone) if len(clone.operation.regions) else ())):
            for i, operand in enumerate(inner.operands):
                if operand in known:
                    inner.operands[i] = known[operand]
        known |= dict(zip(op.operation.results, clone.operation.results, strict=True))
    return [known.get(value, value) for value in end.operands]

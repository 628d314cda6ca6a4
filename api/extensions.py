"""What plug-ins need to register lowerings, and to write backends that continue from LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Literal, TypeVar

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.plugins import check_op_name

if TYPE_CHECKING:
    from buddy.compiler.driver.backends import Code
    from buddy.compiler.driver.snapshots import Snapshot

Function = TypeVar("Function", bound=Callable[..., object])


def lowering(
    op: type[Op] | str, dialect: Literal["linalg", "tosa", "math"] = "linalg"
) -> Callable[[Function], Function]:
    """Registers the decorated function as the lowering of an op class in the registry of `dialect`.

    The function takes a node and the symbol table, and returns the MLIR value of the node's result, an op, or a list of
    values. It raises `LoweringError` for a case that it does not support; other registries and eager are tried then.
    Raises `BuddyError` for an op class of other code that has the name of one of this package.
    """
    name = op if isinstance(op, str) else op.__name__

    def register(function: Function) -> Function:
        registry = import_module(f"buddy.compiler.ops.{dialect}").ops_registry
        if isinstance(op, type):
            check_op_name(op)
        registry.lowering(name)(function)
        return function

    return register


def llvm_ir_of(code: Code) -> str:
    """Returns the LLVM IR of a module in the LLVM dialect. Raises `RuntimeError` if MLIR cannot translate it."""
    from buddy.compiler.mlir.printing import to_llvm_ir

    return to_llvm_ir(code.module)


def optimized_llvm_ir(llvm_ir: str, target: str = "", opt_level: int = 2) -> str:
    """Returns LLVM IR after LLVM's pipeline of this level, for a target of a recipe ("" is this machine).

    Raises `BuddyError` for an unknown target, and `RuntimeError` if LLVM rejects the text.
    """
    from buddy.compiler.codegen.machines import machine_of, parse_module, run_pipeline

    machine = machine_of(target)
    module = parse_module(llvm_ir, machine)
    run_pipeline(module, opt_level, machine)
    return str(module)


def llvm_stage(code: Code, name: str, phase: str, llvm_ir: str, seconds: float = 0.0) -> Snapshot:
    """Returns the snapshot of a stage of LLVM IR that a backend shows; each line leads to the nodes of `code`."""
    from buddy.compiler.driver.snapshots import of_text
    from buddy.compiler.mlir.printing import print_llvm

    return of_text(name, phase, print_llvm(llvm_ir, code.locations), seconds, "llvm")

# RUN: %PYTHON %s 2>&1 | FileCheck %s
# ruff: noqa: F403, F405
"""A script that takes the imported module through passes of its own choice, with MLIR's bindings under their name."""

import mlir.dialects.func as func
import mlir.ir as ir
import torch
from mlir.passmanager import *

from buddy.compiler.frontend import DynamoCompiler

dynamo_compiler = DynamoCompiler(func_name="main")
(graph,) = dynamo_compiler.importer(lambda x, y: x * y + x, torch.randn(10), torch.randn(10))
graph.lower_to_top_level_ir()
assert isinstance(graph._imported_module, ir.Module)
assert isinstance(graph._imported_module.body.operations[0], func.FuncOp)

with ir.Location.unknown(graph._ctx):
    pm = PassManager("builtin.module")
    pm.add("func.func(tosa-to-linalg-named)")
    pm.add("func.func(tosa-to-linalg)")
    pm.add("func.func(tosa-to-tensor)")
    pm.add("func.func(tosa-to-arith)")
    pm.run(graph._imported_module.operation)
print(graph._imported_module)
graph.lower_to_llvm_ir()
print(graph._imported_module)

# CHECK: func.func @main(
# CHECK: linalg.generic
# CHECK: arith.mulf
# CHECK: llvm.func @main(
# CHECK: llvm.fmul

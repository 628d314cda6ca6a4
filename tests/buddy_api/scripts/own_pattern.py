# RUN: %PYTHON %s 2>&1 | FileCheck %s
# ruff: noqa: F403, F405
"""A fusion pattern and a rewrite of a script's own, written with names as Buddy-MLIR's are."""

import torch

from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.graph import GraphDriver
from buddy.compiler.graph.operation import *
from buddy.compiler.graph.type import DeviceType, TensorDType


def foo(x, y):
    return (x * y + x).relu() - y


def by_kind(graph):
    """Products and sums apart from the rest."""
    graph.op_groups = {"arith": [], "rest": []}
    for op in graph.body:
        if isinstance(op, (PlaceholderOp, OutputOp)):
            continue
        graph.op_groups["arith" if isinstance(op, (MulOp, AddOp, NegOp)) else "rest"].append(op)
    graph.group_map_device = {"arith": DeviceType.CPU, "rest": DeviceType.CPU}


def negate_twice(graph):
    """Put `-(-x)` behind each product, in the way a script does that knows nodes by name."""
    for i, node in enumerate(list(graph.body)):
        if not isinstance(node, MulOp):
            continue
        first, second = NegOp(), NegOp()
        first.name, second.name = f"{node.name}_neg", f"{node.name}_neg_neg"
        for new, read in ((first, node.name), (second, first.name)):
            new.add_argument(read)
            new.add_parent(read)
            new.tensor_meta["shape"] = node.tensor_meta["shape"]
            new.tensor_meta["dtype"] = TensorDType.Float32
        graph.replace_as_parent(node, list(node._children), second)
        graph.body.insert(i + 1, first)
        graph.body.insert(i + 2, second)
        graph.node_table[first.name] = first
        graph.node_table[second.name] = second


dynamo_compiler = DynamoCompiler()
(graph,) = dynamo_compiler.importer(foo, torch.ones(4), torch.ones(4))
graph.perform([negate_twice])
graph.fuse_ops([by_kind])
for node in graph.body:
    parents = [str(graph.node_table[parent]) for parent in node._parents]
    print(node.name, type(node).__name__, parents, [str(child) for child in node._children])
driver = GraphDriver(graph)
print(driver.topological_sort_subgraph())

# CHECK: mul MulOp ['arg0_1', 'arg1_1'] ['mul_neg']
# CHECK-NEXT: mul_neg NegOp ['mul'] ['mul_neg_neg']
# CHECK-NEXT: mul_neg_neg NegOp ['mul_neg'] ['add']
# CHECK-NEXT: add AddOp ['mul_neg_neg', 'arg0_1'] ['relu']
# CHECK: ['arith', 'rest']

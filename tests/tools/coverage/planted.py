"""Faults for the harness to find: lowerings that are wrong, abort on one shape, raise, or never end; one of them is of
an op that only gradients have.
"""

import os
import time

from buddy.compiler.ops import linalg
from buddy.compiler.ops.elementwise import lower_expression

registry = linalg.ops_registry
subtraction = registry["SubOp"]


@registry.lowering("AbsOp")
def lower_abs_off_by_one(node, symbol_table):
    return lower_expression(node, symbol_table, lambda x: x + 1)


@registry.lowering("DigammaOp")  # the derivative of `lgamma`
def lower_digamma_off_by_one(node, symbol_table):
    return lower_expression(node, symbol_table, lambda x: x + 1)


@registry.lowering("SubOp")
def lower_sub_that_dies_of_scalars(node, symbol_table):
    if not node.tensor_meta.shape:
        os.abort()
    return subtraction(node, symbol_table)


# What others' lowerings raise costs their node alone, so the fault is one of the compiler's own: it wants a list.
registry.lowering("SinOp")(registry["CatOp"])


@registry.lowering("CosOp")
def lower_cos_for_ever(node, symbol_table):
    while True:
        time.sleep(1)

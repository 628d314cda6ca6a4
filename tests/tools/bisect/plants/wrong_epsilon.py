"""A lowering of layer norm that adds another epsilon than the program says."""

from buddy.compiler.ops import linalg

right = linalg.ops_registry["NativeLayerNormOp"]


@linalg.ops_registry.lowering("NativeLayerNormOp")
def native_layer_norm(node, symbol_table):
    epsilon = node.args[4]
    node.args[4] = epsilon + 1e-2
    try:
        return right(node, symbol_table)
    finally:
        node.args[4] = epsilon

"""A graph pass that puts the approximation of GELU in the place of the exact one."""

from buddy.compiler.graph.operations import GeluOp
from buddy.compiler.graph.transform import graph_pass


@graph_pass
def approximate_gelu(graph):
    """GELU by its approximation."""
    for op in graph.operations:
        if isinstance(op, GeluOp):
            graph.set_arguments(op, op.args[:1], {"approximate": "tanh"})

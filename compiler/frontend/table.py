"""The FX table of a captured graph: as text, the way `print_tabular` prints it, and as rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tabulate import tabulate

from buddy.compiler.frontend.convert import Conversion
from buddy.compiler.frontend.graph_break import NO_BREAK, GraphBreak
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import GraphInfo, NodeRow


def fx_table(conversion: Conversion) -> str:
    """A header line, a line of dashes, and one line per node, in the order of the Buddy graph."""
    cells = [[n.op, n.name, str(n.target), str(n.args), str(n.kwargs)] for n in conversion.fx_nodes]
    return tabulate(cells, headers=["opcode", "name", "target", "args", "kwargs"], disable_numparse=True) + "\n"


def graph_info(name: str, conversion: Conversion, broke: GraphBreak = NO_BREAK) -> GraphInfo:
    graph = conversion.graph
    pairs = zip(graph.body, conversion.fx_nodes, strict=True)
    return GraphInfo(
        name,
        tuple(_row(index, op, node) for index, (op, node) in enumerate(pairs)),
        inputs=sum(kind is NodeType.InputNode for kind in graph.kinds),
        parameters=sum(kind is NodeType.FakeNode for kind in graph.kinds),
        dtype=_main_dtype(graph.operations),
        broke=broke.reason,
        broke_at=broke.line,
    )


def _row(index: int, op: Op, node: Any) -> NodeRow:
    tensors = [meta for meta in op.metas if meta is not None]
    return NodeRow(
        index,
        op.stable,
        node.op,
        node.name,
        str(node.target),
        str(node.args),
        str(node.kwargs),
        shape=", ".join("x".join(map(str, meta.shape)) for meta in tensors),
        dtype=", ".join(dict.fromkeys(meta.dtype.value for meta in tensors)),
        module=op.module,
        location=op.location,
    )


def _main_dtype(operations: list[Op]) -> str:
    """The element type of most results."""
    counts = Counter(meta.dtype.value for op in operations for meta in op.metas[:1] if meta is not None)
    return counts.most_common(1)[0][0] if counts else ""

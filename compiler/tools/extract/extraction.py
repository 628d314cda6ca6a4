"""Extracts nodes of a captured graph as another captured graph, and writes graphs as Python scripts with tensors."""

from __future__ import annotations

import io
import keyword
import math
import re
from ast import literal_eval
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from buddy.compiler.frontend.graph_info import main_dtype, table_of_rows
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp
from buddy.compiler.graph.operations.effects import PhiloxOp
from buddy.compiler.graph.serialization import ExtractionError, Opaque, extract_graph, find_nodes, outside_values
from buddy.compiler.graph.types import NodeType, TensorDType
from buddy.compiler.protocol import GraphInfo, NodeRow
from buddy.compiler.runtime.callbacks import resolve_op
from buddy.compiler.runtime.captured import CapturedGraph, as_array
from buddy.compiler.runtime.graph_interpreter import SEED, compute_results, compute_values, symbol_values
from buddy.compiler.runtime.torch_values import to_torch_dtype


@dataclass(frozen=True)
class Subgraph:
    """A graph, its input tensors in the order of its placeholders, and the scalar arguments of the call (`numbers`)."""

    graph: Graph
    tensors: list[torch.Tensor]
    numbers: tuple[Any, ...] = ()


def extract_subgraph(whole: Subgraph, nodes: Collection[Op]) -> Subgraph:
    """Returns the subgraph of `nodes` with the values of its inputs, which eager computes.

    Raises `ExtractionError` like `extract_graph`, and if eager raises an error before it has computed these inputs.
    """
    symbols = symbol_values(whole.graph, whole.tensors, whole.numbers)
    graph = extract_graph(whole.graph, nodes, symbols)
    return Subgraph(graph, _compute_inputs(whole, list(outside_values(graph))))


def _compute_inputs(whole: Subgraph, names: Sequence[str]) -> list[torch.Tensor]:
    """Returns the values of the nodes `names` in eager. Raises `ExtractionError` if eager raises an error."""
    torch.manual_seed(SEED)
    try:
        values = compute_values(whole.graph, whole.tensors, set(names), whole.numbers)
    except Exception as error:
        what = f"eager fails before it has computed {', '.join(names[:3])}: {type(error).__name__}: {error}"
        raise ExtractionError(f"{what} · choose earlier nodes") from error
    # Inputs keep their strides, because a later `view` depends on them.
    return [values[name] for name in names]


# ---- scripts ---------------------------------------------------------------------------------------------------------

# The text of a script; `_RANDOM_BITS` is its import if the graph makes random bits.
_SCRIPT = '''\
"""{title}: extracted with its real inputs, which are in {file} next to this script.

It is plain Python, and a source for `buddy-tui`, which captures `model` on `example_inputs`.
"""

from pathlib import Path

import numpy as np
import torch
{imports}
VALUES = np.load(Path(__file__).with_name({file!r}))


def value(name, dtype, strides=None):
    """A tensor of the file; an element type that NumPy does not have is kept as integers of the same bits."""
    tensor = torch.from_numpy(VALUES[name])
    tensor = tensor if tensor.dtype == dtype else tensor.view(dtype)
    return tensor if strides is None else torch.empty_strided(tensor.shape, strides, dtype=dtype).copy_(tensor)


class Extracted(torch.nn.Module):
    def __init__(self):
        super().__init__()
{state}

{code}

model = Extracted().eval()
example_inputs = ({inputs})

if __name__ == "__main__":
    with torch.no_grad():
        for result in model(*example_inputs):
            print(tuple(result.shape), result.dtype, result.flatten()[:4])
'''

_RANDOM_BITS = "\nimport buddy.compiler.runtime.torch_ops  # defines torch.ops.buddy.philox32 and philox64\n"


@dataclass(frozen=True)
class GraphScript:
    """A script to be saved as `name`.py, and the tensors that it reads, to be saved next to it as `name`.npz."""

    name: str
    text: str
    values: bytes


def make_script(subgraph: Subgraph) -> GraphScript:
    """Returns a graph with its tensors as a script, in which symbolic sizes have their values for these tensors.

    Raises `ExtractionError` if sizes depend on data.
    """
    subgraph = extract_subgraph(subgraph, subgraph.graph.operations) if subgraph.graph.symbols else subgraph
    graph = subgraph.graph
    name = re.sub(r"\W+", "_", graph.name).strip("_") or "extracted"
    names = _python_names(graph)
    pairs = list(zip(graph.placeholders, subgraph.tensors, strict=True))
    parameters = [pair for pair in pairs if _is_parameter(pair[0])]
    call_inputs = [pair for pair in pairs if not _is_parameter(pair[0])]
    state = [
        f"        self.register_buffer({names[op.name]!r}, {_value_expression(names[op.name], t)})"
        for op, t in parameters
    ]
    inputs = "".join(f"{_value_expression(names[op.name], tensor)}, " for op, tensor in call_inputs)
    text = _SCRIPT.format(
        title=graph.name,
        file=f"{name}.npz",
        imports=_RANDOM_BITS if any(isinstance(op, PhiloxOp) for op in graph.operations) else "",
        state="\n".join(state) or "        pass",
        code=_indent(python_code(graph)),
        inputs=inputs.strip(),
    )
    return GraphScript(name, text, _npz({names[op.name]: tensor for op, tensor in pairs}))


def python_code(graph: Graph) -> str:
    """Returns the graph as a Python method: a line per node, with the element type and shape of its result."""
    names = _python_names(graph)
    parameter_names = ["self", *(names[op.name] for op in graph.placeholders if not _is_parameter(op))]
    lines = [f"def forward({', '.join(parameter_names)}):"]
    lines += [f"    {names[op.name]} = self.{names[op.name]}" for op in graph.placeholders if _is_parameter(op)]
    lines += [f"    {names[op.name]}{_type_annotation(op)} = {_call_expression(op, names)}" for op in graph.operations]
    results = "".join(f"{_argument_expression(result, names)}, " for result in graph.results)
    return "\n".join([*lines, f"    return ({results.strip()})"]) + "\n"


def _python_names(graph: Graph) -> dict[str, str]:
    """Returns a valid Python name for each node."""
    return {op.name: f"{op.name}_" if keyword.iskeyword(op.name) else op.name for op in graph.body}


def _is_parameter(op: Op) -> bool:
    """Returns whether a node is a parameter or buffer of the program, and so a buffer of the script's model."""
    return isinstance(op, PlaceholderOp) and op.kind is NodeType.FakeNode


def _type_annotation(op: Op) -> str:
    """Returns the type annotation of a node's result in FX's notation; "" for several results."""
    return f': "{op.metas[0]}"' if len(op.metas) == 1 and op.metas[0] is not None else ""


def _value_expression(name: str, tensor: torch.Tensor) -> str:
    """Returns the expression that reads a tensor, with its strides if the tensor is not dense and row-major."""
    dense = tensor.is_contiguous() or 0 in tensor.stride()
    strides = "" if dense else f", {tuple(tensor.stride())}"
    return f"value({name!r}, {tensor.dtype}{strides})"


def _call_expression(op: Op, names: Mapping[str, str]) -> str:
    arguments = [_argument_expression(value, names) for value in op.args]
    if isinstance(op, GetItemOp):
        return f"{arguments[0]}[{arguments[1]}]"
    keywords = [f"{key}={_argument_expression(value, names)}" for key, value in op.kwargs.items()]
    return f"torch.ops.{resolve_op(op.target)}({', '.join([*arguments, *keywords])})"


def _argument_expression(value: object, names: Mapping[str, str]) -> str:
    """Returns an argument of a node as a Python expression for torch."""
    if isinstance(value, Op):
        return names[value.name]
    if isinstance(value, TensorDType):
        return str(to_torch_dtype(value))
    if isinstance(value, Opaque):
        return _opaque_expression(value.text)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_argument_expression(item, names) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _opaque_expression(text: str) -> str:
    """Returns the Python expression for a value that the graph stores as text (see `torch_values.from_opaque`)."""
    if text.startswith("like("):
        shape, strides, dtype = literal_eval(text.removeprefix("like"))
        return f"torch.empty_strided({shape}, {strides}, dtype={to_torch_dtype(TensorDType(dtype))})"
    if text.startswith("torch."):
        return text
    try:
        return repr(complex(text))
    except ValueError:
        return f"torch.device({text!r})"


def _indent(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines()).rstrip("\n") + "\n"


def _npz(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Returns the tensors as a `.npz`, bit for bit."""
    data = io.BytesIO()
    np.savez(data, **{name: as_array(tensor, bits=True) for name, tensor in tensors.items()})
    return data.getvalue()


# ---- captured graphs -------------------------------------------------------------------------------------------------


def extract(captured: CapturedGraph, names: Sequence[str]) -> CapturedGraph:
    """Extracts the nodes `names` as a captured graph with its real inputs, whose eager program runs node by node.

    Nodes keep their names, lines and module paths. Raises `ExtractionError` if they cannot be extracted.
    """
    whole = Subgraph(captured.graph, captured.tensors, captured.numbers)
    subgraph = extract_subgraph(whole, find_nodes(captured.graph, names))
    graph, kinds = subgraph.graph, subgraph.graph.kinds
    rows = _rows(graph, {row.stable: row for row in captured.info.rows})
    info = GraphInfo(
        graph.name,
        rows,
        inputs=kinds.count(NodeType.InputNode),
        parameters=kinds.count(NodeType.FakeNode),
        dtype=main_dtype(graph.operations),
        caller_locations=captured.info.caller_locations,
    )
    parameters = frozenset(position for position, kind in enumerate(kinds) if kind is NodeType.FakeNode)
    eager = partial(compute_results, graph)
    return CapturedGraph(
        graph,
        info,
        subgraph.tensors,
        eager,
        table_of_rows(rows),
        parameters,
        user_lowerings=captured.user_lowerings,
        code=python_code(graph),
    )


def _rows(graph: Graph, rows_by_name: Mapping[str, NodeRow]) -> tuple[NodeRow, ...]:
    """Returns the rows of the FX table for the extracted graph, renumbered; its inputs become placeholders."""
    indices = {op.name: position for position, op in enumerate(graph.body)}
    return tuple(_row(op, rows_by_name[op.stable], indices) for op in graph.body)


def _row(op: Op, row: NodeRow, indices: Mapping[str, int]) -> NodeRow:
    changes: dict[str, object] = {"index": indices[op.name], "inputs": tuple(indices[p.name] for p in op.parents)}
    if isinstance(op, PlaceholderOp):
        changes |= {"opcode": "placeholder", "target": row.name, "args": "()", "kwargs": "{}"}
    elif isinstance(op, OutputOp):
        changes |= {"args": f"(({', '.join(map(str, op.parents))},),)"}
    return msgspec.structs.replace(row, **changes)

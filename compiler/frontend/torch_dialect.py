"""Imports a captured graph into the torch dialect with torch-mlir's importer of FX graphs.

When torch-mlir imports an exported program, weights become literals, and buffers must be in the state dict. Here every
parameter, buffer and constant is an argument instead: the function has the graph's arguments in the same order. The ops
are decomposed as by torch-mlir's own entry point.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.formulas import attention
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op, OutputOp, PlaceholderOp
from buddy.compiler.mlir.bindings import fx_graph_importer, torch_dialect
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.plain_values import ImportedIR
from buddy.compiler.protocol.presets import IMPORTED
from buddy.compiler.protocol.recipe import TORCH_MLIR
from buddy.compiler.protocol.worker_messages import FailureReply, GraphImported
from buddy.compiler.runtime import torch_ops
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import FailureMessages, reply_in_child

# The file name in the importer's locations.
FILE = "graph"
_ENTRY = "main"
_LINE = re.compile(rf'"{FILE}":(\d+):')
_REMOVE_OP = "use the frontend dynamo, or remove the op from the program"
_IN_CHILD = FailureMessages(
    "the import by torch-mlir failed",
    Diagnostic("torch-mlir's importer crashed", "importing the captured graph", "use the frontend dynamo"),
)


def import_captured(captured: CapturedGraph) -> ImportedIR:
    """Imports a captured graph into the torch dialect. Raises `UnsupportedGraphError` for a piece of a graph."""
    if captured.torch_dialect is None:
        raise UnsupportedGraphError(
            Diagnostic(
                "torch-mlir imports complete captured graphs only, and this is a piece of one",
                "the graph",
                "use the frontend dynamo",
            )
        )
    return captured.torch_dialect()


def import_in_child(channel: Channel, captured: CapturedGraph) -> GraphImported | FailureReply:
    """Imports a graph by torch-mlir in a child process, so that this process does not load MLIR."""
    reply = reply_in_child(channel, lambda _: GraphImported(import_captured(captured)), _IN_CHILD)
    assert isinstance(reply, GraphImported | FailureReply)
    return reply


def import_graph(graph: Graph, nodes: Sequence[Node]) -> ImportedIR:
    """Imports `graph`, which was made from the FX `nodes`, into the torch dialect.

    Raises `UnsupportedGraphError` for what torch-mlir's importer does not support, and for a graph that has been edited
    since it was captured.
    """
    _check_sizes(graph)
    node_by_name = {node.name: node for node in nodes}
    module, fakes = _make_self_contained(graph, node_by_name)
    node_names = [op.stable for op in graph.body]
    try:
        decomposed = _decompose(module, fakes)
        _check_results(graph, node_by_name, decomposed)
        text = _to_mlir(decomposed, node_names)
    except UnsupportedGraphError:
        raise
    except Exception as error:  # the importer raises assertion and lookup errors for unsupported ops
        what = f"torch-mlir's importer rejects the graph: {type(error).__name__}: {_first_line(error)}"
        raise _rejection(graph, what) from error
    return ImportedIR(text, IMPORTED, _ENTRY, TORCH_MLIR)


def _check_sizes(graph: Graph) -> None:
    """Raises `UnsupportedGraphError` for symbolic sizes, and for inputs without elements."""
    if graph.symbols:
        raise _rejection(graph, "the frontend torch-mlir does not support symbolic sizes", "capture with static sizes")
    if any(0 in op.tensor_meta.shape for op in graph.placeholders):
        raise _rejection(graph, "an input has no elements, which the frontend torch-mlir does not support")


def _check_results(graph: Graph, nodes: Mapping[str, Node], module: GraphModule) -> None:
    """Raises `UnsupportedGraphError` for a result of another shape or dtype than captured.

    The caller's buffer would not fit.
    """
    (output,) = module.graph.find_nodes(op="output")
    results = [op for op in graph.results if isinstance(op, Op)]
    for op, node in zip(results, output.args[0], strict=True):
        expected, value = nodes[op.name].meta["val"], node.meta["val"]
        if (expected.shape, expected.dtype) != (value.shape, value.dtype):
            new_form, old_form = (f"{tensor.dtype} of {list(tensor.shape)}" for tensor in (value, expected))
            what = f"torch-mlir's decompositions make {op.stable} a {new_form} where it is a {old_form}"
            raise _rejection(graph, what)


def _rejection(graph: Graph, what: str, todo: str = _REMOVE_OP) -> UnsupportedGraphError:
    return UnsupportedGraphError(Diagnostic(what, f"the graph {graph.name}", todo))


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")


def _make_self_contained(graph: Graph, nodes: Mapping[str, Node]) -> tuple[GraphModule, list[torch.Tensor]]:
    """Returns the FX graph with constants as inputs and only tensors as results, and its inputs as fake tensors.

    `nodes` are the FX nodes by name. The stack trace of each new node has the number of its node in `graph` as line,
    because the importer turns stack traces into locations.
    """
    new_graph, new_nodes, fakes = FxGraph(), dict[Node, Node](), list[Any]()
    for number, op in enumerate(graph.body):
        node = nodes.get(op.name)
        if node is None:
            raise _rejection(graph, f"{op.stable or op.name} was added to the graph after capture")
        if isinstance(op, PlaceholderOp):
            new = new_graph.placeholder(node.name)
            fakes.append(node.meta["val"])
        elif isinstance(op, OutputOp):
            new = new_graph.output(tuple(new_nodes[result] for result in node.args[0] if isinstance(result, Node)))
        else:
            new = new_graph.node_copy(node, new_nodes.__getitem__)
        new.meta = {"val": node.meta.get("val"), "stack_trace": f'File "{FILE}", line {number}, in graph'}
        new_nodes[node] = new
    return GraphModule(torch.nn.Module(), new_graph), fakes


def _decompose(module: GraphModule, inputs: Sequence[torch.Tensor]) -> GraphModule:
    """Returns the graph with torch-mlir's own decompositions.

    The new nodes have the stack trace of the node that they replace.
    """
    mode = torch._guards.detect_fake_mode(inputs)
    mode = mode or torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [value if mode.is_our_fake(value) else mode.from_tensor(value) for value in inputs]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with preserve_node_meta():
            return Interpreter(module).run(*tensors)

    with torch.no_grad(), mode:
        traced = make_fx(run, decomposition_table=_decompositions(), _allow_non_fake_inputs=True)(*fakes)
    # Removes, for example, unused statistics of a batch norm, which some pipelines of torch-mlir do not support.
    traced.graph.eliminate_dead_code()
    return traced


def _decompositions() -> dict[torch._ops.OpOverload, Callable[..., object]]:
    aten = torch.ops.aten
    replacements = {aten.view.default: _view, aten._scaled_dot_product_flash_attention_for_cpu.default: attention}
    return {**fx_graph_importer().decompositions(), **replacements, **torch_ops.DECOMPOSITIONS}


def _view(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Computes `view` for any strides.

    The strides in a decomposition may differ from the captured ones, and MLIR values have no strides.
    """
    if tensor.is_contiguous():
        return NotImplemented
    return torch.ops.aten.view.default(tensor.clone(memory_format=torch.contiguous_format), size)


def _to_mlir(module: GraphModule, node_names: Sequence[str]) -> str:
    """Returns the module as MLIR text; the location of each op is the name of its node."""
    from buddy.compiler.mlir.bindings import ir  # imported only here: capture needs no MLIR

    dialect = torch_dialect()
    assert dialect is not None
    context = ir.Context()
    dialect.register_dialect(context)
    importer = fx_graph_importer().create(context)
    importer.import_stateless_graph(module.graph, func_name=_ENTRY)
    operation = importer.module.operation

    def set_location(op: ir.Operation) -> ir.WalkResult:
        match = _LINE.search(str(op.location))
        if match is not None:
            op.location = ir.Location.name(node_names[int(match[1])], context=context)
        return ir.WalkResult.ADVANCE

    operation.walk(set_location)
    return str(operation.get_asm(enable_debug_info=True))

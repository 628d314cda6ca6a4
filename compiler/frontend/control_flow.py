"""Compiles the branches and bodies of control flow in ATen graphs (`cond`, `scan`, …), which PyTorch itself runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import getitem

import torch
from torch.fx import GraphModule, Node

from buddy.compiler.frontend.aten import AtenGraph, Runner
from buddy.compiler.frontend.random_numbers import take_seed_as_input, with_seed

_CONTROL_FLOW_OPS = {"cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "invoke_subgraph"}


def is_control_flow(node: Node) -> bool:
    """True if `node` is an op whose bodies can be compiled, or selects a result of one."""
    if node.target is getitem:
        return isinstance(node.args[0], Node) and is_control_flow(node.args[0])
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in _CONTROL_FLOW_OPS


def has_control_flow(module: GraphModule) -> bool:
    """Returns whether a graph has an op whose branches or bodies can be compiled."""
    return any(map(is_control_flow, module.graph.nodes))


def compile_bodies(aten: AtenGraph, compile_graph: Callable[[AtenGraph], Runner]) -> GraphModule:
    """Returns the graph with each branch and body of control flow replaced by the result of `compile_graph`.

    Each body is passed as an `AtenGraph` with its name in `body`. Raises what `compile_graph` raises.
    """
    compiled = GraphModule(aten.module, aten.module.graph)
    for op in filter(is_control_flow, aten.module.graph.nodes):
        for name in _body_names(op, aten.module):
            returns_single = isinstance(getattr(aten.module, name).graph.output_node().args[0], Node)
            setattr(compiled, name, _Body(_compile_body(_describe_body(aten, name), compile_graph), returns_single))
    return compiled


def _compile_body(body: AtenGraph, compile_graph: Callable[[AtenGraph], Runner]) -> Runner:
    """Compiles a body; if it draws a seed for random numbers, the seed becomes an input."""
    seeded = take_seed_as_input(body.module)
    if seeded is None:
        return compile_graph(body)
    n_inputs = len(body.origins) + 1
    return with_seed(
        compile_graph(replace(body, module=seeded, origins=(None,) * n_inputs, input_of=(None,) * n_inputs))
    )


def _body_names(op: Node, module: GraphModule) -> list[str]:
    """Returns the names of the attributes of `module` that are the branches or bodies of `op`."""
    names = [str(node.target) for node in op.all_input_nodes if node.op == "get_attr"]
    return [name for name in names if isinstance(getattr(module, name, None), GraphModule)]


def _describe_body(aten: AtenGraph, name: str) -> AtenGraph:
    """Returns the body `name` as a graph that returns a tuple, even of one value; its inputs have no origins."""
    module: GraphModule = getattr(aten.module, name)
    output = module.graph.output_node()
    n_inputs = sum(node.op == "placeholder" for node in module.graph.nodes)
    if isinstance(output.args[0], Node):
        graph = torch.fx.Graph()
        graph.output((graph.graph_copy(module.graph, {}),))
        module = GraphModule(module, graph)
    body = f"{aten.body}, {name}" if aten.body else name
    return replace(
        aten, module=module, origins=(None,) * n_inputs, input_of=(None,) * n_inputs, body=body, unseeded=None
    )


class _Body(torch.nn.Module):
    """Runs a compiled body in place of its graph: it returns one value if `returns_single`, otherwise a tuple."""

    def __init__(self, run: Runner, returns_single: bool) -> None:
        super().__init__()
        self._run, self._returns_single = run, returns_single

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        results = self._run(*arguments)
        return results[0] if self._returns_single else tuple(results)

"""Inductor's input: the FX graph of a Buddy graph for the sizes of one call, and the settings that a recipe may choose.

A recipe chooses settings by `backend_flags` (`--NAME=VALUE`), which are listed and parsed here.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op
from buddy.compiler.protocol.catalogue import FlagInfo
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import InductorFlags
from buddy.compiler.runtime.callbacks import resolve_op
from buddy.compiler.runtime.graph_interpreter import plain_to_torch


class InductorError(BuddyError):
    """Inductor cannot compile a graph; `node` is the stable name of a node that prevents it, or ""."""

    def __init__(self, what: str, where: str = "Inductor", todo: str = "", node: str = "", detail: str = "") -> None:
        super().__init__(what, where, todo or "extract a subgraph without it, or choose the native backend")
        self.node, self.detail = node, detail


@dataclass(frozen=True)
class FxProgram:
    """A Buddy graph as an FX graph: `module` takes the tensors of its placeholders, and returns its tensor results.

    `stable` maps the name of each FX node to the stable names of its Buddy nodes: the node that it computes, and for a
    node with several results also the nodes that select a result, because Inductor's later graphs omit them.
    """

    module: torch.fx.GraphModule
    stable: Mapping[str, tuple[str, ...]]


def fx_program(graph: Graph, symbols: Mapping[str, int], outputs: Sequence[str] = ()) -> FxProgram:
    """Returns `graph` as an FX graph with the symbolic sizes `symbols`.

    The values of the nodes in `outputs` (stable names) are added to the results. A result that may share memory with an
    input or with another result is copied, so that Inductor's code returns all results itself. Raises `InductorError`
    for a node that is not an op of torch.
    """
    fx_graph = torch.fx.Graph()
    values: dict[str, torch.fx.Node] = {}
    stable: dict[str, tuple[str, ...]] = {}
    for placeholder in graph.placeholders:
        node = values[placeholder.name] = fx_graph.placeholder(placeholder.name)
        stable[node.name] = (placeholder.stable,)
    for op in graph.operations:
        node = values[op.name] = _add_node(fx_graph, op, values, symbols)
        stable[node.name] = (op.stable,)
        if isinstance(op, GetItemOp):
            source = node.all_input_nodes[0].name
            stable[source] = (*stable[source], op.stable)
    results = [op for op in graph.results if isinstance(op, Op)]
    results += [op for op in graph.operations if op.stable in set(outputs)]
    returned = _without_aliases(fx_graph, [values[op.name] for op in results])
    stable.update(
        {node.name: (op.stable,) for node, op in zip(returned, results, strict=True) if node.name not in stable}
    )
    fx_graph.output(tuple(returned))
    return FxProgram(torch.fx.GraphModule(torch.nn.Module(), fx_graph), stable)


def _add_node(
    fx_graph: torch.fx.Graph, op: Op, values: Mapping[str, torch.fx.Node], symbols: Mapping[str, int]
) -> torch.fx.Node:
    """Adds the call of `op` to the FX graph, with operands by name in `values`. Raises `InductorError`."""
    try:
        target = operator.getitem if isinstance(op, GetItemOp) else resolve_op(op.target)
    except AttributeError as error:
        raise InductorError(f"Inductor cannot compile {op.target}: torch has no such op", node=op.stable) from error
    arguments = tuple(plain_to_torch(argument, values, symbols) for argument in op.args)
    keywords = {key: plain_to_torch(argument, values, symbols) for key, argument in op.kwargs.items()}
    if any(isinstance(value, torch.Tensor) for value in (*arguments, *keywords.values())):
        raise InductorError(f"Inductor cannot compile {op.target}: an argument is a tensor by its form", node=op.stable)
    return fx_graph.create_node("call_function", target, arguments, keywords, name=op.name)


def _without_aliases(fx_graph: torch.fx.Graph, results: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Returns `results`, with a copy in place of each node that is an input, a view, or listed before."""
    seen: set[torch.fx.Node] = set()
    returned = []
    for node in results:
        if node in seen or node.op == "placeholder" or _is_view(node):
            returned.append(fx_graph.call_function(torch.ops.aten.clone.default, (node,)))
        else:
            returned.append(node)
        seen.add(node)
    return returned


def _is_view(node: torch.fx.Node) -> bool:
    """Returns whether a node may return memory of an operand, by the schema of its op.

    A `getitem` may if the op that computes its operand may.
    """
    if node.target is operator.getitem:
        return _is_view(node.all_input_nodes[0])
    if not isinstance(node.target, OpOverload):
        return True
    # Some ops, such as `reshape`, return a view or a copy, and their schema does not say so.
    returns = node.target._schema.returns
    aliases = any(value.alias_info is not None for value in returns)
    return aliases or torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(), "CompositeImplicitAutograd")


# ---- settings --------------------------------------------------------------------------------------------------------


# Prefixes and parts of the names of settings that recipes cannot choose: those by which stages are recorded, those of
# caches, tests, processes and other targets, and private ones.
_RESERVED_PREFIXES = ("trace.", "test_configs.", "rocm.", "cuda.", "halide.", "cutlass.", "aot_inductor", "_")
_RESERVED_PARTS = (
    "TYPE_CHECKING",
    "cache",
    "debug",
    "worker",
    "compile_threads",
    "cpp.threads",
    "TESTING",
    "benchmark_harness",
)
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def settings_of(flags: Sequence[str], threads: int) -> dict[str, object]:
    """Returns the settings of a compilation with `flags`. Raises `InductorError` for an invalid flag."""
    chosen = dict(map(_parse_flag, flags))
    return {
        **chosen,
        # A hit in these caches would skip the passes whose stages are shown.
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        # Worker processes would be forked after torch has used threads.
        "compile_threads": 1,
        "cpp.threads": threads,
        "trace.provenance_tracking_level": 1,
        "benchmark_harness": False,
    }


def flag_problem(flags: Sequence[str]) -> str:
    """Returns the reason why a flag is invalid, "" if all are valid."""
    try:
        for flag in flags:
            _parse_flag(flag)
    except InductorError as error:
        return error.diagnostic.what
    return ""


def flags() -> Iterator[FlagInfo]:
    """Yields the settings that a recipe may choose: those that are true or false, or numbers."""
    for name, default in sorted(_defaults().items()):
        if not _is_reserved(name) and isinstance(default, bool | int | float):
            values = ("true", "false") if isinstance(default, bool) else ()
            yield FlagInfo(name, type(default).__name__, values, f"default {str(default).lower()}")


def describe(chosen: tuple[str, ...]) -> InductorFlags:
    """Returns the settings, and whether `chosen` are valid flags; a one-shot process calls this."""
    return InductorFlags({"torch": str(torch.__version__)}, tuple(flags()), flag_problem(chosen))


def _defaults() -> dict[str, object]:
    from torch._inductor import config

    return dict(config.get_config_copy())


def _is_reserved(name: str) -> bool:
    return name.startswith(_RESERVED_PREFIXES) or any(part in name for part in _RESERVED_PARTS)


def _parse_flag(flag: str) -> tuple[str, object]:
    """Returns the name and the value of `--NAME=VALUE`, or of `--NAME`, which is true. Raises `InductorError`."""
    name, has_value, text = flag.lstrip("-").partition("=")
    name = name.replace("-", "_")
    default = _defaults().get(name)
    if not flag.startswith("--") or not name:
        raise InductorError(f"{flag!r} is not a flag", "the recipe's backend_flags", "write --NAME=VALUE")
    if _is_reserved(name) or not isinstance(default, bool | int | float):
        what = (
            f"{flag} is not allowed"
            if _is_reserved(name)
            else f"{name} is not an Inductor setting with a boolean or numeric default"
        )
        raise InductorError(what, "the recipe's backend_flags", "see the list of flags")
    if isinstance(default, bool):
        value: Any = _BOOLEANS.get(text.lower()) if has_value else True
        expected = "true or false"
    else:
        expected = "a number" if isinstance(default, float) else "a whole number"
        try:
            value = type(default)(text)
        except ValueError:
            value = None
    if value is None:
        raise InductorError(f"{name} is {expected}, not {text!r}", "the recipe's backend_flags", "correct the value")
    return name, value

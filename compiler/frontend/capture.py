"""Captures the graphs of a callable by TorchDynamo or `torch.export`.

A tool that runs a script with `listening` is notified of every graph that the script compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch._library.custom_ops import OPDEFS
from torch._library.utils import can_generate_trivial_fake_impl
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils._pytree import tree_leaves, tree_unflatten

from buddy.compiler.frontend.aten import (
    AtenGraph,
    InputOrigin,
    Runner,
    default_decompositions,
    is_zero,
    load_plugins,
    remove_form_assertions,
    run_aot,
)
from buddy.compiler.frontend.convert import Conversion, to_buddy
from buddy.compiler.frontend.eager_dispatch import dispatch_like_eager
from buddy.compiler.frontend.eager_program import eager_program, unseeded_program
from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.graph_info import find_graph_break, fx_code, fx_table, make_graph_info
from buddy.compiler.frontend.graph_splitter import SplitGraph, cut_around
from buddy.compiler.frontend.random_numbers import SEED, decompose_random, new_seed
from buddy.compiler.frontend.torch_dialect import import_graph
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import NodeType
from buddy.compiler.runtime.captured import CapturedGraph


def break_at_ops_without_fake() -> None:
    """Makes Dynamo break the graph at each `torch.library.custom_op` without `register_fake`.

    Such ops run in eager between two graphs. Ops that are defined later are not covered.
    """
    for definition in list(OPDEFS.values()):
        overload = definition._opoverload
        if definition._abstract_fn is None and not can_generate_trivial_fake_impl(overload):
            torch._dynamo.disallow_in_graph(overload)


# PyTorch's own function: while a script is captured, `torch.compile` is replaced.
_torch_compile = torch.compile


@dataclass
class GraphRecorder:
    """A Dynamo backend that records every graph with real inputs, and runs it in eager.

    `name` is the name of the graphs, `func_name` of their function in MLIR. A graph is added to `graphs` at its first
    call, and passed to `on_graph`. If `ops_map` or `decompositions` is None, the default one is used.
    With `strict`, no node of a graph may run in eager.
    """

    name: str = "forward"
    func_name: str = "forward"
    ops_map: Mapping[str, type[Op]] | None = None
    decompositions: Mapping[Any, Callable[..., Any]] | None = None
    on_graph: Callable[[CapturedGraph], None] | None = None
    strict: bool = False
    graphs: list[CapturedGraph] = field(default_factory=list)

    def __call__(
        self,
        module: torch.fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        origins: Sequence[InputOrigin] | None = None,
        **_: object,
    ) -> Callable[..., Sequence[torch.Tensor]]:
        table = default_decompositions(self.ops_map) if self.decompositions is None else self.decompositions
        return run_aot(module, inputs, self._compile, table, origins)

    def record(self, aten: AtenGraph, tensors: Sequence[torch.Tensor]) -> None:
        """Records a graph that is already in ATen, with the real inputs `tensors`."""
        self._compile(aten)(*tensors)

    def _compile(self, aten: AtenGraph) -> Runner:
        """Returns a function that records `aten`, or the pieces that a Buddy graph can represent, and runs them."""
        if self.strict:
            return self._record_at_call(aten)
        try:
            return self._record_at_call(aten)
        except UnsupportedGraphError as error:
            cut = cut_around(aten, error, self._convert)
            if not cut.compiled and cut.in_eager:
                raise
            return SplitGraph(cut, self._record_at_call, self._compile)

    def _convert(self, aten: AtenGraph) -> Conversion:
        return to_buddy(aten, self._graph_name(aten), self.ops_map, self.func_name)

    def _record_at_call(self, aten: AtenGraph) -> Runner:
        """Returns a function that runs `aten` in eager, and records it with the inputs of the first call."""
        conversion = self._convert(aten)
        is_recorded = False

        def run(*arguments: torch.Tensor) -> Sequence[torch.Tensor | None]:
            nonlocal is_recorded
            if not is_recorded:
                is_recorded = True
                self._add_graph(self._make_captured(aten, conversion, arguments))
            return aten.module(*arguments)

        return run

    def _make_captured(
        self, aten: AtenGraph, conversion: Conversion, arguments: Sequence[torch.Tensor]
    ) -> CapturedGraph:
        """Returns the captured graph of `aten` with the inputs of one call; `arguments` are tensors and numbers."""
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        real_inputs = [*_detach_tensors(tensors, conversion.graph), *conversion.constants]
        info = make_graph_info(conversion.graph.name, conversion, find_graph_break(aten))
        n_constants = len(conversion.constants)
        return CapturedGraph(
            conversion.graph,
            msgspec.structs.replace(info, strict=self.strict),
            real_inputs,
            eager_program(aten, arguments, n_constants),
            table=fx_table(conversion),
            parameters=frozenset(i for i, t in enumerate(tensors) if isinstance(t, torch.nn.Parameter)),
            numbers=tuple(value for value in arguments if not isinstance(value, torch.Tensor)),
            code=fx_code(conversion),
            torch_dialect=partial(import_graph, conversion.graph, conversion.fx_nodes),
            eager_to_time=unseeded_program(aten, arguments, n_constants),
            seed=next((i for i, node in enumerate(conversion.fx_nodes) if SEED in node.meta), None),
        )

    def _graph_name(self, aten: AtenGraph) -> str:
        """Returns the name of a graph, such as `model (backward, part 2)`."""
        labels = [
            "backward" if aten.kind == "backward" else "",
            f"part {aten.piece}" if aten.piece else "",
            aten.body,
        ]
        text = ", ".join(filter(None, labels))
        return f"{self.name} ({text})" if text else self.name

    def _add_graph(self, captured: CapturedGraph) -> None:
        self.graphs.append(captured)
        if self.on_graph is not None:
            self.on_graph(captured)


def _detach_tensors(tensors: Sequence[torch.Tensor], graph: Graph) -> list[torch.Tensor]:
    """Returns the tensors without autograd history.

    Inputs are copied, because the program may reuse their memory; parameters and buffers are not.
    """
    pairs = zip(tensors, graph.kinds, strict=False)
    return [t.detach() if kind is NodeType.FakeNode else t.detach().clone() for t, kind in pairs]


def capture(
    function: Callable[..., object],
    args: Sequence[torch.Tensor] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    recorder: GraphRecorder | None = None,
    grad: bool = False,
) -> list[CapturedGraph]:
    """Returns the graphs of `function(*args, **kwargs)`, with the static sizes of the arguments.

    Unless `grad`, it runs under `no_grad`. With `grad`, the results are differentiated, with ones as incoming
    gradients, so that backward graphs are captured too; `.grad` is not modified. Raises what `function` raises.
    """
    recorder = recorder or GraphRecorder(callable_name(function))
    n_before = len(recorder.graphs)
    torch._dynamo.reset()
    load_plugins()
    break_at_ops_without_fake()
    try:
        with torch.set_grad_enabled(grad), capture_settings():
            results = _torch_compile(function, backend=recorder, dynamic=False)(*args, **(kwargs or {}))
            if grad:
                _compute_gradients(results)
    finally:
        torch._dynamo.reset()
    return recorder.graphs[n_before:]


@contextmanager
def capture_settings() -> Iterator[None]:
    """Sets Dynamo's options for capture in the `with` block.

    Sizes are static, recurrent layers are captured, and many versions of one function are allowed. Dynamo infers shapes
    by the decompositions that capture uses: by PyTorch's own, packed sequences break the graph.
    """
    settings = {"recompile_limit": 64, "automatic_dynamic_shapes": False, "allow_rnn": True}
    with torch._dynamo.config.patch(settings), dispatch_like_eager():
        yield


def record_inference(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], recorder: GraphRecorder) -> None:
    """Records the inference graph of a Dynamo graph, on copies of all inputs except parameters."""
    with torch.no_grad():
        recorder(module, inputs)(*_copy_inputs(_replace_symbolic_sizes(module, inputs)))


def record_training(
    module: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    origins: Sequence[InputOrigin],
    recorder: GraphRecorder,
) -> None:
    """Records the forward and backward graphs of a Dynamo graph; the incoming gradients are ones."""
    with torch.enable_grad():
        results = recorder(module, inputs, origins)(*_copy_inputs(_replace_symbolic_sizes(module, inputs)))
        _compute_gradients(results)


def _replace_symbolic_sizes(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the inputs of a Dynamo graph, with symbolic numbers replaced by the sizes of the real tensors.

    A number that is no tensor's size gets the value that it had when it was traced.
    """
    fakes = [node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder"]
    pairs = [(f, t) for f, t in zip(fakes, inputs, strict=False) if isinstance(t, torch.Tensor) and f is not None]
    real_sizes = {
        str(size): real for fake, tensor in pairs for size, real in zip(fake.shape, tensor.shape, strict=True)
    }
    return [
        real_sizes.get(str(value), value.node.hint) if isinstance(value, torch.SymInt) else value for value in inputs
    ]


def _copy_inputs(inputs: Sequence[torch.Tensor]) -> list[object]:
    return [value if isinstance(value, torch.nn.Parameter) else _copy(value) for value in inputs]


def _copy(value: object) -> object:
    """Returns a copy of a tensor without autograd history; other values are returned unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def callable_name(function: object) -> str:
    """Returns the class name of a module, else the function's name."""
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    return str(getattr(function, "__name__", type(function).__name__))


# The name of the result of a call that returns one tensor.
SINGLE_RESULT = "output"


def name_results(runs: Sequence[tuple[list[CapturedGraph], Sequence[torch.Tensor]]], result: object) -> None:
    """Gives the results of graphs the names that the program gives them, such as the keys of a dict that it returns.

    `result` is the value that a call of the program returned; its tensors are compared by identity with those that the
    graphs returned in this call. `runs` has for each Dynamo graph its ATen graphs and these tensors. If `result` is one
    tensor, its name is `SINGLE_RESULT`. A Dynamo graph that was cut, or whose ATen graph also returns tensors that it
    writes, keeps the names of its nodes.
    """
    names: dict[int, str] = {id(result): SINGLE_RESULT} if isinstance(result, torch.Tensor) else {}
    for name, tensor in named_tensors(result):
        names.setdefault(id(tensor), name)
    for graphs, values in runs:
        if len(graphs) == 1 and len(graphs[0].graph.results) == len(values):
            pairs = zip(values, graphs[0].names_of_results(), strict=True)
            graphs[0].result_names = tuple(names.get(id(value)) or node for value, node in pairs)


def named_tensors(value: object, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the names and the tensors in nested dicts, dataclasses, tuples and lists.

    A name consists of keys, fields and positions, joined by dots, after the prefix `name`; it is "" if all of them are
    positions.
    """
    if isinstance(value, torch.Tensor):
        yield name if any(part and not part.isdigit() for part in name.split(".")) else "", value
        return
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        entries = value.items()
    elif is_dataclass(value) and not isinstance(value, type):
        entries = ((entry.name, getattr(value, entry.name)) for entry in fields(value))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        entries = zip(value._fields, value, strict=True)
    elif isinstance(value, list | tuple):
        entries = enumerate(value)
    for key, entry in entries:
        yield from named_tensors(entry, f"{name}.{key}" if name else str(key))


def _compute_gradients(results: object) -> None:
    """Runs the backward pass of the tensors in `results`, with ones as incoming gradients; `.grad` is not modified."""
    outputs = [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad]
    inputs = _leaves_of(outputs)
    if outputs and inputs:
        torch.autograd.grad(outputs, inputs, [torch.ones_like(output) for output in outputs], allow_unused=True)


def _leaves_of(results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the leaf tensors of autograd's graph that `results` depend on."""
    leaves: dict[int, torch.Tensor] = {}
    pending, seen = [t.grad_fn for t in results], set()
    while pending:
        function = pending.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            leaves[id(function.variable)] = function.variable
        pending.extend(parent for parent, _ in function.next_functions)
    return list(leaves.values())


OnGraph = Callable[[CapturedGraph], None]
# Makes a context in which calls are not recorded.
PauseRecording = Callable[[], AbstractContextManager[None]]
# Sizes that `torch.export.export` keeps symbolic: by the names of arguments, or in their order.
DynamicShapes = Mapping[str, object] | Sequence[object] | None
# A TorchDynamo backend: maps a graph and its inputs to the callable that replaces it.
DynamoBackend = Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Sequence[torch.Tensor]]]


class _Listener(NamedTuple):
    """The arguments of `listening`."""

    on_graph: OnGraph
    pause: PauseRecording
    backend: DynamoBackend | None


_listeners: list[_Listener] = []


@contextmanager
def listening(on_graph: OnGraph, pause: PauseRecording, backend: DynamoBackend | None = None) -> Iterator[None]:
    """Calls `on_graph` with every graph that is imported inside the `with` block.

    The context `pause()` is active while a graph is imported, so that calls made by the import are not recorded.
    `backend` replaces the backend `"buddy"` of functions that `torch.compile` returned before the block.
    """
    _listeners.append(_Listener(on_graph, pause, backend))
    try:
        yield
    finally:
        _listeners.pop()


def is_recording() -> bool:
    """True if a listener is active: the script then runs in eager, and nothing is compiled."""
    return bool(_listeners)


def replacement_backend() -> DynamoBackend | None:
    """Returns the backend with which the active listener replaces `"buddy"`, or None."""
    return _listeners[-1].backend if _listeners else None


def notify_listener(graph: CapturedGraph) -> None:
    """Calls the active listener, if any, with an imported graph."""
    if _listeners:
        _listeners[-1].on_graph(graph)


def pause_listener() -> AbstractContextManager[None]:
    """Returns the context in which the active listener records no calls; without a listener, it does nothing."""
    return _listeners[-1].pause() if _listeners else nullcontext()


class _FunctionModule(torch.nn.Module):
    """A function as a module, as `torch.export` requires."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: object, **kwargs: object) -> object:
        return self._function(*args, **kwargs)


def record_export(
    function: Callable[..., object],
    args: Sequence[torch.Tensor],
    kwargs: Mapping[str, object],
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]],
    recorder: GraphRecorder,
    dynamic_shapes: DynamicShapes = None,
) -> None:
    """Records the graph of `function(*args, **kwargs)`, without gradients.

    Parameters, buffers and constants come first, then the arguments in the order that `function` declares them.
    `dynamic_shapes` lists the symbolic sizes as for `torch.export.export`, with `torch.export.Dim`. Raises what
    `torch.export` raises, for example at a graph break.
    """
    module = function if isinstance(function, torch.nn.Module) else _FunctionModule(function)
    with torch.no_grad(), dispatch_like_eager():
        if isinstance(module, _FunctionModule) and dynamic_shapes is not None:
            dynamic_shapes = _wrap_dynamic_shapes(dynamic_shapes, len(args), kwargs)
        program = torch.export.export(module, tuple(args), dict(kwargs), strict=False, dynamic_shapes=dynamic_shapes)
        program = program.run_decompositions(dict(decompositions))
        specs = _drop_constants(program)
        arguments = iter(leaf for leaf in tree_leaves(program.example_inputs) if isinstance(leaf, torch.Tensor))
        tensors = [_input_tensor(program, spec, arguments) for spec in specs]
        origins = tuple(
            InputOrigin(str(spec.target or spec.arg.name), _is_state(spec), _is_state(spec) and is_zero(tensor))
            for spec, tensor in zip(specs, tensors, strict=True)
        )
        graph = program.graph_module
        remove_form_assertions(graph)
        unseeded = decompose_random(graph, decompositions)
        if unseeded is not None:
            origins, tensors = (*origins, InputOrigin("random_seed", is_state=False)), [*tensors, new_seed()]
        recorder.record(
            AtenGraph(graph, "inference", graph, origins, (None,) * len(origins), unseeded=unseeded), tensors
        )
        # Any tensors will do: `name_results` only compares them by identity with those in the value of the program.
        results = [torch.empty(0) for _ in range(program.call_spec.out_spec.num_leaves)]
        name_results([(recorder.graphs[-1:], results)], tree_unflatten(results, program.call_spec.out_spec))


def _wrap_dynamic_shapes(
    dynamic_shapes: Mapping[str, object] | Sequence[object], n_positional: int, kwargs: Mapping[str, object]
) -> DynamicShapes:
    """Converts the `dynamic_shapes` of a function to the form that `_FunctionModule.forward(*args, **kwargs)` needs.

    The first `n_positional` entries belong to positional arguments, the rest to `kwargs`, in order.
    """
    entries = list(dynamic_shapes.values()) if isinstance(dynamic_shapes, Mapping) else list(dynamic_shapes)
    wrapped = {"args": tuple(entries[:n_positional]), "kwargs": dict(zip(kwargs, entries[n_positional:], strict=False))}
    return {name: entry for name, entry in wrapped.items() if entry}


def _is_state(spec: InputSpec) -> bool:
    return spec.kind is not InputKind.USER_INPUT


def _drop_constants(program: torch.export.ExportedProgram) -> list[InputSpec]:
    """Removes inputs that are not tensors: `torch.export` made them constants. Returns the specs of other inputs."""
    tensor_specs = []
    for node, spec in zip(_placeholders(program.graph_module), program.graph_signature.input_specs, strict=True):
        if isinstance(spec.arg, TensorArgument):
            tensor_specs.append(spec)
        else:
            program.graph_module.graph.erase_node(node)
    program.graph_module.recompile()
    return tensor_specs


def _placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _input_tensor(
    program: torch.export.ExportedProgram, spec: InputSpec, arguments: Iterator[torch.Tensor]
) -> torch.Tensor:
    """Returns the tensor of an input: a parameter, buffer or constant of `program`, or the next of `arguments`."""
    if not _is_state(spec):
        return next(arguments)
    stored = program.state_dict.get(spec.target)
    return program.constants[spec.target] if stored is None else stored

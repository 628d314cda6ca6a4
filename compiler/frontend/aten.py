"""Lowers TorchDynamo graphs to ATen graphs by AOTAutograd.

The module has the table of all decompositions, the decompositions of `torch.ops.prims`, those that plug-ins register,
and edits of FX graphs before and after AOTAutograd. An `AtenGraph` records which inputs of the Dynamo graph it has.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from operator import getitem
from traceback import extract_tb
from typing import Any, Literal

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect
from torch.utils._python_dispatch import _disable_current_modes

import buddy.compiler.graph.operations  # noqa: F401  (defines the op classes)
from buddy.compiler.frontend import (
    chunked_losses,
    counted_sizes,
    eager_dispatch,
    formulas,
    fractional_pools,
    grid_sampling,
    joint_graphs,
    linear_algebra,
    memory_formats,
    quantisation,
    random_numbers,
    recurrent_layers,
    resampling,
    segment_gradients,
    symbolic_sizes,
)
from buddy.compiler.frontend.direct_gradients import DirectGradients
from buddy.compiler.frontend.gradient_memory import ForwardGraph, lend_saved_tensors, share_memory
from buddy.compiler.frontend.names import source_name
from buddy.compiler.frontend.strided_views import (
    Runner,
    copy_graph,
    fall_back_for_offsets,
    rebase_strided,
    required_offsets,
)
from buddy.compiler.graph import plugins
from buddy.compiler.graph.node import Op, default_ops_map
from buddy.compiler.protocol.environment import torch_warning
from buddy.compiler.runtime.buffers import Lend, WorkArena
from buddy.compiler.support.dynamo_internals import aot_autograd

_WITH_EFFECTS = torch.ops.higher_order.with_effects
_MAKE_TOKEN, _SINK_TOKENS = torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default
_ASSERT_FORM = torch.ops.aten._assert_tensor_metadata.default


def remove_form_assertions(module: GraphModule) -> None:
    """Removes assertions of the element type, device or layout of a tensor, which `torch.export` adds to programs.

    Tracing has checked these properties; inputs with other properties are traced again.
    """
    assertions = [node for node in module.graph.nodes if node.target is _ASSERT_FORM]
    for node in assertions:
        module.graph.erase_node(node)
    if assertions:
        module.recompile()


def remove_effect_tokens(module: GraphModule) -> None:
    """Replaces each `with_effects(token, op, …)` by a call of `op`, and removes the tokens that the graph makes.

    AOTAutograd orders ops with effects by tokens; graphs of this compiler keep the program's order anyway. The graph is
    unchanged if one of the nodes calls a subgraph instead of an op.
    """
    wrapped = [node for node in module.graph.nodes if node.target is _WITH_EFFECTS]
    if not all(isinstance(node.args[1], OpOverload) for node in wrapped):
        return
    for node in wrapped:
        _unwrap(module, node)
    for node in reversed(module.graph.nodes):
        if node.target is _SINK_TOKENS or (node.target is _MAKE_TOKEN and not node.users):
            module.graph.erase_node(node)
    if wrapped:
        module.recompile()


def _unwrap(module: GraphModule, node: Node) -> None:
    """Replaces one `with_effects` node, whose results are a token and the results of its op."""
    token, op, *arguments = node.args
    has_side_effect(op)  # registers the op, so that FX does not remove unused calls as dead code
    with module.graph.inserting_before(node):
        call = module.graph.call_function(op, tuple(arguments), dict(node.kwargs))
    _token, *values = node.meta["val"]
    returns_several = len(op._schema.returns) > 1
    call.meta = node.meta | {"val": tuple(values) if returns_several else next(iter(values), None)}
    for user in list(node.users):
        assert user.target is getitem
        index = user.args[1]  # 0 selects the token
        if index and returns_several:
            user.args = (call, index - 1)
            continue
        user.replace_all_uses_with(call if index else token)
        module.graph.erase_node(user)
    module.graph.erase_node(node)


def merge_dims(x: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Merges the dims `start` to `end`, both included; PyTorch's own implementation writes to memory."""
    return x.flatten(start, end).clone(memory_format=torch.contiguous_format)


def copy_strided(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Returns a copy with other strides; PyTorch's own implementation writes to memory."""
    destination = torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)
    return torch.ops.aten.copy.default(destination, x)


def normal(shape: Sequence[int], *, mean: float, std: float, **options: object) -> torch.Tensor:
    """Returns normally distributed numbers; `options` has the dtype, the device and the generator."""
    generator = options.pop("generator", None)
    return torch.ops.aten.normal_functional.default(torch.empty(shape, **options), mean, std, generator=generator)


def uniform(shape: Sequence[int], *, low: float, high: float, **options: object) -> torch.Tensor:
    """Returns uniform numbers in [`low`, `high`); `options` has the dtype, the device and the generator."""
    generator = options.pop("generator", None)
    return torch.ops.aten.uniform.default(torch.empty(shape, **options), low, high, generator=generator)


def prims_decompositions() -> dict[torch._ops.OpOverload, Callable[..., object]]:
    """Returns a decomposition of each op of `torch.ops.prims` that does not return a view."""
    prims = torch.ops.prims
    without_writes = {
        prims.collapse.default: merge_dims, prims.copy_strided.default: copy_strided, prims.normal.default: normal,
        prims.uniform.default: uniform,
    }  # fmt: skip
    return {op: op.impl_aten for op in _prims_ops() if not _returns_view(op)} | without_writes


def _prims_ops() -> list[torch._ops.OpOverload]:
    members = (getattr(torch.ops.prims, name) for name in dir(torch.ops.prims))
    defaults = [packet.default for packet in members if isinstance(packet, OpOverloadPacket)]
    return [op for op in defaults if getattr(op, "impl_aten", None) is not None]


def _returns_view(op: OpOverload) -> bool:
    return any(argument.alias_info is not None for argument in op._schema.arguments)


def use_aten_views(module: GraphModule) -> None:
    """Replaces each op of `torch.ops.prims` that returns a view by ATen's op: AOTAutograd functionalizes only these."""
    changed = False
    for node in module.graph.nodes:
        op: Any = node.target
        if isinstance(op, OpOverloadPacket) and op._qualified_op_name.startswith("prims::"):
            op = op.default
        if isinstance(op, OpOverload) and op.namespace == "prims" and _returns_view(op):
            node.target = op.impl_aten
            changed = True
    if changed:
        module.recompile()


@lru_cache(maxsize=1)
def load_plugins() -> None:
    """Loads the plug-ins of installed packages, once per process, with a warning for each that fails.

    Warns as well if this version of PyTorch was never tested.
    """
    untested = torch_warning(torch.__version__)
    if untested:
        warnings.warn(untested, stacklevel=3)
    for problem in plugins.plugin_problems(plugins.installed_plugins()):
        warnings.warn(str(problem), stacklevel=3)


def plugin_decompositions() -> dict[torch._ops.OpOverload, Callable[..., object]]:
    """Returns the decompositions that plug-ins have registered, by overload; skips ops that are not defined yet."""
    rules = ((_find_overload(target), rule) for target, rule in plugins.plugin_decompositions().items())
    return {overload: _guard_rule(overload, rule) for overload, rule in rules if overload is not None}


def _find_overload(target: str) -> torch._ops.OpOverload | None:
    """Returns the overload named `target`, or None; the namespace `aten` may be omitted, as in `add.Tensor`."""
    if target.count(".") == 2:
        namespace, name, overload = target.split(".")
    else:
        namespace, (name, _, overload) = "aten", target.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name, None), overload or "default", None)


def _guard_rule(overload: torch._ops.OpOverload, rule: Callable[..., object]) -> Callable[..., object]:
    """Returns a function that calls `rule`; if `rule` raises, it warns, and the op stays unchanged."""

    @wraps(rule)
    def decompose(*args: object, **kwargs: object) -> Any:
        try:
            return rule(*args, **kwargs)
        except Exception as error:
            frame = extract_tb(error.__traceback__)[-1]
            failure = f"raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
            warnings.warn(f"the decomposition of {overload} {_location_of(rule)} {failure}", stacklevel=2)
            return NotImplemented

    return decompose


def _location_of(rule: Callable[..., object]) -> str:
    """Returns "at FILE:LINE" for a function; for any other callable, such as a `partial`, its repr."""
    code = getattr(rule, "__code__", None)
    return f"at {code.co_filename}:{code.co_firstlineno}" if code else repr(rule)


GraphKind = Literal["inference", "forward", "backward"]
OpsMap = Mapping[str, type[Op]]

# Ops outside core ATen for which torch has decompositions; AOTAutograd generates the first two for batch norm in
# training.
_NON_CORE_OPS = [
    torch.ops.aten._native_batch_norm_legit_functional, torch.ops.aten._batch_norm_with_update_functional,
    torch.ops.aten.tril_indices, torch.ops.aten.triu_indices,
]  # fmt: skip


@dataclass(frozen=True)
class InputOrigin:
    """An input of a Dynamo graph: its name, and whether it is state (a parameter or buffer) of a module.

    `is_zero` says that it is state whose elements are integers, all 0 at capture, such as zero points of weights.
    """

    name: str
    is_state: bool
    is_zero: bool = False


@dataclass(frozen=True)
class AtenGraph:
    """An ATen graph, `module`, and the Dynamo graph `dynamo` that it comes from.

    `origins[i]` describes placeholder `i` of `module`; it is None if AOTAutograd added the placeholder, for a saved
    activation or a tangent. `input_of[i]` is the index of the Dynamo input that placeholder `i` is, if it is one. A
    piece of a graph has its number in `piece` (from 1; 0 for a whole graph), and the reason for the cut with its Python
    line in `cut_reason` and `cut_line`. A branch or body of control flow has its name in `body`. `autocast` is the
    dtype of the autocast context in which Dynamo captured the graph, because the graph's calls do not record it. If the
    last input of `module` is a seed, `unseeded` is the graph without the seed, with PyTorch's own random ops. `scratch`
    is the memory in which the compiled graph works, if other graphs use it too.
    """

    module: GraphModule
    kind: GraphKind
    dynamo: GraphModule
    origins: tuple[InputOrigin | None, ...]
    input_of: tuple[int | None, ...]
    piece: int = 0
    cut_reason: str = ""
    cut_line: str = ""
    autocast: torch.dtype | None = None
    body: str = ""
    unseeded: GraphModule | None = None
    scratch: WorkArena | None = None


CompileGraph = Callable[[AtenGraph], Runner]


def run_aot(
    module: GraphModule,
    inputs: Sequence[torch.Tensor],
    compile_graph: CompileGraph,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None = None,
    origins: Sequence[InputOrigin] | None = None,
    check: Callable[[GraphModule], None] | None = None,
    fallback_random: bool = False,
) -> Callable[..., Sequence[torch.Tensor]]:
    """Lowers a Dynamo graph to ATen, passes each ATen graph to `compile_graph`, and returns the callable for Dynamo.

    Without gradients there is one graph (`inference`); with them `forward` and `backward`. Input mutation becomes extra
    outputs that AOTAutograd writes back, so ATen graphs are functional. If `origins` is None, they are read from the
    graph, which is possible only while Dynamo compiles it. `check` is called with each graph that is not a backward
    graph, and may raise. A graph with random ops gets a seed as its last input, drawn at each call; with
    `fallback_random`, the random ops stay, and return the same numbers as in eager.
    """
    table = default_decompositions() if decompositions is None else decompositions
    use_aten_views(module)
    linear_algebra.keep_checks_of_errors()
    dynamo_origins = input_origins(module, inputs) if origins is None else origins
    compilation = _AotCompilation(module, len(inputs), compile_graph, table, dynamo_origins, check, fallback_random)
    backend = aot_autograd(
        fw_compiler=compilation.compiler_of("forward"),
        bw_compiler=compilation.compiler_of("backward"),
        inference_compiler=compilation.compiler_of("inference"),
        decompositions=dict(table),
        partition_fn=functools.partial(joint_graphs.partition, fallback_random),
    )
    # Otherwise an unused random op would be removed, so that later ones draw other numbers than eager; and the tokens
    # of ops with effects would be inputs.
    with (
        torch._inductor.config.patch(fallback_random=True),
        eager_dispatch.dispatch_like_eager(),
        torch._functorch.config.patch(unlift_effect_tokens=True),
    ):
        compiled = backend(module, inputs)
    return compilation.fastest_call(compiled)


class _AotCompilation:
    """Compiles the ATen graphs of one Dynamo graph, `dynamo`; `table` has the decompositions. See `run_aot`.

    AOTAutograd may compile the backward graph at a later call.
    """

    def __init__(
        self,
        dynamo: GraphModule,
        n_inputs: int,
        compile_graph: CompileGraph,
        table: Mapping[torch._ops.OpOverload, Callable[..., object]],
        origins: Sequence[InputOrigin],
        check: Callable[[GraphModule], None] | None,
        fallback_random: bool,
    ) -> None:
        self._dynamo, self._n_inputs, self._compile_graph, self._table = dynamo, n_inputs, compile_graph, table
        self._origins, self._check, self._fallback_random = origins, check, fallback_random
        self._autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        # The forward graph does not run while the backward graph does, so both work in the same memory.
        self._scratch = WorkArena()
        self._forward: ForwardGraph | None = None
        self._gradients = DirectGradients()
        # The function that calls the inference graph directly, if there is one.
        self._direct_call: Callable[..., Any] | None = None

    def compiler_of(self, kind: GraphKind) -> Callable[[GraphModule, object], Runner]:
        """Returns the function that AOTAutograd calls to compile graphs of `kind`."""
        # Imported here: the import takes long, and a program whose graph is known from earlier is not captured.
        from torch._functorch.aot_autograd import make_boxed_func

        def compile_one(aten: GraphModule, _: object) -> Runner:
            run, lend = self._compile(aten, kind)
            return make_boxed_func(run) if lend is None else lend_saved_tensors(run, lend)

        return compile_one

    def _compile(self, aten: GraphModule, kind: GraphKind) -> tuple[Runner, Lend | None]:
        """Compiles a graph; returns its callable, and for a backward graph the function that lends saved tensors."""
        if self._check is not None and kind != "backward":
            self._check(aten)
        remove_effect_tokens(aten)
        remove_form_assertions(aten)
        counted_sizes.keep_numbers_in_tensors(aten)
        symbolic_sizes.compute_floats_as_tensors(aten)
        offsets = required_offsets(aten)
        # Inputs at other storage offsets run in eager, in the graph as it is before `rebase_strided`.
        graph_in_eager = copy_graph(aten) if offsets else aten
        rebase_strided(aten)
        unseeded = self._decompose_random(aten, kind)
        if kind == "forward":
            _allow_retained_graphs()
        aten_graph = _make_aten_graph(aten, kind, self._dynamo, self._origins)
        scratch = None if kind == "inference" else self._scratch
        run = self._compile_graph(replace(aten_graph, autocast=self._autocast, unseeded=unseeded, scratch=scratch))
        if not (unseeded or offsets or self._autocast):
            self._use_native_calls(aten_graph, run)
        if kind == "forward" and self._forward is None:
            self._forward = ForwardGraph(run, aten)
        elif kind == "backward" and self._forward is not None:
            share_memory(self._forward, run, aten, self._scratch)
        lend = getattr(run, "lend", None) if kind == "backward" else None
        run = random_numbers.with_seed(run) if unseeded else run
        run = fall_back_for_offsets(run, graph_in_eager, offsets) if offsets else run
        return run, lend

    def _decompose_random(self, aten: GraphModule, kind: GraphKind) -> GraphModule | None:
        """Replaces random ops by bits from a seed, unless `fallback_random`.

        Returns a copy of the original graph, or None if the graph needs no seed as input.
        """
        if self._fallback_random:
            return None
        unseeded = random_numbers.decompose_random(aten, self._table)
        if kind == "inference":
            random_numbers.decompose_random_in_bodies(aten, self._table)
        return unseeded

    def _use_native_calls(self, aten: AtenGraph, run: Runner) -> None:
        """Makes calls skip AOTAutograd's wrapper if it would only pass them on to `run`."""
        native_graph = getattr(run, "native_graph", lambda: None)
        if aten.kind == "backward":
            self._gradients.add_backward(native_graph(), aten.module)
            return
        metadata = _metadata_of_simple_calls(aten)
        if metadata is None:
            return
        if aten.kind == "forward":
            # Inputs that are passed twice are one input of the graph.
            if aten.input_of == tuple(range(self._n_inputs)):
                self._gradients.add_forward(native_graph(), aten.module, metadata)
        elif len(metadata.output_info) == len(aten.module.graph.output_node().args[0]):
            direct_call = getattr(run, "direct_call", lambda _: None)(aten.input_of)
            self._direct_call = self._direct_call or direct_call

    def fastest_call(self, compiled: Runner) -> Runner:
        """Returns the direct call of the graph if there is one, else `compiled`, AOTAutograd's function."""
        return self._direct_call or self._gradients.calls(compiled)


def _allow_retained_graphs() -> None:
    """Makes AOTAutograd's function accept a backward pass that retains the graph.

    By its metadata, backward graphs may write to saved tensors in any pass. Ours do not if the graph is retained.
    """
    metadata = _tracing_metadata()
    if getattr(metadata, "bw_donated_idxs", None):
        metadata.bw_donated_idxs = []


def _tracing_metadata() -> Any:
    """Returns AOTAutograd's metadata of the graph that is being compiled, or `None`."""
    context = torch._guards.TracingContext.try_get()
    return None if context is None else context.fw_metadata


def _metadata_of_simple_calls(aten: AtenGraph) -> Any:
    """Returns AOTAutograd's metadata of a graph that is not a backward graph, or `None` if its wrapper changes tensors.

    Such a wrapper writes to inputs, makes views, or assembles tensor subclasses from plain tensors. Any other wrapper
    passes the inputs of the Dynamo graph to compiled code, and returns the results of compiled code, unchanged.
    """
    metadata = _tracing_metadata()
    if metadata is None or None in aten.input_of:
        return None
    inputs = [node.meta.get("val") for node in _placeholders(aten.module)]
    # Versions of PyTorch differ in these attributes. An attribute that is missing counts as a change.
    names = ("mutated_inp_runtime_indices", "num_outputs_aliased", "num_intermediate_bases", "tokens")
    changes = [getattr(metadata, name, True) for name in (*names, "is_rng_op_functionalized")]
    changes.append(getattr(metadata, "act_input_indices", ()))
    is_simple = (
        not any(changes)
        and getattr(metadata, "grad_enabled_mutation", True) is None
        and all(isinstance(value, torch.Tensor) for value in inputs)
    )
    return metadata if is_simple else None


def input_origins(module: GraphModule, inputs: Sequence[torch.Tensor]) -> list[InputOrigin]:
    """Returns the origin of each input of a Dynamo graph."""
    return [_input_origin(node, value) for node, value in zip(_placeholders(module), inputs, strict=True)]


def default_decompositions(ops_map: OpsMap | None = None) -> dict[torch._ops.OpOverload, Callable[..., object]]:
    """Returns torch's core ATen decompositions and those of this package, except for ops that have an op class.

    Decompositions that plug-ins register have priority over all of these.
    """
    op_classes = default_ops_map() if ops_map is None else ops_map
    rules = {op: rule for op, (key, rule) in _keyed_decompositions().items() if key not in op_classes}
    conditional: dict[Any, Callable[..., Any]] = {}
    for module in (counted_sizes, memory_formats, formulas, segment_gradients):
        conditional |= module.CONDITIONAL_DECOMPOSITIONS
    return rules | conditional | plugin_decompositions()


@lru_cache(maxsize=1)
def _keyed_decompositions() -> dict[torch._ops.OpOverload, tuple[str, Callable[..., object]]]:
    """Returns every decomposition with its op's key.

    Cached, because torch takes 60 ms to build its own table, and each graph needs it.
    """
    table = prims_decompositions() | dict(torch._decomp.core_aten_decompositions().items())
    table |= torch._decomp.get_decompositions([*_NON_CORE_OPS, *formulas.FROM_TORCH])
    for module in (
        formulas, random_numbers, memory_formats, quantisation, recurrent_layers, resampling, linear_algebra,
        counted_sizes, grid_sampling, segment_gradients, fractional_pools, chunked_losses,
    ):  # fmt: skip
        table |= module.DECOMPOSITIONS
    return {op: (target_key(op), rule) for op, rule in table.items()}


def without_inductor_rules(
    table: Mapping[torch._ops.OpOverload, Callable[..., object]], ops_map: OpsMap
) -> dict[torch._ops.OpOverload, Callable[..., object]]:
    """Removes Inductor's rules for ops that have an op class from a script's table; adds the plug-ins' decompositions.

    Scripts may pass Inductor's table. Some of its rules produce ops that only Inductor lowers.
    """
    inductor = "torch._inductor.decomposition"
    kept = {
        op: rule
        for op, rule in table.items()
        if getattr(rule, "__module__", "") != inductor or target_key(op) not in ops_map
    }
    return kept | plugin_decompositions()


def target_key(target: Callable[..., object] | str) -> str:
    """Returns the key of an FX target in the ops map.

    It is `add.Tensor` for `aten.add.Tensor`, and `getitem` for `operator.getitem`. A prims name keeps its namespace if
    ATen has the same name with another meaning.
    """
    text = str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))
    if text.startswith("aten."):
        return text.removeprefix("aten.")
    short = text.removeprefix("prims.")
    return text if hasattr(torch.ops.aten, short.split(".")[0]) and short != text else short


def _placeholders(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _input_origin(node: Node, value: object) -> InputOrigin:
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    if source is None:
        return InputOrigin(node.name, isinstance(value, torch.nn.Parameter))
    is_state = isinstance(value, torch.nn.Parameter) or source.guard_source.is_unspecialized_nn_module()
    return InputOrigin(source_name(source.name), is_state, is_state and is_zero(_real_value(argument)))


def _real_value(argument: Any) -> Any:
    """Returns the tensor of a Dynamo input, whose value in the graph is fake; `None` once Dynamo has released it."""
    try:
        return argument.example
    except AssertionError:
        return None


# Larger tensors are weights, not zero points, and are not read.
_MAX_ZERO_POINTS = 1 << 16


def is_zero(value: Any) -> bool:
    """True if `value` is a small tensor of integers in memory that are all 0."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or value.dtype not in _INTEGERS:
        return False
    is_plain = value.device.type == "cpu" and value.layout == torch.strided
    if not is_plain or not 0 < value.numel() <= _MAX_ZERO_POINTS:
        return False
    with _disable_current_modes():  # Dynamo captures under a mode that rejects tensors with memory
        return not bool(value.any())


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def _origin_of(description: Any, origins: Sequence[InputOrigin]) -> InputOrigin | None:
    """Returns the origin of an input of an ATen graph, which may be a component of a tensor subclass, as in torchao."""
    index = description_index(description, "PlainAOTInput")
    if index is not None:
        return origins[index]
    if type(description).__name__ != "SubclassGetAttrAOTInput":
        return None
    outer = _origin_of(description.base, origins)
    return None if outer is None else InputOrigin(f"{outer.name}.{description.attr}", outer.is_state)


def _make_aten_graph(
    aten: GraphModule, kind: GraphKind, dynamo: GraphModule, origins: Sequence[InputOrigin]
) -> AtenGraph:
    input_of = tuple(description_index(node.meta.get("desc"), "PlainAOTInput") for node in _placeholders(aten))
    placeholder_origins = tuple(_origin_of(node.meta.get("desc"), origins) for node in _placeholders(aten))
    return AtenGraph(aten, kind, dynamo, placeholder_origins, input_of)


def description_index(description: Any, class_name: str) -> int | None:
    """Returns the `idx` of an AOTAutograd input or output description of the class `class_name`, else None."""
    return description.idx if type(description).__name__ == class_name else None

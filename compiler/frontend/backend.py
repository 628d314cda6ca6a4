"""The `torch.compile` backend: compiles graphs and runs them in the caller's process."""

from __future__ import annotations

import copy
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from buddy.compiler.frontend.aten import AtenGraph, Runner, default_decompositions, load_plugins, run_aot
from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.frontend.capture import replacement_backend
from buddy.compiler.frontend.compiled_graph import CompiledGraph, CompilerOverrides, raise_error
from buddy.compiler.frontend.convert import Conversion
from buddy.compiler.frontend.errors import FallbackError, OptionError, UnsupportedGraphError
from buddy.compiler.frontend.graph_splitter import GraphCut, SplitGraph, cut_around
from buddy.compiler.frontend.quantisation import OF_CONSTANT_WEIGHTS
from buddy.compiler.frontend.quantisation.tensors import check_quantised
from buddy.compiler.frontend.rejections import (
    SuspectedError,
    SuspectedGraph,
    check_graph,
    check_inputs,
    with_eager_errors,
    with_form_checks,
)
from buddy.compiler.frontend.results import GraphResults, convert_with_view_bases
from buddy.compiler.frontend.summary import (
    Counting,
    count_eager,
    counting_graph,
    restart_count,
)
from buddy.compiler.frontend.verify import VerifiedGraph
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operations import Conv2dOp
from buddy.compiler.graph.sizes import is_dynamic
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.runtime import packed_weights
from buddy.compiler.support.dynamo_internals import TorchDynamoException

# Maximum number of cached versions per dynamic graph. The least recently used one is evicted, and recompiled if its
# sizes occur again.
MAX_SPECIALISATIONS = 64
# Errors for the caller, and exceptions that control TorchDynamo: they never make a graph fall back to eager.
_PROPAGATED = (OptionError, FallbackError, TorchDynamoException)
_log = logging.getLogger("buddy.frontend")


def buddy_backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
    compile_graph: Callable[[AtenGraph, BackendSettings], Runner] | None = None,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None = None,
    on_static_graph: Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], None] | None = None,
    propagate_errors: bool = False,
    **_: object,
) -> Runner:
    """Compiles a Dynamo graph; PyTorch finds this backend as "buddy".

    Example: `torch.compile(f, backend="buddy", options={"fallback": "error"})`.

    `options` and `mode` are parsed by `BackendSettings.of`, which raises `ValueError` for invalid ones. `compile_graph`
    replaces `compile_aten`, and `decompositions` replaces the default ones. `on_static_graph` is called with each
    Dynamo graph of static sizes before it is compiled, with its real inputs. With `fallback="eager"`, a graph runs in
    eager if its compilation raises; exceptions propagate if `compile_graph` is given or `propagate_errors` is true.
    `OptionError`, `FallbackError` and TorchDynamo's own exceptions always propagate.
    """
    load_plugins()
    replacement = replacement_backend()
    if replacement is not None:
        return replacement(module, inputs)
    settings = BackendSettings.of(options, mode)
    compiler = _DynamoGraphCompiler(settings, compile_graph, decompositions, on_static_graph, propagate_errors)
    with counting_graph(settings.summary and compile_graph is None and on_static_graph is None) as counting:
        return compiler.compile(module, inputs, counting)


class _DynamoGraphCompiler:
    """Compiles Dynamo graphs; the arguments are those of `buddy_backend`."""

    def __init__(
        self,
        settings: BackendSettings,
        compile_graph: Callable[[AtenGraph, BackendSettings], Runner] | None,
        decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None,
        on_static_graph: Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], None] | None,
        propagate_errors: bool,
    ) -> None:
        self._settings, self._decompositions, self._on_static_graph = settings, decompositions, on_static_graph
        self._may_fall_back = compile_graph is None and settings.fallback == "eager" and not propagate_errors
        self._compile_aten = compile_graph or (compile_or_fall_back if self._may_fall_back else compile_aten)
        self._needs_static_sizes = compile_graph is not None or on_static_graph is not None

    def compile(self, module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], counting: Counting) -> Runner:
        """Compiles a Dynamo graph. `counting` makes the context for versions that are compiled at later calls."""
        try:
            check_inputs(module, inputs)
            check_quantised(module)
        except UnsupportedGraphError as rejection:
            if self._settings.fallback == "error":
                raise
            return _fall_back(module, rejection).forward
        if not _is_dynamic(module):
            return self._make_or_fall_back(module, lambda: self._compile_static(module, inputs))

        def compile_version(static: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> Runner:
            with counting():
                return self._make_or_fall_back(static, lambda: self._compile_static(static, tensors))

        specialised: Runner = torch._dynamo.disable(
            SpecialisedGraph(module, compile_version), reason="compiled code is not traced"
        )
        if self._needs_static_sizes:
            return specialised

        def compile_dynamic() -> Runner:
            compiled = compile_for_all_sizes(module, inputs, self._settings, self._decompositions, self._may_fall_back)
            return compiled or specialised

        return self._make_or_fall_back(module, compile_dynamic)

    def _make_or_fall_back(self, graph: torch.fx.GraphModule, make: Callable[[], Runner]) -> Runner:
        """Returns the result of `make`, or `graph` itself, for eager, if `make` raises and fallback is allowed."""
        try:
            return make()
        except _PROPAGATED:
            raise
        except Exception as error:
            if not self._may_fall_back:
                raise
            return _fall_back(graph, error).forward

    def _compile_static(self, static: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> Runner:
        """Compiles a Dynamo graph of static sizes, with its real inputs `tensors`."""
        if self._on_static_graph is not None:
            self._on_static_graph(static, tensors)
        table = default_decompositions() if self._decompositions is None else self._decompositions
        if not self._settings.freeze:
            table = {op: rule for op, rule in table.items() if op not in OF_CONSTANT_WEIGHTS}
        try:
            return self._trace(static, tensors, with_form_checks(table), check_graph)
        except SuspectedError:
            pass
        # Compile now rather than at the call: Dynamo knows the values in constant tensors only while it compiles.
        try:
            compiled = self._trace(static, tensors, table)
        except (OptionError, TorchDynamoException):
            raise
        except Exception as error:
            failure = error
            return SuspectedGraph(static, lambda: self._make_or_fall_back(static, partial(raise_error, failure)))
        return SuspectedGraph(static, lambda: compiled)

    def _trace(
        self,
        static: torch.fx.GraphModule,
        tensors: Sequence[torch.Tensor],
        table: Mapping[torch._ops.OpOverload, Callable[..., object]],
        check: Callable[[torch.fx.GraphModule], None] | None = None,
    ) -> Runner:
        """Lowers a graph to ATen by the decompositions `table`, and compiles it; `check` is that of `run_aot`."""
        restart_count()
        compiled = run_aot(
            static, tensors, lambda aten: self._compile_aten(aten, self._settings), table, check=check,
            fallback_random=self._settings.fallback_random,
        )  # fmt: skip
        return with_eager_errors(static, compiled)


def restore_weights() -> None:
    """Gives the modules their weights back that `options={"freeze": "release"}` has released.

    Call it before eager code reads such weights, for example to save them. They then take memory again.
    """
    packed_weights.restore_all()


def compile_aten(aten: AtenGraph, settings: BackendSettings, overrides: CompilerOverrides | None = None) -> Runner:
    """Compiles an ATen graph; unsupported parts run in eager with a warning.

    With `fallback="error"`, raises `UnsupportedGraphError`, `FallbackError` or `CompilationError` for these parts.
    """
    from buddy.compiler.driver.diagnosis import CompilationError

    overrides = overrides or CompilerOverrides()

    def compile_or_raise(piece: AtenGraph) -> Runner:
        return _compile_conversion(convert_with_view_bases(piece, overrides.ops_map), settings, piece, overrides)

    def compile_or_warn(piece: AtenGraph) -> Runner:
        try:
            return compile_or_raise(piece)
        except CompilationError as error:
            warnings.warn(f"a graph of {len(piece.module.graph.nodes)} nodes runs in eager: {error}", stacklevel=2)
            count_eager(piece, piece.module.graph.nodes)
            return piece.module

    compile_piece = compile_or_raise if settings.fallback == "error" else compile_or_warn
    try:
        return compile_piece(aten)
    except UnsupportedGraphError as error:
        cut = cut_around(aten, error, lambda piece: GraphResults(convert_with_view_bases(piece, overrides.ops_map)))
        compile_body = partial(compile_aten, settings=settings, overrides=overrides)
        return _compile_pieces(cut, compile_piece, compile_body, error if settings.fallback == "error" else None)


def compile_or_fall_back(aten: AtenGraph, settings: BackendSettings) -> Runner:
    """Like `compile_aten`, but falls back to eager on any exception except those of `_PROPAGATED`."""
    try:
        return compile_aten(aten, settings)
    except _PROPAGATED:
        raise
    except Exception as error:
        return _fall_back(aten.module, error, aten)


def _fall_back(module: torch.fx.GraphModule, error: Exception, aten: AtenGraph | None = None) -> torch.fx.GraphModule:
    """Returns `module` itself, after a warning with the reason why it is not compiled; the traceback is logged.

    `module` is a Dynamo graph, or `aten.module`.
    """
    count_eager(aten, module.graph.nodes)
    reason = str(error).strip().partition("\n")[0]
    reason = reason if isinstance(error, UnsupportedGraphError) else f"{type(error).__name__}: {reason}"
    warnings.warn(f"a graph of {len(module.graph.nodes)} nodes runs in eager: {reason}", stacklevel=3)
    _log.debug("a graph falls back to eager", exc_info=error)
    return module


def _compile_pieces(
    cut: GraphCut, compile_piece: Callable[[AtenGraph], Runner], compile_body: Callable[[AtenGraph], Runner],
    rejection: UnsupportedGraphError | None,
) -> Runner:  # fmt: skip
    """Compiles a cut graph. If nodes would run in eager, raises `rejection`, or warns if `rejection` is None."""
    if cut.in_eager:
        if rejection is not None:
            raise rejection
        warnings.warn(str(cut), stacklevel=3)
        if not cut.compiled:
            count_eager(cut.aten, cut.aten.module.graph.nodes)
        else:
            in_eager = [node for node in cut.aten.module.graph.nodes if node.name in cut.in_eager]
            count_eager(cut.aten, in_eager, between=True)
    return SplitGraph(cut, compile_piece, compile_body) if cut.compiled or not cut.in_eager else cut.aten.module


def _compile_conversion(
    conversion: Conversion, settings: BackendSettings, aten: AtenGraph, overrides: CompilerOverrides | None = None
) -> Runner:
    """Compiles a converted graph; with the option `verify`, its calls are compared with eager."""
    compiled = CompiledGraph(conversion, settings, aten, overrides)
    if settings.verify == "off":
        return compiled
    lowerings = overrides.lowerings if overrides else None
    return VerifiedGraph(compiled, aten, compiled.recipe, settings.verify, lowerings, compiled.precisions)


# ---- sizes that change from call to call -----------------------------------------------------------------------------


def compile_for_all_sizes(
    module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], settings: BackendSettings,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None, may_fall_back: bool = False,
) -> Runner | None:  # fmt: skip
    """Compiles a Dynamo graph with symbolic sizes once; returns `None` if some part of it needs static sizes.

    With `fallback="error"`, also returns `None` if an op would run in eager: it may be supported for static sizes. With
    `may_fall_back`, a backward graph whose compilation raises runs in eager.
    """
    from buddy.compiler.driver.diagnosis import CompilationError

    def compile_one(aten: AtenGraph) -> Runner:
        if aten.kind == "backward":
            # It is too late to compile for static sizes: the forward graph is compiled already.
            return (compile_or_fall_back if may_fall_back else compile_aten)(aten, settings)
        try:
            return compile_piece(aten)
        except UnsupportedGraphError as error:
            cut = cut_around(aten, error, lambda piece: GraphResults(convert_with_view_bases(piece)))
            # Graphs with data-dependent sizes cannot be traced again for each set of sizes.
            allows_eager = cut.reads_numbers and settings.fallback == "eager"
            return _compile_pieces(cut, compile_piece, compile_one, None if allows_eager else error)

    def compile_piece(aten: AtenGraph) -> Runner:
        conversion = convert_with_view_bases(aten)
        _check_images(conversion.graph)
        return _compile_conversion(conversion, settings, aten)

    try:
        random = settings.fallback_random
        return with_eager_errors(module, run_aot(module, inputs, compile_one, decompositions, fallback_random=random))
    except (UnsupportedGraphError, CompilationError, FallbackError) as error:
        warnings.warn(f"compiled again for each set of sizes: {error}", stacklevel=2)
        return None


def _check_images(graph: Graph) -> None:
    """Raises `UnsupportedGraphError` for a convolution over an image of symbolic size.

    The convolution kernels need static image sizes (the batch size may be symbolic); without these kernels a
    convolution takes about forty times as long.
    """
    for op in graph.operations:
        if isinstance(op, Conv2dOp) and is_dynamic(op.args[0].tensor_meta.shape[2:]):
            raise UnsupportedGraphError(
                Diagnostic(f"{op.stable or op.name} slides over images of a size known only at the call")
            )


class SpecialisedGraph:
    """A Dynamo graph with symbolic sizes, compiled for each set of sizes it is called with."""

    def __init__(self, module: torch.fx.GraphModule, compile_static: Callable[..., Runner]) -> None:
        self._module = module
        self._compile = compile_static
        self._floats = _positions_of_floats(module)
        self._versions: OrderedDict[object, Runner] = OrderedDict()

    def __call__(self, *args: Any) -> Sequence[torch.Tensor]:
        if self._floats:
            args = tuple(value.item() if index in self._floats else value for index, value in enumerate(args))
        key = (torch.is_grad_enabled(), *map(_version_key, args))
        if key not in self._versions:
            self._versions[key] = self._compile(*_specialise(self._module, args))
            if len(self._versions) > MAX_SPECIALISATIONS:
                self._versions.popitem(last=False)
        self._versions.move_to_end(key)
        return self._versions[key](*[value for value in args if isinstance(value, torch.Tensor)])


def _is_dynamic(module: torch.fx.GraphModule) -> bool:
    return any(_has_symbols(n.meta.get("example_value")) for n in module.graph.nodes if n.op == "placeholder")


def _has_symbols(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _positions_of_floats(module: torch.fx.GraphModule) -> frozenset[int]:
    """Returns the positions of the inputs that are Python floats.

    Dynamo passes each of them as a tensor of rank 0, which only `item` reads.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset(
        index for index, node in enumerate(placeholders) if node.users and all(map(_reads_float, node.users))
    )


def _reads_float(node: torch.fx.Node) -> bool:
    """True if `node` reads a Python float out of the tensor as which Dynamo passes it."""
    return (node.op, node.target) == ("call_method", "item") and isinstance(
        node.meta.get("example_value"), torch.SymFloat
    )


def _version_key(value: torch.Tensor | float) -> object:
    """Returns the properties of an argument for which a version is compiled; for a number, the number."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    return value


def _specialise(
    module: torch.fx.GraphModule, args: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Returns a copy of the graph with the numbers of `args` as constants, and the tensors of `args` to pass to it."""
    static = copy.deepcopy(module)
    placeholders = [node for node in static.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, args, strict=True):
        if not isinstance(value, torch.Tensor):
            reads = list(node.users) if isinstance(value, float) and all(map(_reads_float, node.users)) else []
            for number in (*reads, node):
                number.replace_all_uses_with(value)
                static.graph.erase_node(number)
    static.recompile()
    return static, [value for value in args if isinstance(value, torch.Tensor)]

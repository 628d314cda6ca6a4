"""`DynamoCompiler`: the interface of scripts written for Buddy-MLIR's frontend, and the graphs it imports."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from buddy.compiler.frontend.aten import AtenGraph, Runner, default_decompositions, load_plugins, without_inductor_rules
from buddy.compiler.frontend.backend import buddy_backend, compile_aten
from buddy.compiler.frontend.backend_settings import BackendSettings as BackendSettings
from buddy.compiler.frontend.capture import (
    GraphRecorder,
    callable_name,
    capture,
    is_recording,
    notify_listener,
    pause_listener,
    record_export,
    record_inference,
)
from buddy.compiler.frontend.compiled_graph import CompilerOverrides
from buddy.compiler.frontend.eager_program import Trace
from buddy.compiler.frontend.random_numbers import new_seed
from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph, GraphSettings
from buddy.compiler.graph.node import Op, default_ops_map
from buddy.compiler.graph.types import GraphError
from buddy.compiler.protocol.presets import default_recipe, without_packing
from buddy.compiler.runtime.captured import CapturedGraph

if TYPE_CHECKING:
    from buddy.compiler.frontend.capture import DynamicShapes
    from buddy.compiler.mlir.bindings import ir
    from buddy.compiler.ops.utils import Registry


# Runs a graph: takes the tensors of all its placeholders, and returns its results.
Program = Callable[[Sequence[torch.Tensor]], list[Any]]


class ImportedGraph:
    """An imported graph: its placeholders are parameters, buffers and constants, then inputs.

    Inputs are in the order of `arguments`, the names that `argument_order` returns.
    Tensors are associated with placeholders, not with positions, so a script may delete or move placeholders.
    """

    def __init__(self, captured: CapturedGraph, arguments: Sequence[str] = ()) -> None:
        self.graph: Graph = captured.graph
        assert captured.eager is not None, "eager PyTorch can run every graph that TorchDynamo captures"
        self._eager = captured.eager
        self._captured_placeholders = list[Op](self.graph.placeholders)
        self._tensors = dict(zip(self._captured_placeholders, captured.tensors, strict=True))
        self._seed = None if captured.seed is None else self._captured_placeholders[captured.seed]
        parameters = {self._captured_placeholders[position] for position in captured.parameters}
        call_positions = {op: _call_position(op, arguments) for op in self.graph.inputs}
        # Parameters come first (0), then buffers and constants (1), inputs (2), and all other nodes (3).
        sort_keys = {
            op: (2, *call_positions[op]) if op in call_positions else (int(op not in parameters),)
            for op in self._captured_placeholders
        }
        self.graph.body = sorted(self.graph.body, key=lambda op: sort_keys.get(op, (3,)))

    def state(self) -> list[torch.Tensor]:
        """Returns the tensors of `graph.params`, in order.

        Raises `GraphError` for a parameter that a script has added, since its value is unknown.
        """
        for op in self.graph.params:
            if op not in self._tensors:
                raise GraphError(
                    f"unknown value of {op.name} · graph {self.graph.name}, a parameter that was not "
                    "captured · run graph.compile() and pass all tensors yourself"
                )
        return [self._tensors[op] for op in self.graph.params]

    def all_tensors(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the tensors of all placeholders, in order.

        `arguments` are the inputs, or the tensors of `state()` and then the inputs. A missing seed of random numbers is
        drawn from PyTorch's default generator. Raises `ValueError` for any other number of tensors.
        """
        n_inputs, n_placeholders = len(self.graph.inputs), len(self.graph.placeholders)
        if self._seed in self.graph.inputs and len(arguments) in (n_inputs - 1, n_placeholders - 1):
            # The inputs are the last `n_inputs` tensors, once the seed is one of them.
            seed_position = len(arguments) + 1 - n_inputs + self.graph.inputs.index(self._seed)
            arguments = [*arguments[:seed_position], new_seed(), *arguments[seed_position:]]
        if len(arguments) not in (n_inputs, n_placeholders):
            raise ValueError(
                f"{len(arguments)} tensors were given; "
                f"the graph takes {n_inputs} inputs, or {n_placeholders} with its state"
            )
        tensors = arguments if len(arguments) == n_placeholders else [*self.state(), *arguments]
        tensor_by_op = dict(zip([*self.graph.params, *self.graph.inputs], tensors, strict=True))
        return [tensor_by_op[op] for op in self.graph.placeholders]

    def eager(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the captured graph in eager PyTorch; rewrites of the graph do not change its results."""
        tensor_by_op = self._tensors | dict(zip(list[Op](self.graph.placeholders), tensors, strict=True))
        return self._eager([tensor_by_op[op] for op in self._captured_placeholders])

    def compile(self, registry: Registry | None, trace: Trace) -> Program:
        """Compiles the graph in its current state; `registry` is a registry with priority over all others.

        Each call may pass other tensors, and the captured ones may be written to, so no weight is packed ahead.
        """
        from buddy.compiler.driver.compile_graph import compile_graph
        from buddy.compiler.runtime import LoadedProgram

        self.graph.check()
        traced = trace.add_to(self.graph)
        recipe = without_packing(default_recipe(dialect=self.graph.settings.dialect))
        program = LoadedProgram(compile_graph(traced, recipe, registry))
        return lambda tensors: trace.split_results(program(tensors))


def argument_order(
    function: Callable[..., object], args: Sequence[torch.Tensor], kwargs: Mapping[str, object]
) -> tuple[str, ...]:
    """Returns the parameters of `function` that a call's arguments are bound to, in the order of the call."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        bound = signature(called).bind_partial(*args).arguments
    except (TypeError, ValueError):
        return tuple(kwargs)
    return (*bound, *kwargs)


def _call_position(op: Op, arguments: Sequence[str]) -> tuple[int, ...]:
    """Returns the position of an input in the call: the number of its argument, then the indices within it.

    TorchDynamo orders inputs by their first use. Inputs that it does not attribute to an argument come last.
    """
    name, *path = op.stable.split(".")
    number = arguments.index(name) if name in arguments else len(arguments)
    return (number, *(int(part) for part in path if part.isdigit()))


class Params(Mapping[Graph, list[torch.Tensor]]):
    """The parameters and buffers of each imported graph in its current state."""

    def __init__(self, imported: Mapping[Graph, ImportedGraph]) -> None:
        self._imported = imported

    def __getitem__(self, graph: Graph) -> list[torch.Tensor]:
        return self._imported[graph].state()

    def __iter__(self) -> Iterator[Graph]:
        return iter(self._imported)

    def __len__(self) -> int:
        return len(self._imported)


Lowering = Callable[[Op, Any], Any]
Dialect = Literal["linalg", "tosa"]


class DynamoCompiler:
    """Imports models into Buddy graphs through TorchDynamo; also a backend for `torch.compile`.

    `primary_registry` maps op class names to lowerings that have priority over the TOSA registry and the others.
    `aot_autograd_decomposition` replaces the default decompositions. `verbose` prints every FX table, and at lowering
    each node with its MLIR, to the file `verbose_path` if given. `enable_external_calls` allows nodes to call functions
    of libraries, which a transform may request. With `capture_scalar_outputs`, a number that a program reads out of a
    tensor is captured too instead of causing a graph break; TorchDynamo keeps that setting for the whole process.
    `trace` names nodes whose values `dynamo_run` records; see `Trace`. Without `compile_backward`, `torch.compile` runs
    backward graphs in eager.
    """

    def __init__(
        self,
        func_name: str = "forward",
        primary_registry: Mapping[str, Lowering] | None = None,
        aot_autograd_decomposition: Mapping[torch._ops.OpOverload, Callable[..., object]] | None = None,
        verbose: bool = False,
        verbose_path: str | Path | None = None,
        enable_external_calls: bool = False,
        capture_scalar_outputs: bool = False,
        trace: Callable[..., object] | None = None,
        compile_backward: bool = True,
    ) -> None:
        self._func_name = func_name
        self.primary_registry = primary_registry
        self.aot_autograd_decomposition = aot_autograd_decomposition
        self.verbose = verbose
        self.trace = Trace.of(trace)
        self.compile_backward = compile_backward
        self._verbose_path = verbose_path
        self._enable_external_calls = enable_external_calls
        self._imported: dict[Graph, ImportedGraph] = {}
        self._arguments: tuple[str, ...] = ()
        if capture_scalar_outputs:
            torch._dynamo.config.capture_scalar_outputs = True

    # ---- imported graphs ---------------------------------------------------------------------------------------------

    @property
    def imported_graphs(self) -> list[Graph]:
        """Every graph imported so far, in order."""
        return list(self._imported)

    @property
    def imported_params(self) -> Params:
        """For each imported graph its parameters, then its buffers and constants: the tensors of `graph.params`."""
        return Params(self._imported)

    _imported_graphs, _imported_params = imported_graphs, imported_params

    @property
    def traced(self) -> dict[str, torch.Tensor]:
        """The values of the nodes that `trace` names, by tag, from the last call of the result of `dynamo_run`."""
        return self.trace.values

    # ---- importers ---------------------------------------------------------------------------------------------------

    def importer(self, model: Callable[..., object], *args: object, **kwargs: object) -> list[Graph]:
        """Returns the graphs of `model(*args, **kwargs)`, without gradients. Raises what `model` raises.

        The graphs' inputs are the arguments that `model` uses, in the order of this call.
        """
        n_before = len(self._imported)
        self._arguments = argument_order(model, args, kwargs)
        with pause_listener():
            capture(model, args, kwargs, recorder=self._recorder(callable_name(model)))
        return self.imported_graphs[n_before:]

    def importer_by_export(
        self, module: Callable[..., object], *args: object, dynamic_shapes: DynamicShapes = None, **kwargs: object
    ) -> list[Graph]:
        """Returns the graph of `module`, through `torch.export`; its arguments keep the order of their declaration.

        Sizes that `dynamic_shapes` marks with `torch.export.Dim` are symbolic: the compiled graph accepts any of them.
        """
        n_before, name = len(self._imported), callable_name(module)
        self._arguments = ()
        with pause_listener():
            record_export(module, args, kwargs, self._decompositions(), self._recorder(name), dynamic_shapes)
        return self.imported_graphs[n_before:]

    def dynamo_run(self) -> Callable[..., list[torch.Tensor]]:
        """Compiles the last imported graph in its current state.

        The returned function takes the inputs, or parameters, buffers and then inputs; it raises `ValueError` for
        another number of tensors. Raises `ValueError` if nothing has been imported, and `GraphError` if `trace` names a
        node that the graph does not have.
        """
        if not self._imported:
            raise ValueError("nothing has been imported yet: call importer(model, *inputs) first")
        imported = list(self._imported.values())[-1]
        program = imported.eager if is_recording() else imported.compile(self._user_registry(), self.trace)

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            return program(imported.all_tensors(tensors))

        return run

    # ---- backend for torch.compile -----------------------------------------------------------------------------------

    def __call__(
        self,
        module: torch.fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        *,
        options: Mapping[str, object] | None = None,
        **more: Any,
    ) -> Callable[..., Sequence[torch.Tensor]]:
        """Imports a graph and compiles it: `torch.compile(f, backend=DynamoCompiler())` calls this.

        A graph with symbolic sizes is imported and compiled for each set of sizes it is called with.
        """

        def record(static: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> None:
            record_inference(static, tensors, self._recorder(self._func_name))

        if is_recording():
            record(module, inputs)
            return module.forward
        overrides = CompilerOverrides(self._ops_map, self._user_registry())

        def compile_graph(aten: AtenGraph, settings: BackendSettings) -> Runner:
            if aten.kind == "backward" and not self.compile_backward:
                return aten.module
            return compile_aten(aten, settings, overrides)

        return buddy_backend(
            module,
            inputs,
            options={"dialect": self._dialect, **(options or {})},
            compile_graph=compile_graph,
            decompositions=self._decompositions(),
            on_static_graph=record,
            **more,
        )

    def _compile_fx(
        self,
        module: torch.fx.GraphModule,
        inputs: Sequence[torch.Tensor],
        return_type: Literal["eager", "buddy"] = "eager",
    ) -> Callable[..., Sequence[torch.Tensor]]:
        """Imports a graph from Dynamo, and runs it in eager, or compiled.

        Raises `ValueError` for another `return_type`.
        """
        if return_type not in ("eager", "buddy"):
            raise ValueError(f"return_type is {return_type!r}; it may be 'eager' or 'buddy'")
        return self(module, inputs) if return_type == "buddy" else self._recorder(self._func_name)(module, inputs)

    # ---- lowerings ---------------------------------------------------------------------------------------------------

    @cached_property
    def _ops_map(self) -> dict[str, type[Op]]:
        """The op class of each FX target, by name; a script may add entries, which apply to this compiler only."""
        load_plugins()
        return default_ops_map()

    @cached_property
    def _ops_registry(self) -> ChainMap[str, Lowering]:
        """Every lowering by op class name; a script may add entries, which have priority over all others."""
        from buddy.compiler.ops import registries
        from buddy.compiler.ops.func import ops_registry

        primary = [self.primary_registry] if self.primary_registry else []
        return ChainMap({}, *primary, *registries(self._dialect).values(), ops_registry)  # type: ignore[arg-type]

    @property
    def _dialect(self) -> Dialect:
        """The dialect to lower to: "linalg" if its registry is primary, else "tosa", which Buddy-MLIR tries first."""
        from buddy.compiler.ops import registries

        return "linalg" if self.primary_registry is registries()["linalg"] else "tosa"

    def _user_registry(self) -> Registry | None:
        """Returns the lowerings with priority over the registries of this package; None if there are none."""
        from buddy.compiler.ops import registries
        from buddy.compiler.ops.utils import Registry

        is_builtin = any(self.primary_registry is registry for registry in registries().values())
        lowerings = {**({} if is_builtin else self.primary_registry or {}), **self._ops_registry.maps[0]}
        return Registry(lowerings) if lowerings else None

    def _settings(self) -> GraphSettings:
        on_node = self._print_node if self.verbose else None
        return GraphSettings(self._dialect, self._user_registry, on_node, self._enable_external_calls)

    # ---- capture -----------------------------------------------------------------------------------------------------

    def _recorder(self, name: str) -> GraphRecorder:
        return GraphRecorder(name, self._func_name, self._ops_map, self._decompositions(), on_graph=self._add_import)

    def _decompositions(self) -> Mapping[torch._ops.OpOverload, Callable[..., object]]:
        table = self.aot_autograd_decomposition
        return default_decompositions(self._ops_map) if table is None else without_inductor_rules(table, self._ops_map)

    def _add_import(self, captured: CapturedGraph) -> None:
        """Adds a graph that was captured to the imported ones; notifies the listener, if one is active."""
        if self.verbose:
            self._print(captured.table)
        if is_recording():
            # The script may rewrite its graph, so listeners get a copy of the captured one.
            copied = serialization.from_bytes(serialization.to_bytes(captured.graph))
            notify_listener(replace(captured, graph=copied, user_lowerings=self._user_registry))
        imported = ImportedGraph(captured, self._arguments)
        imported.graph.settings = self._settings()
        self._imported[imported.graph] = imported

    # ---- verbose -----------------------------------------------------------------------------------------------------

    def _print_node(self, node: Op, ops: Sequence[ir.Operation]) -> None:
        # The function is not complete yet, and would be printed in generic form otherwise.
        texts = (op.operation.get_asm(assume_verified=True).replace("\n", "\n    ") for op in ops)
        self._print("\n".join([repr(node), *(f"    {text}" for text in texts)]) + "\n")

    def _print(self, text: str) -> None:
        """Prints `text`, or appends it to the file `verbose_path`."""
        if self._verbose_path is None:
            print(text, end="")
            return
        path = Path(self._verbose_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)


class TorchCompileBackend:
    """A backend for `torch.compile` around a `DynamoCompiler`, which keeps only the last compiled graph."""

    def __init__(self, compiler: DynamoCompiler) -> None:
        self._compiler = compiler

    def __call__(
        self, module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], **options: Any
    ) -> Callable[..., Sequence[torch.Tensor]]:
        self._compiler._imported.clear()
        return self._compiler(module, inputs, **options)


def make_default_torch_backend() -> TorchCompileBackend:
    """Returns a backend for `torch.compile` with default settings."""
    return TorchCompileBackend(DynamoCompiler())


dynamo_compiler = make_default_torch_backend()

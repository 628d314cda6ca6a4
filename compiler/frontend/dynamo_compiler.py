"""`DynamoCompiler`: the interface that scripts written for Buddy-MLIR's frontend use."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from buddy.compiler.frontend.aten import AtenGraph, Runner, default_decompositions, without_inductors_own
from buddy.compiler.frontend.backend import CompilerOverrides, buddy_backend, compile_aten
from buddy.compiler.frontend.backend_settings import BackendSettings as BackendSettings
from buddy.compiler.frontend.capture import GraphRecorder, callable_name, capture, record_inference
from buddy.compiler.frontend.export import export
from buddy.compiler.frontend.imported import Imported, Params, argument_order
from buddy.compiler.frontend.listeners import quietly, recording, tell
from buddy.compiler.frontend.others import load_plugins
from buddy.compiler.frontend.trace import Trace
from buddy.compiler.graph import serialize
from buddy.compiler.graph.graph import Graph, GraphSettings
from buddy.compiler.graph.operation import Op, default_ops_map
from buddy.compiler.runtime.captured import CapturedGraph

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
        aot_autograd_decomposition: Mapping[Any, Callable[..., Any]] | None = None,
        verbose: bool = False,
        verbose_path: str | Path | None = None,
        enable_external_calls: bool = False,
        capture_scalar_outputs: bool = False,
        trace: Any = None,
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
        self._imported: dict[Graph, Imported] = {}
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
        """The values of the nodes that `trace` names, by tag, from the last call of the function that `dynamo_run`
        returned.
        """
        return self.trace.values

    # ---- importers ---------------------------------------------------------------------------------------------------

    def importer(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Graph]:
        """The graphs of `model(*args, **kwargs)`, without gradients. Raises what `model` raises.

        Inputs are in the order of this call. Unused arguments are not inputs.
        """
        before, self._arguments = len(self._imported), argument_order(model, args, kwargs)
        with quietly():
            capture(model, args, kwargs, recorder=self._recorder(callable_name(model)))
        return self.imported_graphs[before:]

    def importer_by_export(
        self, module: Callable[..., Any], *args: Any, dynamic_shapes: Any = None, **kwargs: Any
    ) -> list[Graph]:
        """The graph of `module`, through `torch.export`; its arguments keep the order of their declaration.

        Sizes that `dynamic_shapes` names, with `torch.export.Dim`, are determined at each call of the compiled graph.
        """
        before, name, self._arguments = len(self._imported), callable_name(module), ()
        with quietly():
            export(module, args, kwargs, self._decompositions(), self._recorder(name), dynamic_shapes)
        return self.imported_graphs[before:]

    def dynamo_run(self) -> Callable[..., list[torch.Tensor]]:
        """The last imported graph in its current state, compiled.

        Takes its inputs, or parameters, buffers and then inputs.

        Raises `ValueError` if nothing has been imported, and at a call with another number of tensors; `GraphError` if
        `trace` names a node that the graph does not have.
        """
        if not self._imported:
            raise ValueError("nothing has been imported yet: call importer(model, *inputs) first")
        imported = list(self._imported.values())[-1]
        program = imported.eager if recording() else imported.compiled(self._first_registry(), self.trace)

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            return program(imported.all_tensors(tensors))

        return run

    # ---- backend for torch.compile -----------------------------------------------------------------------------------

    def __call__(
        self,
        module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Callable[..., Any]:
        """Imports a graph and compiles it: `torch.compile(f, backend=DynamoCompiler())` calls this.

        A graph with symbolic sizes is imported and compiled for each set of sizes it is called with.
        """

        def record(static: torch.fx.GraphModule, tensors: Sequence[Any]) -> None:
            record_inference(static, tensors, self._recorder(self._func_name))

        if recording():
            record(module, inputs)
            return module.forward
        own = CompilerOverrides(self._ops_map, self._first_registry())

        def compile_graph(aten: AtenGraph, settings: BackendSettings) -> Runner:
            if aten.kind == "backward" and not self.compile_backward:
                return aten.module
            return compile_aten(aten, settings, own)

        return buddy_backend(
            module,
            inputs,
            options={"dialect": self._dialect, **(options or {})},
            compile_graph=compile_graph,
            decompositions=self._decompositions(),
            on_static=record,
            **more,
        )

    def _compile_fx(
        self, module: torch.fx.GraphModule, inputs: Sequence[Any], return_type: Literal["eager", "buddy"] = "eager"
    ) -> Callable[..., Any]:
        """Imports a graph from Dynamo, and runs it in eager, or compiled.

        Raises `ValueError` for another `return_type`.
        """
        if return_type not in ("eager", "buddy"):
            raise ValueError(f"return_type is {return_type!r}; it may be 'eager' or 'buddy'")
        return self(module, inputs) if return_type == "buddy" else self._recorder(self._func_name)(module, inputs)

    # ---- lowerings ---------------------------------------------------------------------------------------------------

    @cached_property
    def _ops_map(self) -> dict[str, type[Op]]:
        """FX target name to op class; a script's entries apply to this compiler only."""
        load_plugins()
        return default_ops_map()

    @cached_property
    def _ops_registry(self) -> ChainMap[str, Lowering]:
        """Every lowering by op class name, in order of priority; a script's entries come first."""
        from buddy.compiler.ops import registries
        from buddy.compiler.ops.func import ops_registry

        primary = [self.primary_registry] if self.primary_registry else []
        return ChainMap({}, *primary, *registries(self._dialect).values(), ops_registry)  # type: ignore[arg-type]

    @property
    def _dialect(self) -> Dialect:
        """Buddy-MLIR searches its TOSA registry before the linalg one, unless the latter is primary."""
        from buddy.compiler.ops import registries

        return "linalg" if self.primary_registry is registries()["linalg"] else "tosa"

    def _first_registry(self) -> Any:
        """The lowerings with priority over all our registries; None if there are none."""
        from buddy.compiler.ops import registries
        from buddy.compiler.ops.registry import Registry

        ours = any(self.primary_registry is registry for registry in registries().values())
        found = {**({} if ours else self.primary_registry or {}), **self._ops_registry.maps[0]}
        return Registry(found) if found else None

    def _settings(self) -> GraphSettings:
        on_node = self._print_node if self.verbose else None
        return GraphSettings(self._dialect, self._first_registry, on_node, self._enable_external_calls)

    # ---- capture -----------------------------------------------------------------------------------------------------

    def _recorder(self, name: str) -> GraphRecorder:
        return GraphRecorder(name, self._func_name, self._ops_map, self._decompositions(), on_graph=self._keep)

    def _decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        table = self.aot_autograd_decomposition
        return default_decompositions(self._ops_map) if table is None else without_inductors_own(table, self._ops_map)

    def _keep(self, captured: CapturedGraph) -> None:
        if self.verbose:
            self._print(captured.table)
        if recording():
            # The script may rewrite its graph, so listeners get a copy of the captured one.
            copied = serialize.from_bytes(serialize.to_bytes(captured.graph))
            tell(replace(captured, graph=copied, first=self._first_registry))
        imported = Imported(captured, self._arguments)
        imported.graph.settings = self._settings()
        self._imported[imported.graph] = imported

    # ---- verbose -----------------------------------------------------------------------------------------------------

    def _print_node(self, node: Op, made: Sequence[Any]) -> None:
        # The function is not complete yet, and would be printed in generic form otherwise.
        texts = (op.operation.get_asm(assume_verified=True).replace("\n", "\n    ") for op in made)
        self._print("\n".join([repr(node), *(f"    {text}" for text in texts)]) + "\n")

    def _print(self, text: str) -> None:
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

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        self._compiler._imported.clear()
        return self._compiler(module, inputs, **options)


def make_default_torch_backend() -> TorchCompileBackend:
    """A backend for `torch.compile` with default settings."""
    return TorchCompileBackend(DynamoCompiler())


dynamo_compiler = make_default_torch_backend()

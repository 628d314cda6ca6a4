"""`DynamoCompiler`: the names that scripts written for Buddy-MLIR's frontend rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from buddy.compiler.frontend.aten import default_decompositions
from buddy.compiler.frontend.backend import buddy_backend
from buddy.compiler.frontend.capture import Recorder, callable_name, capture, record_inference
from buddy.compiler.frontend.captured import CapturedGraph
from buddy.compiler.frontend.export import export
from buddy.compiler.frontend.listeners import quietly, recording, tell
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op, default_ops_map
from buddy.compiler.graph.types import NodeType
from buddy.compiler.presets import default_recipe
from buddy.compiler.runner import LoadedProgram

Lowering = Callable[[Op, Any], Any]
# Buddy-MLIR searches its TOSA registry before the linalg one.
FLAVOUR: Literal["tosa"] = "tosa"


class ImportedGraph(Graph):
    """A graph that an importer made, with the ways down that scripts call."""

    def __init__(self, name: str = "forward", func_name: str = "forward") -> None:
        super().__init__(name, func_name)
        self._imported_module: Any = None
        self._first_registry: Callable[[], Any] = lambda: None

    def lower_to_top_level_ir(self, do_params_pack: bool = False) -> None:
        """Make `_imported_module`, the graph in TOSA, linalg and friends, one function whose arguments are tensors.

        Parameters are arguments whether packed or not, so `do_params_pack` changes nothing.
        """
        from buddy.compiler.lowering import lower_top_level

        self._imported_module = lower_top_level(self, flavour=FLAVOUR, partition="whole", first=self._first_registry())


class DynamoCompiler:
    """Imports models into Buddy graphs through TorchDynamo; also a back end for `torch.compile`.

    `primary_registry` maps op class names to lowerings that are tried first; `aot_autograd_decomposition` replaces the
    decompositions that capture would use; `verbose` prints every FX table, and at lowering each node with the MLIR made
    for it, to `verbose_path` when that is given.
    External calls and scalar outputs are taken as Dynamo gives them, so their flags change nothing.
    """

    def __init__(
        self,
        func_name: str = "forward",
        primary_registry: Mapping[str, Lowering] | None = None,
        aot_autograd_decomposition: Mapping[Any, Callable[..., Any]] | None = None,
        verbose: bool = False,
        verbose_path: str | None = None,
        enable_external_calls: bool = False,
        capture_scalar_outputs: bool = False,
        trace: Any = None,
    ) -> None:
        self._func_name = func_name
        self.primary_registry = primary_registry
        self.aot_autograd_decomposition = aot_autograd_decomposition
        self.verbose = verbose
        self._verbose_path = verbose_path
        self._ops_map: dict[str, type[Op]] = default_ops_map()
        self._ops_registry: dict[str, Lowering] = dict(primary_registry or {})
        self._imported_graphs: list[Graph] = []
        self._imported_params: dict[Graph, list[torch.Tensor]] = {}
        self._captured: dict[Graph, CapturedGraph] = {}

    @property
    def imported_graphs(self) -> list[Graph]:
        """Every graph imported so far, in order."""
        return self._imported_graphs

    @property
    def imported_params(self) -> dict[Graph, list[torch.Tensor]]:
        """For each imported graph its parameters, then its buffers."""
        return self._imported_params

    def importer(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Graph]:
        """The graphs that `model(*args, **kwargs)` goes through, without gradients. Raises what `model` raises."""
        before = len(self._imported_graphs)
        with quietly():
            capture(model, args, kwargs, recorder=self._recorder(callable_name(model)))
        return self._imported_graphs[before:]

    def importer_by_export(self, module: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Graph]:
        """The one graph of `module`, through `torch.export`: its arguments keep the order in which it declares them."""
        before, name = len(self._imported_graphs), callable_name(module)
        with quietly():
            export(module, args, kwargs, self._decompositions(), self._recorder(name))
        return self._imported_graphs[before:]

    def dynamo_run(self) -> Callable[..., list[torch.Tensor]]:
        """The last imported graph, compiled. Takes its inputs, or its parameters, buffers and then inputs.

        Raises `ValueError` when nothing has been imported, and at a call with another number of tensors.
        """
        if not self._imported_graphs:
            raise ValueError("nothing has been imported yet: call importer(model, *inputs) first")
        captured = self._captured[self._imported_graphs[-1]]
        program = captured.eager if recording() else _compile(captured.graph, self._first_registry())

        def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
            return list(program(_in_placeholder_order(captured, self._imported_params[captured.graph], tensors)))

        return run

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        """Import a graph and compile it: what `torch.compile(f, backend=DynamoCompiler())` calls."""
        record_inference(module, inputs, self._recorder(self._func_name))
        return module.forward if recording() else buddy_backend(module, inputs, options={"flavour": FLAVOUR}, **options)

    def _compile_fx(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Import a graph that Dynamo gives, and compute it in eager."""
        return self._recorder(self._func_name)(module, inputs)

    def _first_registry(self) -> Any:
        """The lowerings that are tried before all others; None when there are none."""
        from buddy.compiler.ops.registry import Registry

        return Registry(self._ops_registry) if self._ops_registry else None

    def _telling_registry(self) -> Any:
        """All lowerings in the order they are tried, each printing its node and the MLIR it made."""
        from buddy.compiler.ops import registries
        from buddy.compiler.ops.registry import Registry

        found: dict[str, Lowering] = {}
        for registry in (self._ops_registry, *registries(FLAVOUR).values()):
            found = {**registry, **found}
        return Registry({name: self._telling(lowering) for name, lowering in found.items()})

    def _telling(self, lowering: Lowering) -> Lowering:
        def lower(node: Op, symbol_table: Any) -> Any:
            results = lowering(node, symbol_table)
            made = results if isinstance(results, (list, tuple)) else [results]
            self._print("\n".join([repr(node), *(f"    {value}" for value in made)]) + "\n")
            return results

        return lower

    def _recorder(self, name: str) -> Recorder:
        return Recorder(name, self._func_name, self._ops_map, self._decompositions(), ImportedGraph, self._keep)

    def _decompositions(self) -> Mapping[Any, Callable[..., Any]]:
        table = self.aot_autograd_decomposition
        return default_decompositions(self._ops_map) if table is None else table

    def _keep(self, captured: CapturedGraph) -> None:
        graph = captured.graph
        assert isinstance(graph, ImportedGraph)
        graph._first_registry = self._telling_registry if self.verbose else self._first_registry
        self._imported_graphs.append(graph)
        self._imported_params[graph] = _state(captured)
        self._captured[graph] = captured
        if self.verbose:
            self._print(captured.table)
        tell(captured)

    def _print(self, text: str) -> None:
        if self._verbose_path is None:
            print(text, end="")
        else:
            with Path(self._verbose_path).open("a") as file:
                file.write(text)


def _state(captured: CapturedGraph) -> list[torch.Tensor]:
    """Parameters, then buffers and constants."""
    positions = [i for i, kind in enumerate(captured.graph.kinds) if kind is NodeType.FakeNode]
    return [captured.tensors[i] for i in sorted(positions, key=lambda i: i not in captured.parameters)]


def _in_placeholder_order(
    captured: CapturedGraph, state: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    kinds = captured.graph.kinds
    inputs = sum(kind is NodeType.InputNode for kind in kinds)
    if len(tensors) == inputs:
        tensors = [*state, *tensors]
    if len(tensors) != len(kinds):
        raise ValueError(
            f"{len(tensors)} tensors were given; the graph takes {inputs} inputs, or {len(kinds)} with its state"
        )
    is_state = [kind is NodeType.FakeNode for kind in kinds]
    order = sorted(range(len(kinds)), key=lambda i: (not is_state[i], is_state[i] and i not in captured.parameters))
    placed = dict(zip(order, tensors, strict=True))
    return [placed[index] for index in range(len(kinds))]


def _compile(graph: Graph, first: Any) -> LoadedProgram:
    from buddy.compiler.compilation import Compiler

    return LoadedProgram(Compiler(graph, first).compile(default_recipe(flavour=FLAVOUR)).artifact)


dynamo_compiler = DynamoCompiler()
TorchCompileBackend = DynamoCompiler


def make_default_torch_backend() -> DynamoCompiler:
    """A back end for `torch.compile` with default settings."""
    return DynamoCompiler()

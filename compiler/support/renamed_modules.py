"""Keeps imports by the module names of version 0.1 working, with a warning that gives the new name."""

from __future__ import annotations

import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


_PREFIX = "buddy.compiler."
# The new names by the old ones, without the prefix `buddy.compiler.`. The row of a package also covers its modules.
RENAMED = {
    "archives": "support.files",
    "arena": "codegen.arena",
    "artifact": "protocol.artifact",
    "assembly": "codegen.assembly",
    "bench": "tools.bench",
    "bench.limits": "tools.bench.peak_rates",
    "bindings": "mlir.bindings",
    "bisect": "tools.bisect",
    "blas": "support.blas",
    "cluster": "support.cluster",
    "compilation": "driver.compilation",
    "coverage": "tools.coverage",
    "diagnosis": "driver.diagnosis",
    "disk_cache": "support.disk_cache",
    "engine.apart": "support.processes.interpreters",
    "engine.channel": "support.processes.channel",
    "engine.children": "support.processes.forks",
    "engine.detached": "support.processes.forks",
    "engine.jobs": "support.processes.jobs",
    "engine.lifeline": "support.processes.lifetime",
    "engine.limits": "support.processes.lifetime",
    "engine.messages": "protocol.worker_messages",
    "engine.process": "support.processes.worker_process",
    "entering": "protocol.presets",
    "errors_heard": "support.files",
    "exports": "tools.export",
    "extracts": "tools.extract",
    "front_steps": "protocol.presets",
    "fuzzing": "tools.fuzz",
    "generic_form": "mlir.printing",
    "gpu.program": "protocol.artifact",
    "frontend.captured": "runtime.captured",
    "frontend.quantization": "frontend.quantisation",
    "frontend.recurrent": "frontend.recurrent_layers",
    "frontend.refusals": "frontend.rejections",
    "frontend.table": "frontend.graph_info",
    "given_ir": "ops.imported_module",
    "gpu": "codegen.gpu",
    "graph.given": "protocol.plain_values",
    "graph.serialize": "graph.serialization",
    "graph_stages": "driver.snapshots",
    "ir_check": "driver.pass_trials",
    "ir_files": "importers.mlir_files",
    "iree": "codegen.iree",
    "json_lines": "support.files",
    "kernels": "passes.kernels",
    "kernels.memory": "mlir.walk",
    "kernels.walk": "mlir.walk",
    "layouts": "passes.layouts",
    "llvm_text": "mlir.printing",
    "lowering": "ops.lowering",
    "machine_load": "support.timing",
    "machines": "codegen.machines",
    "mlir_alias": "mlir.bindings",
    "mlir_opt": "passes.mlir_opt",
    "mlir_tool": "mlir.mlir_tool",
    "modules": "driver.modules",
    "notebook": "driver.notebook",
    "numerics": "driver.observation",
    "numerics_report": "protocol.numerics",
    "objects": "codegen.objects",
    "observation": "driver.observation",
    "older_llvm": "codegen.llvm_ir",
    "ops.torch_mlir.apart": "ops.torch_mlir.separate_process",
    "one_pass": "driver.one_pass",
    "onnx_files": "importers.onnx_files",
    "op_documentation": "mlir.bindings",
    "own_programs": "driver.observation",
    "packed_parameters": "ops.parameter_packing",
    "pipeline": "passes.pass_runner",
    "plain_values": "protocol.plain_values",
    "plugins": "graph.plugins",
    "presets": "protocol.presets",
    "printing": "mlir.printing",
    "profile_report": "protocol.profile",
    "profiling": "tools.profile",
    "profiling.counter": "support.timing",
    "profiling.hot": "tools.profile.sampling",
    "profiling.work": "tools.profile.attribution",
    "program_cache": "driver.program_cache",
    "provenance": "mlir.provenance",
    "recipe": "protocol.recipe",
    "recipe_claims": "protocol.recipe",
    "recording": "tools.record",
    "registrations": "graph.plugins",
    "regular": "protocol.text.store",
    "resuming": "protocol.resumable_stream",
    "run_report": "protocol.run_report",
    "runner": "runtime",
    "runner.nodes": "runtime.node_comparison",
    "scratch": "support.files",
    "self_test": "support.self_test",
    "shape_words": "protocol.programs",
    "signature": "codegen.calling_convention",
    "snapshots": "driver.snapshots",
    "soft_float": "codegen.machines",
    "sources": "importers.sources",
    "step_options": "protocol.recipe",
    "steps": "protocol.presets",
    "straight": "driver.compile_graph",
    "target": "support.target",
    "text": "protocol.text",
    "text.structure": "protocol.text.line_keys",
    "torch_values": "runtime.torch_values",
    "trampolines": "codegen.llvm_ir",
    "trying": "driver.pass_trials",
    "tuning": "tools.tune",
    "tuning.space": "protocol.searches",
    "wire": "protocol.connection",
}


def install() -> None:
    """Installs the finder for renamed modules before all others.

    Python's own finder would load the modules of a renamed package a second time.
    """
    if not any(isinstance(finder, _RenamedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _RenamedModuleFinder())


def new_name(fullname: str) -> str:
    """Returns the current full name of the module that version 0.1 called `fullname`; "" if it was not renamed."""
    old = fullname.removeprefix(_PREFIX) if fullname.startswith(_PREFIX) else ""
    parts = old.split(".")
    for length in range(len(parts), 0, -1):
        new = RENAMED.get(".".join(parts[:length]))
        if new is not None:
            return ".".join((_PREFIX.rstrip("."), new, *parts[length:]))
    return ""


class _RenamedModuleFinder:
    """Finds and loads the module of the new name under the old one, so that only one copy of the module exists."""

    def __init__(self) -> None:
        # The specs of modules that Python is loading under an old name, by the module's id.
        self._specs: dict[int, Any] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name = new_name(fullname)
        if not name:
            return None
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            return None
        warnings.warn(f"{fullname} is now {name}: version 0.3 removes the old name", FutureWarning, stacklevel=2)
        # The base classes of loaders are in a module that takes longer to import than all of this package.
        loader: Any = self
        return importlib.machinery.ModuleSpec(fullname, loader, is_package=hasattr(module, "__path__"))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(new_name(spec.name))
        self._specs[id(module)] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Executes nothing; restores the spec of the module, which Python has replaced by that of the old name."""
        module.__spec__ = self._specs.pop(id(module))

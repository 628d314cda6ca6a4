"""The public interface, for plug-ins and scripts: everything that they may import, and nothing else is stable.

Plug-ins register ops, lowerings, decompositions, passes, presets, backends and exporters, and have panes of the
workbench. Scripts open programs, compile and run them, read stages, and compare results with eager's. All errors are a
`BuddyError`.

A plug-in is imported where it is needed: by the process that captures (with torch), by the one that compiles (with
MLIR, without torch), and by one that only reads names. So a name is loaded when it is first used, and importing this
module imports neither torch nor MLIR. The workbench imports the modules of panes alone, which the entry points
`buddy.panes` and the option `--pane` name: these modules import neither torch nor MLIR.

A name is removed, or its signature changed incompatibly, at the earliest two minor versions after a release that warns
of it. `API_VERSION` increases with each addition; `require_api` rejects an older interface.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from buddy.compiler.protocol.errors import BuddyError as BuddyError
from buddy.compiler.protocol.errors import Diagnostic as Diagnostic

# ruff: noqa: F401  (names with `as` are exported; not all of them equal the name there)
if TYPE_CHECKING:
    from buddy.api.extensions import llvm_ir_of as llvm_ir_of
    from buddy.api.extensions import llvm_stage as llvm_stage
    from buddy.api.extensions import lowering as lowering
    from buddy.api.extensions import optimized_llvm_ir as optimized_llvm_ir
    from buddy.api.programs import CompiledGraph as CompiledGraph
    from buddy.api.programs import Program as Program
    from buddy.api.programs import ProgramGraph as ProgramGraph
    from buddy.api.programs import capture_program as capture_program
    from buddy.api.programs import open_program as open_program
    from buddy.app.session.pane_plugins import Pane as Pane
    from buddy.app.session.pane_plugins import PaneLine as PaneLine
    from buddy.app.session.pane_plugins import PaneView as PaneView
    from buddy.compiler.driver.backends import NATIVE_BACKEND as NATIVE_BACKEND
    from buddy.compiler.driver.backends import Backend as Backend
    from buddy.compiler.driver.backends import Code as Code
    from buddy.compiler.driver.backends import register_backend as register_backend
    from buddy.compiler.driver.diagnosis import CompilationError as CompilationError
    from buddy.compiler.driver.snapshots import Snapshot as Snapshot
    from buddy.compiler.frontend.dynamo_compiler import DynamoCompiler as DynamoCompiler
    from buddy.compiler.frontend.errors import FrontendError as FrontendError
    from buddy.compiler.frontend.errors import OptionError as OptionError
    from buddy.compiler.graph.graph import Graph as Graph
    from buddy.compiler.graph.node import ElementwiseOp as ElementwiseOp
    from buddy.compiler.graph.node import Op as Op
    from buddy.compiler.graph.node import ReduceOp as ReduceOp
    from buddy.compiler.graph.node import ReshapeFamilyOp as ReshapeFamilyOp
    from buddy.compiler.graph.plugins import decomposition as decomposition
    from buddy.compiler.graph.plugins import exporter as exporter
    from buddy.compiler.graph.transform import graph_pass as graph_pass
    from buddy.compiler.mlir import bindings as mlir
    from buddy.compiler.mlir.walk import find_ops as find_ops
    from buddy.compiler.ops import scalar as scalar
    from buddy.compiler.ops.elementwise import lower_expression as lower_expression
    from buddy.compiler.ops.sizes import index_value as index_value
    from buddy.compiler.ops.utils import LoweringError as LoweringError
    from buddy.compiler.ops.utils import SymbolTable as SymbolTable
    from buddy.compiler.ops.utils import value_of as value_of
    from buddy.compiler.passes.base import MlirPass as MlirPass
    from buddy.compiler.passes.base import PassContext as PassContext
    from buddy.compiler.passes.base import PassError as PassError
    from buddy.compiler.passes.base import register as register_pass
    from buddy.compiler.protocol import Assignment as Assignment
    from buddy.compiler.protocol import NodeRow as NodeRow
    from buddy.compiler.protocol import OutputReport as OutputReport
    from buddy.compiler.protocol import Preset as Preset
    from buddy.compiler.protocol import RunReport as RunReport
    from buddy.compiler.protocol import Stage as Stage
    from buddy.compiler.protocol.artifact import Artifact as Artifact
    from buddy.compiler.protocol.presets import default_recipe as default_recipe
    from buddy.compiler.protocol.presets import preset as preset
    from buddy.compiler.protocol.presets import presets as presets
    from buddy.compiler.protocol.profile import ProfileReport as ProfileReport
    from buddy.compiler.protocol.recipe import OpChoice as OpChoice
    from buddy.compiler.protocol.recipe import PassStep as PassStep
    from buddy.compiler.protocol.recipe import PluginFile as PluginFile
    from buddy.compiler.protocol.recipe import Recipe as Recipe
    from buddy.compiler.protocol.recipe import RecipeError as RecipeError
    from buddy.compiler.protocol.recipe import from_toml as recipe_from_toml
    from buddy.compiler.protocol.recipe import to_toml as recipe_to_toml
    from buddy.compiler.runtime.compare import compare as compare_tensors
    from buddy.compiler.tools.export import CompiledProgram as CompiledProgram
    from buddy.compiler.tools.export import ExportError as ExportError

API_VERSION = 2

# The modules of the names that are loaded when they are first used, without `buddy.`: "module", "module:name there", or
# "module:" for the module itself.
_HOMES = {
    "Artifact": "compiler.protocol.artifact",
    "Assignment": "compiler.protocol",
    "Backend": "compiler.driver.backends",
    "Code": "compiler.driver.backends",
    "CompilationError": "compiler.driver.diagnosis",
    "CompiledGraph": "api.programs",
    "CompiledProgram": "compiler.tools.export",
    "DynamoCompiler": "compiler.frontend.dynamo_compiler",
    "ElementwiseOp": "compiler.graph.operation",
    "ExportError": "compiler.tools.export",
    "FrontendError": "compiler.frontend.errors",
    "Graph": "compiler.graph.graph",
    "LoweringError": "compiler.ops.utils",
    "MlirPass": "compiler.passes.base",
    "NATIVE_BACKEND": "compiler.driver.backends",
    "NodeRow": "compiler.protocol",
    "Op": "compiler.graph.operation",
    "OpChoice": "compiler.protocol.recipe",
    "OptionError": "compiler.frontend.errors",
    "OutputReport": "compiler.protocol",
    "Pane": "app.session.pane_plugins",
    "PaneLine": "app.session.pane_plugins",
    "PaneView": "app.session.pane_plugins",
    "PassContext": "compiler.passes.base",
    "PassError": "compiler.passes.base",
    "PassStep": "compiler.protocol.recipe",
    "PluginFile": "compiler.protocol.recipe",
    "Preset": "compiler.protocol",
    "ProfileReport": "compiler.protocol.profile",
    "Program": "api.programs",
    "ProgramGraph": "api.programs",
    "Recipe": "compiler.protocol.recipe",
    "RecipeError": "compiler.protocol.recipe",
    "ReduceOp": "compiler.graph.operation",
    "ReshapeFamilyOp": "compiler.graph.operation",
    "RunReport": "compiler.protocol",
    "Snapshot": "compiler.driver.snapshots",
    "Stage": "compiler.protocol",
    "SymbolTable": "compiler.ops.utils",
    "capture_program": "api.programs",
    "compare_tensors": "compiler.runtime.compare:compare",
    "decomposition": "compiler.graph.plugins",
    "default_recipe": "compiler.protocol.presets",
    "exporter": "compiler.graph.plugins",
    "find_ops": "compiler.mlir.walk",
    "graph_pass": "compiler.graph.transform",
    "index_value": "compiler.ops.sizes",
    "llvm_ir_of": "api.extensions",
    "llvm_stage": "api.extensions",
    "lower_expression": "compiler.ops.elementwise",
    "lowering": "api.extensions",
    "mlir": "compiler.mlir.bindings:",
    "open_program": "api.programs",
    "optimized_llvm_ir": "api.extensions",
    "preset": "compiler.protocol.presets",
    "presets": "compiler.protocol.presets",
    "recipe_from_toml": "compiler.protocol.recipe:from_toml",
    "recipe_to_toml": "compiler.protocol.recipe:to_toml",
    "register_backend": "compiler.driver.backends",
    "register_pass": "compiler.passes.base:register",
    "scalar": "compiler.ops.scalar:",
    "value_of": "compiler.ops.utils",
}

__all__ = ["API_VERSION", "BuddyError", "Diagnostic", "require_api", *sorted(_HOMES)]


def require_api(version: int) -> None:
    """Checks that this interface has at least `version`. Raises `BuddyError` if it is older."""
    if version > API_VERSION:
        what = f"version {version} of buddy.api is needed, this is {API_VERSION}"
        raise BuddyError(what, "a plug-in", "update buddy-tui, or use an older version of the plug-in")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'buddy.api' has no attribute {name!r}: buddy.api.__all__ lists the public names")
    module, colon, attribute = home.partition(":")
    loaded = import_module(f"buddy.{module}")
    value = loaded if colon and not attribute else getattr(loaded, attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

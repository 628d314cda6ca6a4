"""The history of a node, and the pipelines that a comparison of its IR with torch-mlir's IR uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from buddy.app.session.stages import StageKey, key_stages
from buddy.app.workspace.frontends import dialects_of, with_frontend
from buddy.compiler.protocol import NOT_APPLIED, Assignment, NodeRow, NodeTrace, Preset, Stage, Symbol
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, TORCH_MLIR, Dialect, Recipe, preset_of


class FrontendPipeline(NamedTuple):
    """A recipe, its title, and the phases that the other pipeline of the comparison does not have."""

    title: str
    recipe: Recipe
    phases: tuple[str, ...]


def frontend_pipelines(
    recipe: Recipe, presets: Sequence[Preset], dialect: Dialect
) -> tuple[FrontendPipeline, FrontendPipeline]:
    """The pipelines of this compiler and of torch-mlir (to `dialect`) with the other settings of `recipe`."""
    frontend = recipe.frontend if recipe.frontend in OWN_FRONTENDS else "dynamo"
    default_dialect = dialect if dialect in dialects_of(frontend) else "linalg"
    native_dialect = recipe.dialect if recipe.frontend == frontend else default_dialect
    native = with_frontend(recipe, presets, frontend, native_dialect).for_native()
    torch_mlir = with_frontend(recipe.for_native(), presets, TORCH_MLIR, dialect)
    native_preset, torch_mlir_preset = "default", preset_of(TORCH_MLIR, dialect)
    return (
        FrontendPipeline("this compiler", native, _distinct_phases(presets, native_preset, torch_mlir_preset)),
        FrontendPipeline(
            f"torch-mlir to {dialect}", torch_mlir, _distinct_phases(presets, torch_mlir_preset, native_preset)
        ),
    )


def _distinct_phases(presets: Sequence[Preset], name: str, other: str) -> tuple[str, ...]:
    """The MLIR phases of the preset `name` that the preset `other` does not have."""
    phases = {preset.name: [phase for phase, language in preset.phases if language == "mlir"] for preset in presets}
    return tuple(phase for phase in phases[name] if phase not in phases[other])


def phase_stages(pipeline: FrontendPipeline, stages: Sequence[Stage]) -> list[tuple[StageKey, Stage]]:
    """The last stage of each phase of the pipeline, in order, without failed stages."""
    last = {stage.phase: (key, stage) for key, stage in key_stages(stages) if stage.state != "failed"}
    return [last[phase] for phase in pipeline.phases if phase in last]


# A limit for `FollowNode` that is larger than the number of lines of any text.
EVERY_LINE = 1 << 20
# The steps that are not passes.
CAPTURE, LOWERING, RECIPE, MACHINE_CODE = "capture", "lowering", "recipe", "machine code"


class NodeRemark(NamedTuple):
    """A remark about a node, which `step` (a pass, or another step of the compilation) has made `times` times."""

    step: str
    text: str
    times: int = 1


def node_history(
    row: NodeRow, assignment: Assignment | None, remarks: Iterable[tuple[str, str, str]], stages: Sequence[Stage]
) -> list[NodeRemark]:
    """The history of a node in pipeline order. `remarks` are the (pass, node, text) of `protocol.Compiled`."""
    of_node = [NodeRemark(step, text) for step, node, text in remarks if node == row.stable]
    graph_passes = {stage.name for stage in stages if stage.phase == "graph"}
    of_graph_passes = [remark for remark in of_node if remark.step in graph_passes]
    of_passes = [remark for remark in of_node if remark.step not in graph_passes and remark.step != NOT_APPLIED]
    unapplied = [remark._replace(step=RECIPE) for remark in of_node if remark.step == NOT_APPLIED]
    return [
        NodeRemark(CAPTURE, _capture_text(row)),
        *_merge_repeated(of_graph_passes),
        *unapplied,
        *_lowering_remarks(assignment),
        *_merge_repeated(of_passes),
    ]


def _capture_text(row: NodeRow) -> str:
    """The target, type, Python line and module of a node."""
    parts = [row.target, f"{row.dtype}[{row.shape}]" if row.dtype else "", row.location, row.module]
    return " \u00b7 ".join(part for part in parts if part)


def _lowering_remarks(assignment: Assignment | None) -> list[NodeRemark]:
    if assignment is None:
        return []
    where = f" in @{assignment.function}" if assignment.function else ""
    why = f": {assignment.reason}" if assignment.reason else ""
    paths = [NodeRemark(LOWERING, f"{name}: {text}") for name, text in path_details(assignment).items()]
    return [NodeRemark(LOWERING, f"by {assignment.lowering}{where}{why}"), *paths]


def path_details(assignment: Assignment) -> dict[str, str]:
    """When the code of a compiled node calls eager, by the name of the path."""
    details = {}
    if assignment.slow_path:
        details["slow path"] = f"eager computes the results if {assignment.slow_path}"
    if assignment.error_path:
        details["error path"] = f"eager raises its error if {assignment.error_path}"
    return details


def _merge_repeated(remarks: Sequence[NodeRemark]) -> list[NodeRemark]:
    """Merges consecutive equal remarks."""
    merged: list[NodeRemark] = []
    for remark in remarks:
        if merged and (merged[-1].step, merged[-1].text) == (remark.step, remark.text):
            merged[-1] = merged[-1]._replace(times=merged[-1].times + 1)
        else:
            merged.append(remark)
    return merged


def remark_text(remark: NodeRemark) -> str:
    """The text of the remark, and its count if it is repeated."""
    return remark.text + (f" ({remark.times} times)" if remark.times > 1 else "")


def is_computed(row: NodeRow) -> bool:
    """Whether code is generated for the node."""
    return row.opcode not in ("placeholder", "get_attr", "output")


def instruction_count_remark(traces: Sequence[NodeTrace], symbols: Sequence[Symbol]) -> NodeRemark:
    """A remark with the number of instructions in `traces`, and the functions of `symbols` that contain them."""
    direct = [line for trace in traces for line, derived in zip(trace.lines, trace.marks, strict=True) if not derived]
    derived_count = sum(trace.derived for trace in traces)
    if not direct:
        text = f"{derived_count} derived instructions" if derived_count else "no instruction comes from this node"
        return NodeRemark(MACHINE_CODE, text)
    functions = [f"@{one.name}" for one in symbols if any(one.first <= line <= one.last for line in direct)]
    return NodeRemark(MACHINE_CODE, f"{len(direct)} instructions in {', '.join(functions)}")

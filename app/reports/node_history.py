"""The history of a node, and its stages in a comparison with torch-mlir's IR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from buddy.app.session.stages import Key, key_stages
from buddy.app.workspace.frontends import dialects_of, with_frontend
from buddy.compiler.protocol import NOT_APPLIED, Assignment, NodeRow, NodeTrace, Preset, Stage, Symbol
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, TORCH_MLIR, Dialect, Recipe, preset_of


class FrontendPipeline(NamedTuple):
    """A recipe, its title, and the phases that only this pipeline has."""

    title: str
    recipe: Recipe
    phases: tuple[str, ...]


def frontend_pipelines(
    recipe: Recipe, presets: Sequence[Preset], dialect: Dialect
) -> tuple[FrontendPipeline, FrontendPipeline]:
    """The pipelines of this compiler and of torch-mlir (to `dialect`) for `recipe`, which may be one of them."""
    own = recipe.frontend if recipe.frontend in OWN_FRONTENDS else "dynamo"
    first = dialect if dialect in dialects_of(own) else "linalg"
    ours = with_frontend(recipe, presets, own, recipe.dialect if recipe.frontend == own else first)
    theirs = with_frontend(recipe.for_native(), presets, TORCH_MLIR, dialect)
    default, imported = "default", preset_of(TORCH_MLIR, dialect)
    return (
        FrontendPipeline("this compiler", ours.for_native(), _own_phases(presets, default, imported)),
        FrontendPipeline(f"torch-mlir to {dialect}", theirs, _own_phases(presets, imported, default)),
    )


def _own_phases(presets: Sequence[Preset], name: str, other: str) -> tuple[str, ...]:
    """The phases that a preset has and `other` does not have."""
    of = {preset.name: [phase for phase, language in preset.phases if language == "mlir"] for preset in presets}
    return tuple(phase for phase in of[name] if phase not in of[other])


def phase_stages(pipeline: FrontendPipeline, stages: Sequence[Stage]) -> list[tuple[Key, Stage]]:
    """The last stage of each phase of the pipeline, in order, without failed stages."""
    last = {stage.phase: (key, stage) for key, stage in key_stages(stages) if stage.state != "failed"}
    return [last[phase] for phase in pipeline.phases if phase in last]


# A line limit that covers all lines of a node.
EVERY_LINE = 1 << 20
# The names of entries that are not from a pass.
CAPTURE, LOWERING, RECIPE, MACHINE_CODE = "capture", "lowering", "recipe", "machine code"


class NodeRemark(NamedTuple):
    """A remark `text` about the node by `who` (a pass or a built-in step), repeated `times` times."""

    who: str
    text: str
    times: int = 1


def node_history(
    row: NodeRow, assignment: Assignment | None, remarks: Iterable[tuple[str, str, str]], stages: Sequence[Stage]
) -> list[NodeRemark]:
    """The history of a node in pipeline order. `remarks` are those of `Compiled`."""
    of_node = [(who, text) for who, node, text in remarks if node == row.stable]
    graph_passes = {stage.name for stage in stages if stage.phase == "graph"}
    early = [NodeRemark(who, text) for who, text in of_node if who in graph_passes]
    pass_remarks = [NodeRemark(who, text) for who, text in of_node if who not in graph_passes and who != NOT_APPLIED]
    unapplied = [NodeRemark(RECIPE, text) for who, text in of_node if who == NOT_APPLIED]
    return [
        NodeRemark(CAPTURE, _captured(row)),
        *_counted(early),
        *unapplied,
        *_lowered(assignment),
        *_counted(pass_remarks),
    ]


def _captured(row: NodeRow) -> str:
    parts = [row.target, f"{row.dtype}[{row.shape}]" if row.dtype else "", row.location, row.module]
    return " \u00b7 ".join(part for part in parts if part)


def _lowered(assignment: Assignment | None) -> list[NodeRemark]:
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


def _counted(remarks: Sequence[NodeRemark]) -> list[NodeRemark]:
    """Merge consecutive equal remarks."""
    found: list[NodeRemark] = []
    for one in remarks:
        if found and found[-1][:2] == one[:2]:
            found[-1] = found[-1]._replace(times=found[-1].times + 1)
        else:
            found.append(one)
    return found


def remark_text(remark: NodeRemark) -> str:
    """The text of the remark, and its count if it is repeated."""
    return remark.text + (f" ({remark.times} times)" if remark.times > 1 else "")


def is_computed(row: NodeRow) -> bool:
    """Whether code is generated for the node."""
    return row.opcode not in ("placeholder", "get_attr", "output")


def in_machine_code(traces: Sequence[NodeTrace], symbols: Sequence[Symbol]) -> NodeRemark:
    """The number of instructions that come from a node, and their functions (of `symbols`)."""
    own = [line for trace in traces for line, mark in zip(trace.lines, trace.marks, strict=True) if not mark]
    derived = sum(trace.derived for trace in traces)
    if not own:
        text = "no instruction: other nodes do its work" if not derived else f"{derived} derived instructions"
        return NodeRemark(MACHINE_CODE, text)
    where = ", ".join(f"@{one.name}" for one in symbols if any(one.first <= line <= one.last for line in own))
    return NodeRemark(MACHINE_CODE, f"{len(own)} instructions in {where}")

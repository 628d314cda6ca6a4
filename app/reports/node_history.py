"""The history of a node: how each step of the compilation has changed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from buddy.compiler.protocol import NOT_APPLIED, Assignment, NodeRow, NodeTrace, Stage, Symbol

# A limit of lines for `FollowNode` that no text reaches.
EVERY_LINE = 1 << 20
# The steps of a `NodeRemark` that are not passes.
CAPTURE, LOWERING, RECIPE, MACHINE_CODE = "capture", "lowering", "recipe", "machine code"


class NodeRemark(NamedTuple):
    """A remark about a node, which `step` (a pass, or another step of the compilation) has made `times` times."""

    step: str
    text: str
    times: int = 1


def node_history(
    row: NodeRow, assignment: Assignment | None, remarks: Iterable[tuple[str, str, str]], stages: Sequence[Stage]
) -> list[NodeRemark]:
    """Returns the history of a node in pipeline order. `remarks` are the (pass, node, text) of `protocol.Compiled`."""
    node_remarks = [NodeRemark(step, text) for step, node, text in remarks if node == row.stable]
    graph_passes = {stage.name for stage in stages if stage.phase == "graph"}
    graph_pass_remarks = [remark for remark in node_remarks if remark.step in graph_passes]
    pass_remarks = [remark for remark in node_remarks if remark.step not in graph_passes and remark.step != NOT_APPLIED]
    unapplied = [remark._replace(step=RECIPE) for remark in node_remarks if remark.step == NOT_APPLIED]
    return [
        NodeRemark(CAPTURE, _capture_text(row)),
        *_merge_repeated(graph_pass_remarks),
        *unapplied,
        *_lowering_remarks(assignment),
        *_merge_repeated(pass_remarks),
    ]


def _capture_text(row: NodeRow) -> str:
    """Returns the target, type, Python line and module of a node."""
    parts = [row.target, f"{row.dtype}[{row.shape}]" if row.dtype else "", row.location, row.module]
    return " \u00b7 ".join(part for part in parts if part)


def _lowering_remarks(assignment: Assignment | None) -> list[NodeRemark]:
    """Returns how a node was lowered, and when its code calls eager."""
    if assignment is None:
        return []
    function = f" in @{assignment.function}" if assignment.function else ""
    reason = f": {assignment.reason}" if assignment.reason else ""
    paths = [NodeRemark(LOWERING, f"{name}: {text}") for name, text in path_details(assignment).items()]
    return [NodeRemark(LOWERING, f"by {assignment.lowering}{function}{reason}"), *paths]


def path_details(assignment: Assignment) -> dict[str, str]:
    """Returns when the code of a compiled node calls eager, by the name of the path."""
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
    """Returns the text of the remark, and its count if it is repeated."""
    return remark.text + (f" ({remark.times} times)" if remark.times > 1 else "")


def is_computed(row: NodeRow) -> bool:
    """Whether code is generated for the node."""
    return row.opcode not in ("placeholder", "get_attr", "output")


def instruction_count_remark(traces: Sequence[NodeTrace], symbols: Sequence[Symbol]) -> NodeRemark:
    """Returns a remark with the number of instructions in `traces`, and the `symbols` (functions) that contain them."""
    direct = [line for trace in traces for line, derived in zip(trace.lines, trace.marks, strict=True) if not derived]
    derived_count = sum(trace.derived for trace in traces)
    if not direct:
        text = f"{derived_count} derived instructions" if derived_count else "no instruction comes from this node"
        return NodeRemark(MACHINE_CODE, text)
    functions = [f"@{symbol.name}" for symbol in symbols if any(symbol.first <= line <= symbol.last for line in direct)]
    return NodeRemark(MACHINE_CODE, f"{len(direct)} instructions in {', '.join(functions)}")

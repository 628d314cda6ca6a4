"""The history of a node: its capture, its lowering, and the remarks of each pass, in order. No Textual."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from buddy.compiler.protocol import IN_VAIN, Assignment, NodeRow, NodeTrace, Stage, Symbol

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
    pass_remarks = [NodeRemark(who, text) for who, text in of_node if who not in graph_passes and who != IN_VAIN]
    unapplied = [NodeRemark(RECIPE, text) for who, text in of_node if who == IN_VAIN]
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
    return [NodeRemark(LOWERING, f"by {assignment.lowering}{where}{why}")]


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

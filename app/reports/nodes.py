"""The facts about a node as text: its op, lowering and precision, its role and memory in training, and its history.

The role says which results of a training graph are saved for backward, read again, or recomputed. The history says how
each step of the compilation has changed a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from buddy.app.reports.formatting import counted, size
from buddy.app.reports.numerics import PrecisionGain
from buddy.compiler.protocol import NOT_APPLIED, Assignment, GraphInfo, NodeRow, NodeTrace, Stage, Symbol, TrainingRole
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, Precision, Recipe

# ---- lowerings and precisions ----------------------------------------------------------------------------------------


# The precisions of products, each with its description.
PRECISION_TEXTS: dict[Precision, str] = {
    "f32": "as the program says",
    "bf16x3": "both operands as sums of two bfloat16: three products, sums in f32",
    "bf16": "both operands rounded to bfloat16, sums in f32",
    "int8-dynamic": "both operands rounded to 8-bit integers, by row and by column; exact sums",
    "int8-weights": "weights rounded to 8-bit integers, one scale per channel; sums in f32",
    "int4-weights": "weights rounded to 4-bit integers, one scale per channel and 128 along K; sums in f32",
    "int4-weights-64": "4-bit weights, one scale per channel and 64 along K: more exact, larger",
    "int4-weights-32": "4-bit weights, one scale per channel and 32 along K: most exact, largest",
}

# The lowerings of nodes, each with its description.
LOWERING_TEXTS = {
    "tosa": "TOSA ops, then the TOSA conversions",
    "linalg": "linalg on tensors",
    "math": "ops of the math dialect on whole tensors",
    "unrolled": "linalg on tensors, with a copy of the loop's body for each step",
    TORCH_MLIR: "torch-mlir's own lowering, inlined",
    "func": "a function call",
    EAGER: "runs in eager PyTorch",
}


def lowering_summary(name: str, assignment: Assignment) -> str:
    """Returns the description of a lowering, or the reason why it cannot lower this node."""
    rejection = assignment.rejection(name)
    return f"not possible: {rejection}" if rejection else LOWERING_TEXTS.get(name, "")


def opcode_text(opcode: str) -> str:
    """Returns the text in the lowering column for a node that is not lowered, by its FX opcode; empty for others."""
    return {"placeholder": "input", "output": "output", "get_attr": "attr"}.get(opcode, "")


def short_target(target: str) -> str:
    """Shortens a target: `aten.mm.default` to `aten.mm`, `<built-in function getitem>` to `getitem`."""
    return target.removesuffix(".default").removeprefix("<built-in function ").removesuffix(">")


def precision_summary(node: str, recipe: Recipe, assignment: Assignment, precision: str, gain: PrecisionGain) -> str:
    """Returns the precision in which `node` multiplies, its measured `gain`, and why the recipe's is not applied.

    `precision` is empty for a node that multiplies no float32. The result is then empty too, unless the node multiplies
    integers.
    """
    if assignment.integers:
        return f"{assignment.integers}: the program is quantised, and its integers are multiplied; sums are exact"
    if not precision:
        return ""
    summary = precision
    if any(choice.node == node for choice in recipe.precisions):
        summary += " (set in the recipe)"
    if gain.error_text:
        summary += f", error {gain.error_text} of {'its own result' if gain.is_node_error else 'the outputs, alone'}"
    if gain.saved_text:
        summary += f", saves {gain.saved_text} ms"
    if assignment.precision_reason:
        summary += f"; not {recipe.precision_of(node)}: {assignment.precision_reason}"
    return summary


# ---- memory in training ----------------------------------------------------------------------------------------------


# The roles of nodes, each with its description.
ROLE_TEXTS: dict[TrainingRole, str] = {
    "saved": "kept in memory for the backward graph",
    "reread": "an input that the backward graph reads again, without a copy",
    "recomputed": "computed in the forward graph, and again in the backward graph",
    "viewed": "a view of the forward graph, made again without a copy",
}


@dataclass(frozen=True)
class RoleMemory:
    """The memory of the nodes of one role: their number, and the bytes of their results.

    `n_captured` of the nodes have sizes that vary, and count with the bytes of the captured call. `n_unknown` of the
    nodes have no known size, and do not count in `bytes`.
    """

    count: int
    bytes: int
    n_captured: int
    n_unknown: int

    @property
    def text(self) -> str:
        """The bytes: `3.4 MB`, `~3.4 MB` if they depend on sizes, `>3.4 MB` if some are unknown, `? B` if all are."""
        if self.n_unknown:
            return "? B" if self.n_unknown == self.count else f">{size(self.bytes)}"
        return f"~{size(self.bytes)}" if self.n_captured else size(self.bytes)

    def as_json(self) -> dict[str, int]:
        return {
            "count": self.count, "bytes": self.bytes, "of_captured_sizes": self.n_captured, "unknown": self.n_unknown,
        }  # fmt: skip


@dataclass(frozen=True)
class TrainingMemory:
    """The saved tensors, the inputs that the backward graph reads again, and the recomputed ops of a training graph."""

    saved: RoleMemory
    reread: RoleMemory
    recomputed: RoleMemory

    def as_json(self) -> dict[str, dict[str, int]]:
        return {name: getattr(self, name).as_json() for name in ("saved", "reread", "recomputed")}


def training_memory(info: GraphInfo) -> TrainingMemory | None:
    """Adds up the nodes of each role. Returns `None` if no node has a role: the graph is not for training."""
    if not any(row.training for row in info.rows):
        return None
    return TrainingMemory(
        *(
            _role_memory([row for row in info.rows if row.training == role])
            for role in ("saved", "reread", "recomputed")
        )
    )


def _role_memory(rows: Sequence[NodeRow]) -> RoleMemory:
    """Adds up the nodes `rows`, which have the same role."""
    captured = [row for row in rows if not row.bytes and row.captured_bytes]
    unknown = [row for row in rows if not row.bytes and not row.captured_bytes and not _is_empty(row)]
    return RoleMemory(len(rows), sum(map(node_bytes, rows)), len(captured), len(unknown))


def _is_empty(row: NodeRow) -> bool:
    """Whether no result of the node has elements: a size in each shape is 0."""
    return all("0" in shape.split("x") for shape in row.shape.split(", "))


def node_bytes(row: NodeRow) -> int:
    """Returns the bytes of the results of a node: those in the captured call if sizes vary, 0 if unknown."""
    return row.bytes or row.captured_bytes


def training_summary(memory: TrainingMemory, width: int = 1000) -> str:
    """Returns the memory as one line: the longest wording that fits into `width` characters, else the shortest one."""
    saved, reread, recomputed = memory.saved, memory.reread, memory.recomputed
    texts = [
        f"{counted(saved.count, 'tensor')} saved for backward, {saved.text}; "
        f"{counted(recomputed.count, 'op')} recomputed, {recomputed.text}; "
        f"{counted(reread.count, 'input')} read again without a copy, {reread.text}",
        f"{counted(saved.count, 'tensor')} saved, {saved.text}; {counted(recomputed.count, 'op')} recomputed, "
        f"{recomputed.text}",
        f"saved {saved.text}, recomputed {recomputed.text}",
    ]
    return next((text for text in texts if len(text) <= width), texts[-1])


def bytes_text(row: NodeRow) -> str:
    """Returns the bytes of the results of a node: `3.4 MB`, or `~3.4 MB` if sizes vary; empty if unknown."""
    return _role_memory([row]).text if node_bytes(row) else ""


def role_and_bytes(row: NodeRow) -> str:
    """Returns the role of a node and the bytes of its results, `saved 3.4 MB`; empty without a role."""
    # A view takes no memory.
    return row.training if row.training in ("", "viewed") else f"{row.training} {bytes_text(row)}".rstrip()


def role_text(row: NodeRow) -> str:
    """Returns the role of a node with its bytes, as one line; empty without a role."""
    if not row.training:
        return ""
    return f"{role_and_bytes(row)}: {ROLE_TEXTS[row.training]}"


# ---- history ---------------------------------------------------------------------------------------------------------


# A limit of lines for `FollowNode` that no text reaches.
EVERY_LINE = 1 << 20
# The steps of a `NodeRemark` that are not passes.
CAPTURE, LOWERING, RECIPE, MACHINE_CODE = "capture", "lowering", "recipe", "machine code"


class NodeRemark(NamedTuple):
    """A remark about a node. `step`, a pass or another step of the compilation, made the remark `times` times."""

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
    """Returns a remark on how a node was lowered, and one for each path on which its code calls eager."""
    if assignment is None:
        return []
    function = f" in @{assignment.function}" if assignment.function else ""
    reason = f": {assignment.reason}" if assignment.reason else ""
    paths = [NodeRemark(LOWERING, f"{name}: {text}") for name, text in path_details(assignment).items()]
    return [NodeRemark(LOWERING, f"by {assignment.lowering}{function}{reason}"), *paths]


def path_details(assignment: Assignment) -> dict[str, str]:
    """Returns the conditions on which the code of a compiled node calls eager, by the name of the path."""
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
    """Returns a remark with the number of instructions in `traces`, and the `symbols` (functions) that contain them.

    Counts derived instructions only if there are no others.
    """
    lines = [line for trace in traces for line, derived in zip(trace.lines, trace.marks, strict=True) if not derived]
    if not lines:
        n_derived = sum(trace.derived for trace in traces)
        text = f"{n_derived} derived instructions" if n_derived else "no instruction comes from this node"
        return NodeRemark(MACHINE_CODE, text)
    functions = [f"@{symbol.name}" for symbol in symbols if any(symbol.first <= line <= symbol.last for line in lines)]
    return NodeRemark(MACHINE_CODE, f"{len(lines)} instructions in {', '.join(functions)}")

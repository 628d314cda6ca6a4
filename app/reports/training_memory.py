"""The memory of a training graph: the numbers and bytes of tensors saved for backward, read again or recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.app.reports.formatting import counted, size
from buddy.compiler.protocol import GraphInfo, NodeRow, TrainingRole

# The meaning of the role of a node, for its details.
ROLE_TEXTS: dict[TrainingRole, str] = {
    "saved": "kept in memory for the backward graph",
    "reread": "an input that the backward graph reads again, without a copy",
    "recomputed": "computed in the forward graph, and again in the backward graph",
    "viewed": "a view of the forward graph, made again without a copy",
}


@dataclass(frozen=True)
class RoleMemory:
    """The memory of the nodes of one role: their number, and the bytes of their results.

    Of these nodes, `n_captured` have sizes that vary, and count with the bytes of the captured call. `n_unknown` have
    no known size, and do not count in `bytes`.
    """

    count: int
    bytes: int
    n_captured: int
    n_unknown: int

    @property
    def text(self) -> str:
        """The bytes: `3.4 MB`, `~3.4 MB` if they depend on sizes, `>3.4 MB` if some are unknown."""
        sign = ">" if self.n_unknown else "~" if self.n_captured else ""
        return "? B" if self.n_unknown == self.count > 0 else f"{sign}{size(self.bytes)}"

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
    """Adds up the nodes of each role; `None` for a graph without such nodes, which is not one of training."""
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
    """Whether the results have no elements: one of their sizes is 0."""
    return all("0" in shape.split("x") for shape in row.shape.split(", "))


def node_bytes(row: NodeRow) -> int:
    """Returns the bytes of the results of a node, in the captured call if they depend on sizes that vary."""
    return row.bytes or row.captured_bytes


def training_summary(memory: TrainingMemory, width: int = 1000) -> str:
    """Returns the memory as one line, in the longest wording of at most `width` characters, or the shortest one."""
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
    """Returns the bytes of the results of a node, `~3.4 MB` if they depend on sizes that vary; "" if unknown."""
    return _role_memory([row]).text if node_bytes(row) else ""


def role_and_bytes(row: NodeRow) -> str:
    """Returns the role of a node and the bytes that it takes, in a few words: `saved 3.4 MB`; empty without a role."""
    return f"{row.training} {bytes_text(row)}".rstrip() if row.training not in ("", "viewed") else row.training


def role_text(row: NodeRow) -> str:
    """Returns the role of a node with its bytes, as one line; empty without a role."""
    if not row.training:
        return ""
    return f"{role_and_bytes(row)}: {ROLE_TEXTS[row.training]}"

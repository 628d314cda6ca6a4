"""Records which pairs of nodes Inductor's scheduler considered for fusion, and why it did not fuse them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from torch._inductor.scheduler import BaseSchedulerNode, Scheduler, WhyNoFuse


FUSED, NOT_FUSED = "fused", "not fused"
_NO_REASON = "Inductor gives no reason"


@dataclass
class FusionDecision:
    """A pair of scheduler nodes, each as the names of its parts, and the scheduler's decision.

    `is_legal` says that the scheduler may fuse the pair, `is_fused` that it did. `reason` says why the pair was not
    fused, "" if it was. `considered` counts how often the scheduler considered it.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    is_legal: bool
    reason: str = ""
    considered: int = 1
    is_fused: bool = False

    @property
    def result(self) -> str:
        return FUSED if self.is_fused else NOT_FUSED


@dataclass
class FusionLog:
    """All pairs that one compilation considered, in order of first consideration.

    `_reasons` are the reasons that Inductor logged: the names of both nodes, and the text.
    """

    decisions: dict[tuple[tuple[str, ...], tuple[str, ...]], FusionDecision] = field(default_factory=dict)
    _reasons: list[tuple[str, str, str]] = field(default_factory=list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records decisions in the `with` block, except those of functions that this version of torch does not have."""
        from torch._inductor import scheduler

        log = self

        # Both functions replace methods of Inductor, so `self` of `consider` is a scheduler.
        def note(reason: WhyNoFuse, text: str, *arguments: object) -> None:
            log._reasons.append((reason.name1, reason.name2, text % arguments if arguments else text))
            explain(reason, text, *arguments)

        def consider(
            self: Scheduler, first: BaseSchedulerNode, second: BaseSchedulerNode, *more: object, **keywords: object
        ) -> bool:
            before = len(log._reasons)
            is_legal = can_fuse(self, first, second, *more, **keywords)
            log._add(self, first, second, bool(is_legal), [text for _, _, text in log._reasons[before:]])
            return is_legal

        with ExitStack() as patches:
            explain: Any = _original(scheduler, "WhyNoFuse", "__call__")
            if explain is not None:
                patches.enter_context(mock.patch.object(scheduler.WhyNoFuse, "__call__", note))
            can_fuse: Any = _original(scheduler, "Scheduler", "can_fuse")
            if can_fuse is not None:
                patches.enter_context(mock.patch.object(scheduler.Scheduler, "can_fuse", consider))
            yield

    def _add(
        self,
        scheduler: Scheduler,
        first: BaseSchedulerNode,
        second: BaseSchedulerNode,
        is_legal: bool,
        reasons: Sequence[str],
    ) -> None:
        """Adds a consideration of a pair; `reasons` are those that Inductor logged during it."""
        pair = _parts(first), _parts(second)
        # The scheduler tries the other order too, which is never legal for a producer and its consumer.
        reason = "" if is_legal else (next(iter(reasons), "") or _explain(scheduler, first, second))
        if pair in self.decisions:
            decision = self.decisions[pair]
            decision.considered += 1
            decision.is_legal |= is_legal
            decision.reason = reason or decision.reason
        else:
            self.decisions[pair] = FusionDecision(*pair, is_legal, reason)

    def finish(self, nodes: Sequence[BaseSchedulerNode]) -> list[FusionDecision]:
        """Returns the decisions, given the scheduler's `nodes` after fusion."""
        groups = [set(_parts(node)) for node in nodes]
        reason_by_names = {(first, second): text for first, second, text in self._reasons}
        for decision in self.decisions.values():
            parts = {*decision.first, *decision.second}
            decision.is_fused = decision.is_legal and any(parts <= group for group in groups)
            if decision.is_fused:
                decision.reason = ""
            elif decision.is_legal:
                names = "_".join(decision.first), "_".join(decision.second)
                decision.reason = (
                    reason_by_names.get(names) or "legal, but one of them was fused with other nodes before"
                )
        return list(self.decisions.values())


def _original(module: ModuleType, class_name: str, method: str) -> Callable[..., Any] | None:
    """Returns a method of a class of `module`; `None` if this version of torch does not have it."""
    return getattr(getattr(module, class_name, None), method, None)


def _parts(node: BaseSchedulerNode) -> tuple[str, ...]:
    """Returns the names of the scheduler nodes that a node consists of."""
    return tuple(part.get_name() for part in node.get_nodes())


def _explain(scheduler: Scheduler, first: BaseSchedulerNode, second: BaseSchedulerNode) -> str:
    """Returns why Inductor rejects a pair without logging a reason: mostly a decision of its C++ backend."""
    try:
        return _explain_loops(first, second)
    except Exception:
        return _NO_REASON


def _explain_loops(first: BaseSchedulerNode, second: BaseSchedulerNode) -> str:
    """Returns the probable reason of Inductor's C++ backend, from the loops and the dependences of a pair."""
    from torch._inductor import config

    depends = bool(first.get_operation_names() & second.ancestors)
    if first.is_template() or second.is_template():
        return "a template of a matrix product or convolution: its backend does not fuse this neighbour"
    loops, other_loops = first.group[1], second.group[1]
    if depends and first.is_reduction():
        return (
            f"the first is a reduction, and the second reads its result; loops {_loops(loops)}, {_loops(other_loops)}"
        )
    if loops != other_loops:
        return f"the loops differ: {_loops(loops)} and {_loops(other_loops)}"
    size, limit = len(first.get_nodes()) + len(second.get_nodes()), config.cpp.max_horizontal_fusion_size
    if not depends and size > limit:
        return f"{size} nodes are more than cpp.max_horizontal_fusion_size = {limit}"
    return "they share too little data" if not depends else _NO_REASON


def _loops(group: Any) -> str:
    """Returns the sizes of the outer and the reduction loops of a node: `4x8, reduced 16`."""
    outer, reduced = group
    text = "x".join(map(str, outer)) or "scalar"
    return f"{text}, reduced {'x'.join(map(str, reduced))}" if reduced else text

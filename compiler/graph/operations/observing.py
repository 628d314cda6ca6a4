"""The node that passes a value to the observer of a run."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op

OBSERVE = "buddy.observe.default"


class ObserveOp(Op):
    """Passes its only argument to the observer of the run, if the run has one; has no result.

    The observer is called in the order of these nodes, which identifies the value of each call.
    """

    has_effect = True
    only_eager = "it passes a value to the observer of the run"
    targets = (OBSERVE,)

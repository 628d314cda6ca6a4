"""A node that hands a value to whoever observes the run."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op

OBSERVE = "buddy.observe.default"


class ObserveOp(Op):
    """Shows its only argument to the observer of the run, if there is one, and gives nothing.

    Observers are called in the program's order, so the order of these nodes says whose value each call shows.
    """

    has_effect = True
    only_eager = "it hands a value to whoever observes the run"
    targets = (OBSERVE,)

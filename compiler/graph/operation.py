"""The names under which Buddy-MLIR's scripts import nodes and op classes.

`from buddy.compiler.graph.operation import AddOp` works for every op class, including those of plug-ins.
"""

from __future__ import annotations

from typing import Any

import buddy.compiler.graph.operations  # noqa: F401  (defines the op classes)
from buddy.compiler.graph.node import *  # noqa: F403
from buddy.compiler.graph.node import op_classes

# Buddy-MLIR has one class per overload. This maps its class names to the equivalent classes of this package.
_BUDDY_MLIR_NAMES = {
    "BitwiseAndScalarOp": "BitwiseAndOp",
    "BitwiseAndTensorOp": "BitwiseAndOp",
    "BitwiseOrScalarOp": "BitwiseOrOp",
    "BitwiseXorScalarOp": "BitwiseXorOp",
    "EqTensorOp": "EqualOp",
    "GeTensorOp": "GeOp",
    "GreaterThanOp": "GtOp",
    "GtTensorOp": "GtOp",
    "IotaOp": "ArangeOp",
    "LeTensorOp": "LeOp",
    "LessThanOp": "LtOp",
    "LiftFreshCopyOp": "AliasOp",
    "LtTensorOp": "LtOp",
    "NativeBatchNormLegitNoTrainingOp": "BatchNormOp",
    "NeScalarOp": "NeOp",
    "NeTensorOp": "NeOp",
    "SplitWithSizesOp": "SplitOp",
    "SumDefaultOp": "SumDimOp",
    "ToCopyOp": "ConvertElementTypeOp",
}


def __getattr__(name: str) -> Any:
    """Returns an op class by its name in this package or in Buddy-MLIR; `__all__` has both, for `import *`."""
    if name != "__all__" and not name.endswith("Op"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    classes = op_classes()
    if name == "__all__":
        return ["Op", "OpType", *classes, *_BUDDY_MLIR_NAMES]
    op_class = classes.get(_BUDDY_MLIR_NAMES.get(name, name))
    if op_class is None:
        raise AttributeError(f"unknown op class {name}: `buddy-tui ops` lists all")
    return op_class

"""The name under which Buddy-MLIR's scripts import what `types` holds."""

from buddy.compiler.graph.types import DeviceType, TensorDType, TensorMeta

__all__ = ["DeviceType", "TensorDType", "TensorMeta"]

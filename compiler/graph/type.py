"""The name under which Buddy-MLIR's scripts import the contents of `types`."""

from buddy.compiler.graph.types import DeviceType, TensorDType, TensorMeta

__all__ = ["DeviceType", "TensorDType", "TensorMeta"]

"""The classes of `types`, under the module name that Buddy-MLIR's scripts import."""

from buddy.compiler.graph.types import DeviceType, TensorDType, TensorMeta

__all__ = ["DeviceType", "TensorDType", "TensorMeta"]

"""What all lowerings use: `Registry`, `LoweringError`, and the graph's element types, shapes and constants in MLIR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from buddy.compiler.graph.node import Op, argument, normalize_dim, permutation_of
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.protocol.errors import BuddyError

# Lowerings also import these functions of the graph package from here.
__all__ = [
    "Lowering", "LoweringError", "Registry", "Results", "SymbolTable", "TransientLoweringError", "argument", "constant",
    "constant_attribute", "meta_type", "mlir_element_type_get", "normalize_dim", "permutation_of", "tensor_type",
    "value_of",
]  # fmt: skip

# Maps (node name, result index) to the MLIR value of the result.
SymbolTable = Mapping[tuple[str, int], "ir.Value"]

# Unsigned integers lower to signless MLIR integers; the ops define the signedness.
_SIGNLESS_SPELLINGS = {dtype: dtype.value.removeprefix("u") for dtype in TensorDType if dtype.value.startswith("ui")}


def mlir_element_type_get(dtype: TensorDType) -> ir.Type:
    """Returns the MLIR element type of `dtype`, in the current context. The name is Buddy-MLIR's."""
    return ir.Type.parse(_SIGNLESS_SPELLINGS.get(dtype, dtype.value))


def mlir_shape(shape: Sequence[Dim | ir.Value]) -> list[int]:
    """Returns a shape for MLIR types: each size that is not a number becomes MLIR's marker for a dynamic size."""
    return [size if isinstance(size, int) else ir.ShapedType.get_dynamic_size() for size in shape]


def tensor_type(shape: Sequence[Dim], dtype: TensorDType) -> ir.Type:
    """Returns the MLIR type of a tensor."""
    return ir.RankedTensorType.get(mlir_shape(shape), mlir_element_type_get(dtype))


def meta_type(meta: TensorMeta) -> ir.Type:
    """Returns the MLIR type of the tensor that `meta` describes, in its stored shape and element type."""
    return tensor_type(meta.stored.shape, meta.stored.dtype)


def value_of(argument: object, symbol_table: SymbolTable) -> ir.Value:
    """Returns the MLIR value of a node argument that is a tensor.

    Raises `LoweringError` for any other argument.
    """
    if not isinstance(argument, Op):
        raise LoweringError(f"expected a tensor argument, not {argument!r}")
    return symbol_table[(str(argument), 0)]


def constant_attribute(value: bool | int | float, dtype: TensorDType) -> ir.Attribute:
    """Returns an attribute of `dtype`; bools and integers are converted as PyTorch converts a Python number."""
    element = mlir_element_type_get(dtype)
    if dtype.is_float:
        return ir.FloatAttr.get(element, float(value))
    if dtype is TensorDType.Bool:
        return ir.IntegerAttr.get(element, int(bool(value)))
    return ir.IntegerAttr.get(element, _wrap(int(value), element.width))


def constant(value: bool | int | float, dtype: TensorDType) -> ir.Value:
    """Emits an `arith.constant` of `dtype`."""
    return arith.constant(mlir_element_type_get(dtype), constant_attribute(value, dtype))


def _wrap(value: int, width: int) -> int:
    """Returns `value` modulo 2**width, as a signed number for MLIR's attribute."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


class LoweringError(BuddyError):
    """The registry cannot lower the node. The text is the reason, which the table of nodes shows."""


class TransientLoweringError(LoweringError):
    """The lowering failed for a temporary reason, so the result of this compilation must not be cached."""


# ---- registries of lowerings -----------------------------------------------------------------------------------------


# What a lowering returns: a value, an op with its results, or a value per result; `None` for a result without one.
Results = ir.Value | ir.Operation | Sequence[ir.Value | None]
Lowering = Callable[[Op, SymbolTable], Results]


class Registry(dict[str, Lowering]):
    """Lowerings by op class name.

    A lowering takes a node and the symbol table, and returns an MLIR value, an op, or a list of values.
    `absence_reasons` maps op class names to the reason why the dialect has no lowering of them, which the table of
    nodes shows.
    """

    def __init__(self, *registries: dict[str, Lowering]) -> None:
        """Makes a registry with the lowerings of `registries`, without their `absence_reasons`."""
        super().__init__()
        self.absence_reasons: dict[str, str] = {}
        for registry in registries:
            self.update(registry)

    def lowering(self, *names: str) -> Callable[[Lowering], Lowering]:
        """Registers the decorated function as the lowering of the op classes `names`."""

        def decorate(function: Lowering) -> Lowering:
            for name in names:
                self[name] = function
            return function

        return decorate

    def absence_reason(self, name: str) -> str:
        """Returns the reason why the registry has no lowering of the op class `name`."""
        return self.absence_reasons.get(name, f"no lowering of {name}")

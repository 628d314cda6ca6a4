"""The dialects of MLIR's bindings for the type checker, as `bindings.arith` and so on: what the project builds by them.

A function that builds an op with one result returns the value. Everything else of a dialect is `Any`: its op classes
but the most used, its enums, and the functions that the project does not use.
"""

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from buddy.compiler.mlir import ir

Builder: TypeAlias = Callable[..., ir.Value]
OpBuilder: TypeAlias = Callable[..., ir.OpView]

class Dialect(type):
    def __getattr__(cls, name: str) -> Any: ...

class arith(metaclass=Dialect):
    addf: ClassVar[Builder]
    addi: ClassVar[Builder]
    andi: ClassVar[Builder]
    bitcast: ClassVar[Builder]
    ceildivsi: ClassVar[Builder]
    ceildivui: ClassVar[Builder]
    cmpf: ClassVar[Builder]
    cmpi: ClassVar[Builder]
    constant: ClassVar[Builder]
    divf: ClassVar[Builder]
    divsi: ClassVar[Builder]
    divui: ClassVar[Builder]
    extf: ClassVar[Builder]
    extsi: ClassVar[Builder]
    extui: ClassVar[Builder]
    floordivsi: ClassVar[Builder]
    fptosi: ClassVar[Builder]
    index_cast: ClassVar[Builder]
    index_castui: ClassVar[Builder]
    maximumf: ClassVar[Builder]
    maxnumf: ClassVar[Builder]
    maxsi: ClassVar[Builder]
    maxui: ClassVar[Builder]
    minimumf: ClassVar[Builder]
    minnumf: ClassVar[Builder]
    minsi: ClassVar[Builder]
    minui: ClassVar[Builder]
    mulf: ClassVar[Builder]
    muli: ClassVar[Builder]
    negf: ClassVar[Builder]
    ori: ClassVar[Builder]
    remf: ClassVar[Builder]
    remsi: ClassVar[Builder]
    remui: ClassVar[Builder]
    select: ClassVar[Builder]
    shli: ClassVar[Builder]
    shrsi: ClassVar[Builder]
    shrui: ClassVar[Builder]
    sitofp: ClassVar[Builder]
    subf: ClassVar[Builder]
    subi: ClassVar[Builder]
    truncf: ClassVar[Builder]
    trunci: ClassVar[Builder]
    uitofp: ClassVar[Builder]
    xori: ClassVar[Builder]

class llvm(metaclass=Dialect):
    call_intrinsic: ClassVar[Builder]
    add: ClassVar[Builder]
    alloca: ClassVar[Builder]
    bitcast: ClassVar[Builder]
    getelementptr: ClassVar[Builder]
    load: ClassVar[Builder]
    mlir_addressof: ClassVar[Builder]
    mlir_constant: ClassVar[Builder]
    mul: ClassVar[Builder]
    sub: ClassVar[Builder]
    udiv: ClassVar[Builder]
    zext: ClassVar[Builder]

class math(metaclass=Dialect):
    absf: ClassVar[Builder]
    absi: ClassVar[Builder]
    atan2: ClassVar[Builder]
    copysign: ClassVar[Builder]
    ctlz: ClassVar[Builder]
    floor: ClassVar[Builder]
    fma: ClassVar[Builder]
    powf: ClassVar[Builder]
    sqrt: ClassVar[Builder]

class memref(metaclass=Dialect):
    AllocOp: ClassVar[OpBuilder]
    CollapseShapeOp: ClassVar[OpBuilder]
    DimOp: ClassVar[OpBuilder]
    ExpandShapeOp: ClassVar[OpBuilder]
    SubViewOp: ClassVar[OpBuilder]
    ViewOp: ClassVar[OpBuilder]
    alloc: ClassVar[Builder]
    extract_aligned_pointer_as_index: ClassVar[Builder]
    load: ClassVar[Builder]
    reinterpret_cast: ClassVar[Builder]

class tensor(metaclass=Dialect):
    cast: ClassVar[Builder]
    collapse_shape: ClassVar[Builder]
    empty: ClassVar[Builder]
    expand_shape: ClassVar[Builder]
    extract: ClassVar[Builder]
    extract_slice: ClassVar[Builder]
    insert: ClassVar[Builder]
    insert_slice: ClassVar[Builder]

class tosa(metaclass=Dialect):
    avg_pool2d: ClassVar[Builder]
    cast: ClassVar[Builder]
    clamp: ClassVar[Builder]
    concat: ClassVar[Builder]
    const: ClassVar[Builder]
    const_shape: ClassVar[Builder]
    equal: ClassVar[Builder]
    gather: ClassVar[Builder]
    matmul: ClassVar[Builder]
    max_pool2d: ClassVar[Builder]
    negate: ClassVar[Builder]
    pad: ClassVar[Builder]
    reshape: ClassVar[Builder]
    select: ClassVar[Builder]
    slice: ClassVar[Builder]
    tile: ClassVar[Builder]
    transpose: ClassVar[Builder]

class vector(metaclass=Dialect):
    bitcast: ClassVar[Builder]
    broadcast: ClassVar[Builder]
    extract: ClassVar[Builder]
    extract_strided_slice: ClassVar[Builder]
    fma: ClassVar[Builder]
    gather: ClassVar[Builder]
    insert: ClassVar[Builder]
    load: ClassVar[Builder]
    maskedload: ClassVar[Builder]
    reduction: ClassVar[Builder]
    shuffle: ClassVar[Builder]
    step: ClassVar[Builder]

class func(metaclass=Dialect):
    class FuncOp(ir.OpView):
        arg_attrs: ir.ArrayAttr
        def __init__(
            self,
            name: str,
            type: ir.FunctionType | tuple[list[ir.Type], list[ir.Type]],
            *,
            visibility: str | None = None,
            body_builder: Callable[..., object] | None = None,
            loc: ir.Location | None = None,
            ip: ir.InsertionPoint | None = None,
        ) -> None: ...
        @property
        def arguments(self) -> ir.BlockArgumentList: ...
        @property
        def body(self) -> ir.Region: ...
        @property
        def entry_block(self) -> ir.Block: ...
        @property
        def type(self) -> ir.FunctionType: ...
        def add_entry_block(self, arg_locs: list[ir.Location] | None = None) -> ir.Block: ...

class affine(metaclass=Dialect): ...
class bufferization(metaclass=Dialect): ...
class cf(metaclass=Dialect): ...

class linalg(metaclass=Dialect):
    contract: ClassVar[Builder]
    fill: ClassVar[Builder]
    transpose: ClassVar[OpBuilder]
    GenericOp: ClassVar[OpBuilder]

class scf(metaclass=Dialect): ...

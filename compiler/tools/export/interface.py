"""Describes the C interface of an exported program: its tensors, symbolic sizes, and the arguments of its entry.

Also names element types in safetensors, C and NumPy, lists reserved words, and defines the error of an export.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.types import NodeType, TensorDType
from buddy.compiler.protocol import OPERATOR_GUIDE, Assignment
from buddy.compiler.protocol.artifact import Argument as EntryArgument
from buddy.compiler.protocol.artifact import Artifact, EagerCall, TensorSpec
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import EAGER

if TYPE_CHECKING:
    from buddy.compiler.graph.graph import Graph


class ExportError(BuddyError):
    """A program cannot be exported; `diagnostic` says why, and what to do."""

    def __init__(self, what: str, where: str = "", todo: str = "", detail: str = "") -> None:
        super().__init__(what, where, todo, detail=detail)


# ---- names -----------------------------------------------------------------------------------------------------------


class ElementType(NamedTuple):
    """An element type: its name in safetensors, in C and in NumPy, and its size in bytes.

    A type that C11 or NumPy lacks is stored there as integers with the same bits, and `note` names the type.
    """

    safetensors: str
    c: str
    numpy: str
    bytes: int
    note: str = ""


_ELEMENT_TYPES = {
    TensorDType.Bool: ElementType("BOOL", "uint8_t", "bool", 1, "0 or 1"),
    TensorDType.UInt8: ElementType("U8", "uint8_t", "uint8", 1),
    TensorDType.UInt16: ElementType("U16", "uint16_t", "uint16", 2),
    TensorDType.UInt32: ElementType("U32", "uint32_t", "uint32", 4),
    TensorDType.UInt64: ElementType("U64", "uint64_t", "uint64", 8),
    TensorDType.Int8: ElementType("I8", "int8_t", "int8", 1),
    TensorDType.Int16: ElementType("I16", "int16_t", "int16", 2),
    TensorDType.Int32: ElementType("I32", "int32_t", "int32", 4),
    TensorDType.Int64: ElementType("I64", "int64_t", "int64", 8),
    TensorDType.Float8E4M3FN: ElementType("F8_E4M3", "uint8_t", "uint8", 1, "the bits of a float8_e4m3fn"),
    TensorDType.Float8E5M2: ElementType("F8_E5M2", "uint8_t", "uint8", 1, "the bits of a float8_e5m2"),
    # The safetensors format has no names for these.
    TensorDType.Float8E4M3FNUZ: ElementType("U8", "uint8_t", "uint8", 1, "the bits of a float8_e4m3fnuz"),
    TensorDType.Float8E5M2FNUZ: ElementType("U8", "uint8_t", "uint8", 1, "the bits of a float8_e5m2fnuz"),
    TensorDType.Float16: ElementType("F16", "uint16_t", "float16", 2, "the bits of an IEEE half"),
    TensorDType.BFloat16: ElementType("BF16", "uint16_t", "uint16", 2, "the bits of a bfloat16"),
    TensorDType.Float32: ElementType("F32", "float", "float32", 4),
    TensorDType.Float64: ElementType("F64", "double", "float64", 8),
}


def element_of(dtype: str) -> ElementType:
    """Returns the element type of a `TensorSpec`; for complex numbers, that of their parts."""
    return _ELEMENT_TYPES[TensorDType(dtype).part]


def stored_shape(spec: TensorSpec) -> tuple[int | str, ...]:
    """Returns the shape in memory: complex numbers are pairs of floats along an additional last dim."""
    return (*spec.shape, 2) if TensorDType(spec.dtype).is_complex else tuple(spec.shape)


# The keywords of C and C++.
_KEYWORDS = (
    "and asm auto bool break case catch char class compl concept const constexpr continue default delete do double "
    "else enum explicit export extern false float for friend goto if inline int long main mutable namespace new not "
    "nullptr operator or private protected public register requires restrict return short signed sizeof static "
    "struct switch template this throw true try typedef typeid typename typeof union unsigned using virtual void "
    "volatile while xor"
)
# The functions of <math.h> (C17, 7.12); each also exists for `float`, with the suffix `f`.
LIBM_FUNCTIONS = frozenset(re.findall(
    r"\w+",
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma "
    "fmax fmin fmod hypot ldexp lgamma log log10 log1p log2 nearbyint pow remainder rint round roundeven sin "
    "sincos sinh sqrt tan tanh tgamma trunc",
))  # fmt: skip
# Other functions and types of the headers that the loader includes (C17, POSIX, and glibc's additions).
_LIBRARY_NAMES = (
    "abort abs access alarm atexit atof atoi atol bcmp bcopy brk bsearch bzero chdir chmod chown chroot clock close "
    "creat ctime daemon difftime div dprintf drand48 dup dysize encrypt erand48 errno execl execv exit fchmod fclose "
    "fdatasync fdim fdopen feof ferror ffs fflush fgetc fgets fileno finite fopen fork fprintf fpclassify fputc fputs "
    "fread frexp fscanf fseek fstat fsync ftell ftruncate fwrite gamma getc getchar getenv getline getopt getpid "
    "gmtime ilogb index isatty isfinite isinf isnan isnormal j0 j1 jn kill labs ldiv link llabs llrint llround "
    "localtime lockf logb lrand48 lrint lround lseek lstat madvise memccpy memchr memcmp memcpy memmem memmove memset "
    "mincore mkdir mkfifo mknod mktime mlock mmap modf mprotect mremap msync munlock munmap nan nanosleep nextafter "
    "nice nrand48 open openat optarg optind pause pclose perror pipe popen pread printf profil puts putc putchar "
    "pwrite qsort quad_t raise rand random read readlink realloc remove rename rewind rindex rmdir sbrk scalb scanf "
    "setbuf setenv setsid significand signbit signgam sleep snprintf sprintf srand srandom stat stderr stdin stdout "
    "stime stpcpy strcat strchr strcmp strcpy strdup strlen strncat strncmp strrchr strsep strstr strtod strtok "
    "strtol swab symlink sync syscall system tee tempnam time timegm timer_t timezone tmpfile tmpnam truncate tzname "
    "tzset ulong umask uint ungetc unlink usleep utime vfork vprintf write y0 y1 yn"
)
# Parts of the C sources whose words are not reserved: comments, string literals, and names with the program's name.
_NOT_IDENTIFIERS = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|PROGRAM\w*", re.DOTALL)


@lru_cache(maxsize=1)
def reserved_words() -> frozenset[str]:
    """Returns the lower-case names that an exported program must not have, because C, C++ or the loader uses them."""
    texts = [path.read_text(encoding="utf-8") for path in resources.files(__package__).joinpath("c").iterdir()]
    words = {word for text in texts for word in re.findall(r"\b[a-z]\w*", _NOT_IDENTIFIERS.sub(" ", text))}
    return frozenset(
        {*words, *_KEYWORDS.split(), *_LIBRARY_NAMES.split(), *LIBM_FUNCTIONS, *(f"{name}f" for name in LIBM_FUNCTIONS)}
    )


# ---- the interface ---------------------------------------------------------------------------------------------------


_C_NAME = re.compile(r"[a-z]\w*", re.ASCII)
# The characters of a name, and those that `c_name` takes from a text: it may add `program_` and `_program`.
_MAX_NAME_LENGTH, _MAX_TEXT_LENGTH = 64, 48


@dataclass(frozen=True)
class ExportTensor:
    """A dense row-major tensor of the interface; symbolic sizes are texts, as in `TensorSpec`."""

    name: str
    shape: tuple[int | str, ...]
    element: ElementType

    @property
    def empty(self) -> bool:
        """True if the tensor is empty in every call; such tensors are not passed."""
        return 0 in self.shape


@dataclass(frozen=True)
class ExportArgument:
    """An argument of the entry, the compiled function: input number `input` or weight number `weight`; the other is -1.

    If `pack` is set, the loader packs the tensor into `bytes` bytes with that function. If only `bytes` is set, it
    copies a weight to memory that is fast to read. Otherwise it passes the tensor unchanged.
    """

    input: int
    weight: int
    pack: str = ""
    bytes: int = 0


@dataclass(frozen=True)
class SizeSource:
    """The source of symbolic size `name`: dim `dim` of input `input`, or scalar argument `dim` if `input` is -1."""

    name: str
    input: int
    dim: int


@dataclass(frozen=True)
class ProgramInterface:
    """The interface of a program.

    `sources` are the numbers of the graph's placeholders: first those of `inputs`, then those of `weights`.
    `rejections` has (symbol, error message) of each function that compiled code calls if eager would reject a value.
    `entry` is the symbol of the compiled function, `arena` the bytes of scratch memory that it needs.
    """

    name: str
    inputs: tuple[ExportTensor, ...]
    weights: tuple[ExportTensor, ...]
    outputs: tuple[ExportTensor, ...]
    arguments: tuple[ExportArgument, ...]
    sizes: tuple[SizeSource, ...]
    sources: tuple[tuple[int, ...], tuple[int, ...]]
    rejections: tuple[tuple[str, str], ...]
    entry: str
    arena: int
    threads: int

    @property
    def packs(self) -> tuple[str, ...]:
        """Returns the packing functions of the arguments, in order; arguments may share one."""
        return tuple(argument.pack for argument in self.arguments if argument.pack)

    @property
    def arity(self) -> int:
        """Returns the number of pointers and sizes that the entry takes."""
        passed_outputs = sum(not output.empty for output in self.outputs)
        return len(self.arguments) + len(self.sizes) + passed_outputs + bool(self.arena)


def interface_of(name: str, graph: Graph, artifact: Artifact, assignments: Sequence[Assignment]) -> ProgramInterface:
    """Returns the C interface, under `name`, of the program `artifact`, which was compiled from `graph`.

    Raises `ExportError` for an unusable name, for ops that run in eager, for code for a GPU or with counters, and for
    inputs that are packed before the call.
    """
    check_name(name)
    reject_eager(assignments, artifact)
    inputs = [number for number, kind in enumerate(graph.kinds) if kind is NodeType.InputNode]
    sources = dict.fromkeys(argument.source for argument in artifact.arguments)
    weights = [number for number in sources if number not in inputs]
    input_positions = {number: position for position, number in enumerate(inputs)}
    weight_positions = {number: position for position, number in enumerate(weights)}
    results = [op for op in graph.results if isinstance(op, Op)]
    specs = [TensorSpec(tuple(op.tensor_meta.shape), op.tensor_meta.dtype.value) for op in graph.placeholders]
    names = [op.stable or op.name for op in graph.placeholders]
    return ProgramInterface(
        name,
        tuple(_tensor(names[number], specs[number]) for number in inputs),
        tuple(_tensor(names[number], specs[number]) for number in weights),
        tuple(_tensor(op.stable or op.name, spec) for op, spec in zip(results, artifact.results, strict=True)),
        tuple(_argument(argument, input_positions, weight_positions) for argument in artifact.arguments),
        tuple(
            SizeSource(symbol.name, input_positions.get(symbol.source, -1), symbol.index) for symbol in artifact.symbols
        ),
        (tuple(inputs), tuple(weights)),
        tuple((call.symbol, _rejection_text(call)) for call in artifact.eager_calls),
        artifact.entry,
        artifact.arena,
        artifact.threads,
    )


def check_name(name: str) -> None:
    """Raises `ExportError` if `name` is not usable for functions and files in C and C++."""
    if not _C_NAME.fullmatch(name) or name in reserved_words() or len(name) > _MAX_NAME_LENGTH:
        todo = "choose a name of lower-case letters, digits and _ that C and its library do not use (--name)"
        raise ExportError(f"{name!r} is not a valid name for C functions", "the export", todo)


def c_name(text: str) -> str:
    """Returns a valid C name made from any text."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()[:_MAX_TEXT_LENGTH]
    name = name if name[:1].isalpha() else f"program_{name}".rstrip("_")
    return f"{name}_program" if name in reserved_words() else name


def reject_eager(assignments: Sequence[Assignment], artifact: Artifact) -> None:
    """Raises `ExportError` if nodes run in eager, or if the code is for a GPU, counts time or records values."""
    in_eager = [assignment for assignment in assignments if assignment.lowering == EAGER]
    if in_eager:
        reasons = "\n".join(f"{assignment.node}: {assignment.reason}" for assignment in in_eager)
        nodes = ", ".join(assignment.node for assignment in in_eager[:3]) + (", …" if len(in_eager) > 3 else "")
        todo = (
            f"add lowerings for these ops ({OPERATOR_GUIDE}), use other ops, or export the part of the "
            "program between them (`buddy-tui extract`)"
        )
        raise ExportError(f"{len(in_eager)} nodes run in eager PyTorch: {nodes}", "the program", todo, reasons)
    if artifact.device is not None:
        raise ExportError("this code is for a GPU", "the recipe", "choose a recipe whose code is for a CPU")
    if artifact.regions or artifact.observed:
        raise ExportError(
            "this code counts time or records values", "the recipe", "export the program without counters"
        )


def _tensor(name: str, spec: TensorSpec) -> ExportTensor:
    return ExportTensor(
        name, tuple(s if isinstance(s, int) else str(s) for s in stored_shape(spec)), element_of(spec.dtype)
    )


def _argument(argument: EntryArgument, inputs: dict[int, int], weights: dict[int, int]) -> ExportArgument:
    """Returns an argument of the entry; `inputs` and `weights` map numbers of placeholders to positions.

    Raises `ExportError` for an input that is packed.
    """
    weight = weights.get(argument.source, -1)
    if weight < 0 and argument.pack:
        raise ExportError(
            f"input {inputs[argument.source]} is packed before the call, which is only allowed for weights",
            "the recipe",
            "switch off packing (option pack-weights=false of contractions-to-kernels and convolutions-to-kernels)",
        )
    is_copied = bool(argument.pack) or (argument.streamed and weight >= 0)
    sizes = [size for size in stored_shape(argument.spec) if isinstance(size, int)]
    copy_bytes = math.prod(sizes) * element_of(argument.spec.dtype).bytes if is_copied else 0
    return ExportArgument(inputs.get(argument.source, -1), weight, argument.pack, copy_bytes)


def _rejection_text(call: EagerCall) -> str:
    op = call.target.removesuffix(".default").split(".")[0]
    return f"{op}: only eager PyTorch computes this" if call.results else f"{op}: eager PyTorch raises an error here"

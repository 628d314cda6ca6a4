"""Names the element types of exported programs in safetensors, C and NumPy, and lists reserved words."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.protocol.artifact import TensorSpec


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

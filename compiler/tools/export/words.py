"""Names that an exported program cannot have, because C, C++, their libraries or the generated sources use them."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources

_LANGUAGES = (
    "and asm auto bool break case catch char class compl concept const constexpr continue default delete do double "
    "else enum explicit export extern false float for friend goto if inline int long main mutable namespace new not "
    "nullptr operator or private protected public register requires restrict return short signed sizeof static "
    "struct switch template this throw true try typedef typeid typename typeof union unsigned using virtual void "
    "volatile while xor"
)
# C17, 7.12: each also for `float` with the suffix `f`.
LIBM = frozenset(re.findall(
    r"\w+",
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma "
    "fmax fmin fmod hypot ldexp lgamma log log10 log1p log2 nearbyint pow remainder rint round roundeven sin "
    "sincos sinh sqrt tan tanh tgamma trunc",
))  # fmt: skip
# Other functions and types of the included headers (C17, POSIX, and glibc's additions).
_LIBRARIES = (
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
# Comments, string literals, and the placeholder of the program's own name in the sources.
_NO_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|PROGRAM\w*", re.DOTALL)


@lru_cache(maxsize=1)
def reserved_words() -> frozenset[str]:
    """All such names in lower case."""
    texts = [path.read_text(encoding="utf-8") for path in resources.files(__package__).joinpath("c").iterdir()]
    words = {word for text in texts for word in re.findall(r"\b[a-z]\w*", _NO_CODE.sub(" ", text))}
    return frozenset({*words, *_LANGUAGES.split(), *_LIBRARIES.split(), *LIBM, *(f"{name}f" for name in LIBM)})

"""A packaged OpenBLAS: which one there is, what its matrix products are called here, and where they are in memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path

# "none" makes every library count as absent.
VARIABLE = "BUDDY_BLAS"

_LETTERS = {"f32": "s", "f64": "d"}


@dataclass(frozen=True)
class Blas:
    """A shared library with `cblas_?gemm`, whose integers are `index_bits` wide; `package` names its wheel."""

    package: str
    path: str
    index_bits: int

    @property
    def _suffix(self) -> str:
        return "64_" if self.index_bits == 64 else ""

    def exported(self, name: str) -> str:
        """What the library calls the function `name`: these wheels give every symbol a prefix of their own."""
        return f"scipy_{name}{self._suffix}"

    def load(self, threads: int) -> ctypes.CDLL:
        """The library in this process, told how many threads a product may use (process-wide, as OpenBLAS has it)."""
        library = ctypes.CDLL(self.path)
        getattr(library, self.exported("openblas_set_num_threads"))(threads)
        return library


def symbol(element: str, index_bits: int) -> str:
    """What compiled code calls the product of `element` ("f32" or "f64"); the runner gives it the library's address."""
    return f"buddy_cblas_{_LETTERS[element]}gemm_{index_bits}"


def find() -> Blas | None:
    """The wheel `scipy-openblas32`, else the library inside NumPy's wheel; `None` where neither is there."""
    return None if os.environ.get(VARIABLE) == "none" else _find()


@lru_cache(maxsize=1)
def _find() -> Blas | None:
    for module, bits, folders in (
        ("scipy_openblas32", 32, ("lib",)),
        ("numpy", 64, ("../numpy.libs", ".dylibs")),
    ):
        spec = util.find_spec(module)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            paths = [Path(place, folder) for folder in folders]
            if (path := _library_in(paths, bits)) is not None:
                return Blas(f"{module} {_version(module)}", str(path), bits)
    return None


def _library_in(folders: Iterable[Path], bits: int) -> Path | None:
    stem = "*scipy_openblas64_*" if bits == 64 else "*scipy_openblas*"
    found = (path for folder in folders for path in sorted(folder.glob(stem)))
    return next((path for path in found if {".so", ".dylib", ".dll"} & set(path.suffixes)), None)


def _version(module: str) -> str:
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return ""


def addresses(objects: Sequence[bytes], threads: int) -> dict[str, int]:
    """The library's functions under the names that `objects` call them by; empty where they call none.

    A name that no library here has is left out, and linking then names it.
    """
    wanted = [(e, bits) for e in _LETTERS for bits in (32, 64) if any(symbol(e, bits).encode() in o for o in objects)]
    blas = find() if wanted else None
    if blas is None:
        return {}
    library = blas.load(threads)
    return {
        symbol(element, bits): _address(library, blas.exported(f"cblas_{_LETTERS[element]}gemm"))
        for element, bits in wanted
        if bits == blas.index_bits
    }


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

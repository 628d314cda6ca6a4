"""Finds a packaged OpenBLAS, the names of its matrix products in compiled code, and their addresses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path

# The environment variable whose value "none" disables the library.
ENVIRONMENT_VARIABLE = "BUDDY_BLAS"

# The letters of the element types in BLAS names, as in `sgemm`.
_TYPE_LETTERS = {"f32": "s", "f64": "d"}


@dataclass(frozen=True)
class Blas:
    """A shared library with `cblas_?gemm`, whose integers are `index_bits` wide; `package` names its wheel."""

    package: str
    path: str
    index_bits: int

    @property
    def _suffix(self) -> str:
        return "64_" if self.index_bits == 64 else ""

    def exported_name(self, name: str) -> str:
        """Returns the library's name of the function `name`: these wheels add a prefix to every symbol."""
        return f"scipy_{name}{self._suffix}"

    def load(self, threads: int) -> ctypes.CDLL:
        """Loads the library into this process and sets its threads per product (process-wide in OpenBLAS)."""
        library = ctypes.CDLL(self.path)
        getattr(library, self.exported_name("openblas_set_num_threads"))(threads)
        return library


def gemm_symbol(element: str, index_bits: int) -> str:
    """Returns the symbol that compiled code calls for a matrix product of `element` ("f32" or "f64").

    The runner defines it, with an address from `gemm_addresses`.
    """
    return f"buddy_cblas_{_TYPE_LETTERS[element]}gemm_{index_bits}"


def find_blas() -> Blas | None:
    """Returns the library of an installed wheel, or `None`, also if `BUDDY_BLAS` is "none"."""
    return None if os.environ.get(ENVIRONMENT_VARIABLE) == "none" else _find_installed()


@lru_cache(maxsize=1)
def _find_installed() -> Blas | None:
    """Returns the library of the wheel `scipy-openblas32`, else the one in NumPy's wheel, or `None`."""
    # Folders of libraries relative to the package: `auditwheel` creates `numpy.libs` on Linux, `delocate` creates
    # `.dylibs` on macOS.
    for module, bits, folders in (
        ("scipy_openblas32", 32, ("lib",)),
        ("numpy", 64, ("../numpy.libs", ".dylibs")),
    ):
        spec = util.find_spec(module)
        package_folders = (spec.submodule_search_locations or ()) if spec is not None else ()
        for package_folder in package_folders:
            library_folders = [Path(package_folder, folder) for folder in folders]
            if (path := _find_library(library_folders, bits)) is not None:
                return Blas(f"{module} {_package_version(module)}", str(path), bits)
    return None


def _find_library(folders: Iterable[Path], bits: int) -> Path | None:
    """Returns the library with integers of `bits` bits in the first of `folders` that has one."""
    pattern = "*scipy_openblas64_*" if bits == 64 else "*scipy_openblas*"
    paths = (path for folder in folders for path in sorted(folder.glob(pattern)))
    return next((path for path in paths if {".so", ".dylib", ".dll"} & set(path.suffixes)), None)


def _package_version(module: str) -> str:
    """Returns the version of the wheel with `module`, "" if it is unknown."""
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return ""


def gemm_addresses(objects: Sequence[bytes], threads: int) -> dict[str, int]:
    """Returns the addresses of the library's functions, by the symbols that `objects`, object files, call.

    A symbol that the library does not have is left out; the linker then reports it. Sets the library's number of
    threads per product to `threads`.
    """
    called = [(element, bits) for element in _TYPE_LETTERS for bits in (32, 64) if _is_called(element, bits, objects)]
    blas = find_blas() if called else None
    if blas is None:
        return {}
    library = blas.load(threads)
    return {
        gemm_symbol(element, bits): _function_address(
            library, blas.exported_name(f"cblas_{_TYPE_LETTERS[element]}gemm")
        )
        for element, bits in called
        if bits == blas.index_bits
    }


def _is_called(element: str, index_bits: int, objects: Sequence[bytes]) -> bool:
    """Returns whether one of `objects` calls the symbol of `gemm_symbol`."""
    # An object file has the names of the symbols that it calls as plain bytes in its string table.
    symbol = gemm_symbol(element, index_bits).encode()
    return any(symbol in object_file for object_file in objects)


def _function_address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

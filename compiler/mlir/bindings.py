"""Selects the package of the MLIR Python bindings for the whole project, also for scripts that import `mlir`.

`BUDDY_MLIR_PACKAGE` names it (`torch_mlir`, `mlir`, `buddy_mlir`, …); the default is the `torch_mlir` wheel. Every
module of the project imports `from buddy.compiler.mlir.bindings import ir, linalg`, never `import torch_mlir`.
Importing this module does not load the bindings; the first access to one of their modules does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from buddy.compiler.protocol.errors import BuddyError

if TYPE_CHECKING:
    # `ir.pyi` and `dialects.pyi` declare the parts of the bindings that the project uses.
    from buddy.compiler.mlir import dialects
    from buddy.compiler.mlir import ir as ir

    affine = dialects.affine
    arith = dialects.arith
    bufferization = dialects.bufferization
    cf = dialects.cf
    func = dialects.func
    linalg = dialects.linalg
    llvm = dialects.llvm
    math = dialects.math
    memref = dialects.memref
    scf = dialects.scf
    tensor = dialects.tensor
    tosa = dialects.tosa
    vector = dialects.vector

PACKAGE_VARIABLE = "BUDDY_MLIR_PACKAGE"
PACKAGE = os.environ.get(PACKAGE_VARIABLE) or "torch_mlir"

_MODULES = ("ir", "passmanager", "execution_engine", "rewrite", "runtime")
_DIALECTS = (
    "affine", "arith", "bufferization", "cf", "func", "linalg", "llvm", "math", "memref", "scf", "tensor", "tosa",
    "vector",
)  # fmt: skip


class BindingsError(BuddyError, ModuleNotFoundError):
    """The bindings cannot be imported; `diagnostic` says what was found, and what to do."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what, "MLIR's Python bindings", todo)


def _load(name: str) -> ModuleType:
    """Returns the module `name` of the package. Raises `BindingsError` if it cannot be imported."""
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except BindingsError:
        raise
    except (ImportError, RuntimeError, AttributeError, TypeError, ValueError, OSError) as error:
        # A package that is built incompletely fails in many ways, so the diagnostic includes the original error.
        raise _bindings_error(name, error) from error


def _bindings_error(name: str, error: Exception) -> BindingsError:
    """Returns the error for the module `name` of the package, which could not be imported because of `error`."""
    is_configured = bool(os.environ.get(PACKAGE_VARIABLE))
    subject = f"{PACKAGE_VARIABLE}={PACKAGE}" if is_configured else f"{PACKAGE}, the package of MLIR's bindings,"
    folder = _folder_of(PACKAGE)
    lacks_module = isinstance(error, ModuleNotFoundError) and str(error.name).startswith(PACKAGE)
    if not folder:
        what = f"{subject} " + ("is not found by Python" if is_configured else "is not installed")
    elif lacks_module:
        what = f"{subject} is the package in {folder}, which has no module {name}"
    else:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        what = f"{subject} is the package in {folder}, whose module {name} does not load: {reason}"
    own_build = (
        f"set {PACKAGE_VARIABLE} to the import name of your build's bindings (mlir), and add their folder to PYTHONPATH"
    )
    return BindingsError(what, f"{own_build}; or unset it to use torch-mlir's (`pip install torch-mlir`)")


def _folder_of(package: str) -> str:
    """Returns the folder of a package, without loading it if possible; "" if it does not exist."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, AttributeError, TypeError, ValueError):
        return ""
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return folders[0] if folders else ""


def __getattr__(name: str) -> ModuleType:
    """Loads a module of the bindings when it is first used: Python calls this for names that this module lacks."""
    if name in _MODULES:
        return _load(name)
    if name in _DIALECTS:
        return _load(f"dialects.{name}")
    raise AttributeError(name)


@lru_cache(maxsize=1)
def version() -> str:
    """Returns the version of the package of the bindings; "local" and a hash if it is not an installed package.

    The version is a part of the keys of disk caches, so the hash changes with each new build. Loads the bindings only
    if they are not an installed package and have no folder `_mlir_libs`.
    """
    with contextlib.suppress(metadata.PackageNotFoundError):
        installed = metadata.distribution(PACKAGE.replace("_", "-"))
        # A local build may have the name of a package that is installed as well.
        if Path(str(installed.locate_file(PACKAGE))).resolve() == Path(_folder_of(PACKAGE)).resolve():
            return installed.version
    folder = package_folder()
    files = libraries_in([folder / "_mlir_libs"]) if folder and (folder / "_mlir_libs").is_dir() else libraries()
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return f"local-{hashlib.sha256(repr(states).encode()).hexdigest()[:12]}"


def libraries() -> list[Path]:
    """Returns the shared libraries of the bindings."""
    return libraries_in(Path(folder) for folder in _load("_mlir_libs").get_lib_dirs())


def libraries_in(folders: Iterable[Path]) -> list[Path]:
    """Returns the shared libraries in `folders`. Raises `OSError` if one cannot be read."""
    return sorted(path for folder in folders for path in folder.iterdir() if path.suffix in (".so", ".dylib", ".pyd"))


def package_folder() -> Path | None:
    """Returns the folder of the package without loading it; `None` for a nested package, or if it is not found."""
    folder = "" if "." in PACKAGE else _folder_of(PACKAGE)
    return Path(folder) if folder else None


def package() -> ModuleType:
    """Returns the package of the bindings."""
    _load("ir")
    return sys.modules[PACKAGE]


def torch_dialect() -> ModuleType | None:
    """Returns the torch dialect, which does not need torch; `None` if the package of the bindings lacks it."""
    try:
        return importlib.import_module(f"{PACKAGE}.dialects.torch")
    except ModuleNotFoundError:
        return None


def register_external_dialects(context: ir.Context) -> None:
    """Registers in `context` the bindings' dialects that are not part of MLIR: torch's and StableHLO."""
    if (dialect := torch_dialect()) is not None:
        dialect.register_dialect(context)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(f"{PACKAGE}._mlir_libs._stablehlo").register_dialect(context)


class FxGraphImporter(NamedTuple):
    """torch-mlir's importer of FX graphs, and the decompositions that it expects.

    `create` makes an importer for an MLIR context.
    """

    create: Callable[[Any], Any]
    decompositions: Callable[[], dict[Any, Any]]


def fx_graph_importer() -> FxGraphImporter:
    """Returns the importer of FX graphs, which imports torch; only the `torch_mlir` package has it."""
    importer, table = _load("extras.fx_importer"), _load("extras.fx_decomp_util")
    return FxGraphImporter(lambda context: importer.FxImporter(context=context), table.get_decomposition_table)


def onnx_importer() -> ModuleType:
    """Returns torch-mlir's importer of ONNX models, which imports onnx; only the `torch_mlir` package has it."""
    return _load("extras.onnx_importer")


def exported_program_importer() -> ModuleType:
    """Returns torch-mlir's importer of exported programs, which imports torch; only the `torch_mlir` package has it."""
    return _load("fx")


def install_alias(name: str) -> ModuleType:
    """Makes `name.x` an alias of module `x` of the bindings; returns the bindings' package.

    Raises `BindingsError` if the bindings are not found, and `ModuleNotFoundError` if `name` is the package itself.
    """
    if name == PACKAGE.partition(".")[0]:
        # `BUDDY_MLIR_PACKAGE` is this name, but Python has not found such a package.
        raise ModuleNotFoundError(f"no build of MLIR is on the path, so there is no package {name}", name=name)
    # First among the finders, since Python's own finder would load each module a second time.
    sys.meta_path.insert(0, _AliasFinder(name))
    return package()


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the bindings' modules under an alias, without loading them again: a second load would abort the process."""

    def __init__(self, name: str) -> None:
        self._prefix = f"{name}."
        # The specs of modules that Python is loading under the alias, by the module's id.
        self._specs: dict[int, Any] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(self._prefix):
            return None
        try:
            module = self._load_real(fullname)
        except ModuleNotFoundError:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=hasattr(module, "__path__"))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = self._load_real(spec.name)
        self._specs[id(module)] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Executes nothing, and restores the module's spec, which Python has replaced by that of the alias."""
        module.__spec__ = self._specs.pop(id(module))

    def _load_real(self, fullname: str) -> ModuleType:
        return import_module(f"{PACKAGE}.{fullname.removeprefix(self._prefix)}")


# ---- the documentation of ops ----------------------------------------------------------------------------------------


# The names of the bindings' modules, by the dialects that have another name than their module.
_MODULE_NAMES = {"omp": "openmp"}


def op_documentation(name: str) -> str:
    """Returns the documentation of op `name` (`dialect.op`), "" if the bindings have none."""
    op = _op_class(name)
    for cls in op.__mro__ if op is not None else ():
        # The generated class has the documentation and defines the op's name; the bindings' extensions subclass it.
        if "OPERATION_NAME" in vars(cls) and cls.__doc__:
            return inspect.cleandoc(cls.__doc__)
    return ""


def _op_class(name: str) -> type[object] | None:
    """Returns the bindings' class of an op, the most derived one if there are several, or `None`."""
    dialect = name.partition(".")[0]
    if not dialect.isidentifier():
        return None
    try:
        module = importlib.import_module(f"{PACKAGE}.dialects.{_MODULE_NAMES.get(dialect, dialect)}")
    except ImportError:
        return None
    classes = (value for value in vars(module).values() if inspect.isclass(value))
    matches = [cls for cls in classes if getattr(cls, "OPERATION_NAME", "") == name]
    return max(matches, key=lambda cls: len(cls.__mro__), default=None)

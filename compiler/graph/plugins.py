"""Plug-ins: external code that adds op classes, lowerings, decompositions, graph passes, passes and backends.

An installed package names a module or a function in the entry point group `buddy.plugins`; a user's file is given by
its path. Both register their contents when they are loaded. The error of a plug-in becomes a `Diagnostic`, and affects
neither other plug-ins nor the compiler. This module imports neither torch nor MLIR, so a registry counts as empty until
its module has been imported; plug-ins may import both.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal, TypeVar

from buddy.compiler.graph.node import op_classes
from buddy.compiler.graph.transform import transforms
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.recipe import PluginFile, digest

Rule = TypeVar("Rule", bound=Callable[..., Any])

_RULES: dict[str, Callable[..., Any]] = {}


def decomposition(*targets: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the decomposition of the ops `targets` on capture, before all other rules.

    Targets are spelled as in an op class: ATen's without `aten.`, others in full, such as `"demo.squareplus.default"`.
    The function takes the op's arguments, including tensors, and returns its results in terms of other ops, or
    `NotImplemented` for a case that it does not handle.
    """

    def decorate(rule: Rule) -> Rule:
        for target in targets:
            _RULES[target] = rule
        return rule

    return decorate


def registered() -> dict[str, Callable[..., Any]]:
    """Returns the decompositions of plug-ins, by target."""
    return dict(_RULES)


Kind = Literal["op class", "lowering", "decomposition", "graph pass", "MLIR pass", "backend"]
# The key of an entry: a lowering is `linalg.AddOp`, a decomposition its target.
Key = tuple[Kind, str]

_OURS = "buddy.compiler."
DIALECTS = ("linalg", "math", "tosa")


def plugin_registrations() -> dict[Key, Any]:
    """Returns the entries of all registries that are defined outside of this package."""
    return {key: entry for key, entry in _all_entries() if not is_ours(entry)}


def is_ours(entry: Any) -> bool:
    """True if a class or function is defined in this package."""
    return str(getattr(entry, "__module__", "")).startswith(_OURS)


def code_hash(entries: Iterable[Any]) -> str:
    """Returns a hash of the files that define `entries`; "" if there are no entries."""
    files = sorted({_file(entry) for entry in entries})
    return digest(*[_content(file) for file in files]) if files else ""


def _all_entries() -> Iterator[tuple[Key, Any]]:
    for name, cls in op_classes().items():
        yield ("op class", name), cls
    for dialect in DIALECTS:
        for name, lowering in getattr(sys.modules.get(f"{_OURS}ops.{dialect}"), "ops_registry", {}).items():
            yield ("lowering", f"{dialect}.{name}"), lowering
    for target, rule in registered().items():
        yield ("decomposition", target), rule
    for name, transform in transforms().items():
        yield ("graph pass", name), transform
    modules: dict[Kind, str] = {"MLIR pass": "passes.base", "backend": "driver.backends"}
    for kind, module in modules.items():
        registry = getattr(sys.modules.get(_OURS + module), "registered", dict)
        for name, found in registry().items():
            yield (kind, name), found


def _file(entry: Any) -> str:
    code = getattr(entry, "__code__", None)
    return code.co_filename if code else str(getattr(sys.modules.get(entry.__module__), "__file__", ""))


def _content(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return file


GROUP = "buddy.plugins"
_PACKAGE = str(Path(__file__).parent.parent)
_HINT = "correct it, or remove it; its registrations up to the error remain"
_CHANGED = "open the program again"
_NO_PASS = "decorate its passes with `register` (MLIR) or `graph_pass`, or load it with --plugin"


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in: a name to show, and its error, if it failed."""

    name: str
    problem: Diagnostic | None = None


# The plug-in that registered each external entry.
_origins: dict[Key, tuple[str, Any]] = {}
_files: dict[PluginFile, Plugin] = {}


@lru_cache(maxsize=1)
def installed_plugins() -> tuple[Plugin, ...]:
    """Returns the plug-ins of installed packages by name; the first call in a process loads them."""
    found = sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return tuple(_load(_label(point), _importer(point), _location(point.module)) for point in found)


def load_file(file: PluginFile) -> Plugin:
    """Loads the plug-in in a file, once per process, and checks its hash."""
    if file not in _files:
        path, before = Path(file.path), plugin_registrations()
        found = _load(path.name, lambda: _execute(file), str(path))
        if file.passes and found.problem is None and not _passes_in(registered_since(before)):
            found = Plugin(path.name, Diagnostic(f"plug-in {path.name} registers no pass", str(path), _NO_PASS))
        _files[file] = found
    return _files[file]


def _passes_in(keys: Iterable[Key]) -> list[str]:
    return [name for kind, name in keys if kind in ("graph pass", "MLIR pass")]


def plugin_problems(plugins: Sequence[Plugin]) -> tuple[Diagnostic, ...]:
    """Returns the errors of the plug-ins that failed."""
    return tuple(plugin.problem for plugin in plugins if plugin.problem is not None)


def origin(*keys: Key) -> str:
    """Returns the names of the plug-ins that registered `keys`; "" if the package itself did."""
    external = plugin_registrations()
    known = (_origins.get(key, ("elsewhere", None)) for key in keys if key in external)
    return ", ".join(dict.fromkeys(name for name, _ in known))


def registered_since(before: dict[Key, Any]) -> dict[Key, Any]:
    """Returns the entries that plug-ins have added or replaced since `plugin_registrations()` returned `before`."""
    return {key: entry for key, entry in plugin_registrations().items() if before.get(key) is not entry}


def _load(name: str, load: Callable[[], Any], home: str) -> Plugin:
    """Loads a plug-in whose code is below `home`, and records the entries that it registers."""
    before = plugin_registrations()
    problem = None
    try:
        load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = _problem(name, error, home)
    _origins.update({key: (name, entry) for key, entry in registered_since(before).items()})
    return Plugin(name, problem)


def _label(point: metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.name


def _importer(point: metadata.EntryPoint) -> Callable[[], Any]:
    """Returns a function that imports the entry point, and calls it if it names a function."""

    def load() -> None:
        found = point.load()
        if point.attr:
            found()

    return load


def _location(module: str) -> str:
    """Returns the folder or file of an importable module's top level; "" if it cannot be found."""
    try:
        spec = util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return ""
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else str(spec.origin) if spec and spec.origin else ""


def _execute(file: PluginFile) -> None:
    """Executes a file as a module with a unique name; it may import files in its folder.

    Raises `PluginChangedError` if the file does not match its hash, and the exceptions of the file.
    """
    path = Path(file.path)
    source = path.read_bytes()
    if file.hash and digest(source) != file.hash:
        raise PluginChangedError(f"{path} has changed")
    name = f"buddy_plugin_{path.stem}_{digest(str(path))[:8]}"
    spec = util.spec_from_file_location(name, path)
    if spec is None:
        raise ImportError(f"{path} is not a Python file")
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    finally:
        sys.path.remove(str(path.parent))


class PluginChangedError(Exception):
    """The file does not match its hash."""


def _problem(name: str, error: BaseException, home: str) -> Diagnostic:
    if isinstance(error, PluginChangedError):
        return Diagnostic(f"plug-in {error}", home, _CHANGED)
    if isinstance(error, SyntaxError):
        where, what = f"{error.filename}:{error.lineno}", f"is not valid Python: {error.msg}"
    else:
        text = next(iter(str(error).strip().splitlines()), "")
        where, what = _line(error, home), f"raised {type(error).__name__}: {text}".rstrip(": ")
    detail = "".join(traceback.format_exception(error))
    return Diagnostic(f"plug-in {name} {what}", where, _HINT, detail=detail)


def _line(error: BaseException, home: str) -> str:
    """Returns `file:line` of the innermost frame in the plug-in, else outside of this package and the import system."""
    frames = traceback.extract_tb(error.__traceback__)
    others = [f for f in frames if not f.filename.startswith((_PACKAGE, "<frozen")) and "importlib" not in f.filename]
    own = [f for f in others if home and f.filename.startswith(home)] or others
    return f"{own[-1].filename}:{own[-1].lineno}" if own else home

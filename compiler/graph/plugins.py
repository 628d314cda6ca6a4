"""Plug-ins: external code that adds ops, lowerings, decompositions, passes, presets, backends and exporters.

A plug-in is a module or function that an installed package names in the entry point group `buddy.plugins`, or a file
that the user names. Loading a plug-in registers its contents. An error in a plug-in becomes a `Diagnostic`, and affects
neither other plug-ins nor the compiler. Plug-ins may import torch and MLIR; this module imports neither, so it treats a
registry as empty until another module has imported it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

from buddy.compiler.graph.node import Op, hide_op_class, list_op_classes, op_classes
from buddy.compiler.graph.transform import transforms
from buddy.compiler.protocol import EXPORT_KINDS, Diagnostic, Preset
from buddy.compiler.protocol.errors import BuddyError, check_registration
from buddy.compiler.protocol.plain_values import PluginInfo
from buddy.compiler.protocol.plugin_code import (
    execute_file,
    import_seconds,
    label_of,
    limited_time,
    location_of,
    plugin_problem,
)
from buddy.compiler.protocol.recipe import BACKEND_NAME, PLUGIN_GROUP, PluginFile, digest

Rule = TypeVar("Rule", bound=Callable[..., Any])

# The decompositions of plug-ins, by target.
_RULES: dict[str, Callable[..., Any]] = {}


def decomposition(*targets: str) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the decomposition of the ops `targets` at capture, before all other rules.

    Targets are spelled as in op classes: those of ATen without `aten.`, others in full: `"demo.squareplus.default"`.
    The function takes the op's arguments, including tensors, and returns its results in terms of other ops, or
    `NotImplemented` for a case that it does not handle. Raises `BuddyError` if other code has registered a target.
    """

    def decorate(rule: Rule) -> Rule:
        for target in targets:
            check_registration("decomposition", target, _RULES.get(target), rule)
        _RULES.update(dict.fromkeys(targets, rule))
        return rule

    return decorate


def plugin_decompositions() -> dict[str, Callable[..., object]]:
    """Returns the decompositions that `decomposition` has registered, by target."""
    return dict(_RULES)


# Takes a compiled program, the folder to write to and the program's name; returns the names of the files.
Exporter = Callable[[Any, Path, str], Sequence[str]]
ExporterFunction = TypeVar("ExporterFunction", bound=Exporter)
_EXPORTERS: dict[str, Exporter] = {}


def exporter(kind: str) -> Callable[[ExporterFunction], ExporterFunction]:
    """Registers the decorated function as the exporter of `kind`, as in `buddy-tui export --kind`.

    The function takes a `CompiledProgram`, a `Path` of an empty folder and the program's name; it writes files into the
    folder and returns their names. Raises `BuddyError` for a kind that this package or other code has.
    """

    def register(function: ExporterFunction) -> ExporterFunction:
        if kind in EXPORT_KINDS or not BACKEND_NAME.search(kind):
            todo = "choose a new name of lower-case letters, digits and hyphens"
            raise BuddyError(f"an exporter cannot be called {kind!r}", function.__module__, todo)
        check_registration("exporter", kind, _EXPORTERS.get(kind), function)
        _EXPORTERS[kind] = function
        return function

    return register


def plugin_exporters() -> dict[str, Exporter]:
    """Returns the exporters that `exporter` has registered, by kind."""
    return dict(_EXPORTERS)


RegistrationKind = Literal[
    "op class", "lowering", "decomposition", "graph pass", "MLIR pass", "preset", "backend", "exporter"
]
# The key of a registration: its kind and name. A lowering is named like `linalg.AddOp`, a decomposition by its target.
RegistrationKey = tuple[RegistrationKind, str]

_PACKAGE_PREFIX = "buddy.compiler."
DIALECTS = ("linalg", "math", "tosa")
# The module and the function that return each registry of a module that this one must not import. Before the module is
# imported, its registry has no entries.
REGISTRIES: dict[RegistrationKind, tuple[str, str]] = {
    "MLIR pass": ("passes.base", "registered_passes"),
    "preset": ("protocol.presets", "plugin_preset_functions"),
    "backend": ("driver.backends", "plugin_backends"),
}


def plugin_registrations() -> dict[RegistrationKey, object]:
    """Returns the entries of all registries whose class or function is defined outside of this package."""
    return {key: entry for key, entry in _all_entries() if not is_built_in(entry)}


def is_built_in(entry: object) -> bool:
    """True if a class or function is defined in this package."""
    return str(getattr(entry, "__module__", "")).startswith(_PACKAGE_PREFIX)


def check_op_name(cls: type[Op]) -> None:
    """Raises `BuddyError` if `cls`, an op class of other code, has the name of an op class of this package.

    Lowerings are registered by the name of the class, so a lowering of `cls` would be used for nodes of both classes.
    """
    namesakes = (other for other in list_op_classes() if other.__name__ == cls.__name__)
    if not is_built_in(cls) and any(map(is_built_in, namesakes)):
        what = f"the op class {cls.__name__!r} has the name of an op class of buddy-tui"
        raise BuddyError(what, cls.__module__, "choose another name: lowerings are found by the name of the class")


def code_hash(entries: Iterable[object]) -> str:
    """Returns a hash of the files that define `entries`; "" if there are no entries."""
    files = sorted({_file(entry) for entry in entries})
    return digest(*[_content_hash(file) for file in files]) if files else ""


def _all_entries() -> Iterator[tuple[RegistrationKey, object]]:
    """Yields the entries of all registries that have been imported, with their keys."""
    for name, cls in op_classes().items():
        yield ("op class", name), cls
    for dialect in DIALECTS:
        for name, lowering in getattr(sys.modules.get(f"{_PACKAGE_PREFIX}ops.{dialect}"), "ops_registry", {}).items():
            yield ("lowering", f"{dialect}.{name}"), lowering
    for target, rule in plugin_decompositions().items():
        yield ("decomposition", target), rule
    for name, transform in transforms().items():
        yield ("graph pass", name), transform
    for name, function in plugin_exporters().items():
        yield ("exporter", name), function
    for kind, (module_name, function_name) in REGISTRIES.items():
        module = sys.modules.get(_PACKAGE_PREFIX + module_name)
        # Without a default: a function that has been renamed must not look like a registry without entries.
        for name, entry in getattr(module, function_name)().items() if module is not None else ():
            yield (kind, name), entry


def _file(entry: object) -> str:
    """Returns the path of the file that defines a class or function; "" if it is unknown."""
    code = getattr(entry, "__code__", None)
    return code.co_filename if code else str(getattr(sys.modules.get(entry.__module__), "__file__", ""))


def _content_hash(file: str) -> str:
    """Returns a hash of the file's content, or its path if it cannot be read."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return file


_REPLACED_HINT = "rename one of them, or uninstall one of the plug-ins: the one that is loaded last is used"
_NO_PASS_HINT = "decorate its passes with `register` (MLIR) or `graph_pass`, or load it with --plugin"


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in: its display name, and its error if loading failed."""

    name: str
    problem: Diagnostic | None = None


# The name of the plug-in that registered each entry, and the entry.
_origins: dict[RegistrationKey, tuple[str, Any]] = {}
# The files that have been loaded in this process.
_loaded_files: dict[PluginFile, Plugin] = {}


@lru_cache(maxsize=1)
def installed_plugins() -> tuple[Plugin, ...]:
    """Returns the plug-ins of installed packages, sorted by name; the first call in a process loads them."""
    points = sorted(metadata.entry_points(group=PLUGIN_GROUP), key=lambda point: (point.name, point.value))
    return tuple(_load(label_of(point), _importer(point), location_of(point.module)) for point in points)


def load_plugin_file(file: PluginFile) -> Plugin:
    """Loads the plug-in in a file, once per process.

    The result has a problem if loading fails, if the file's hash differs, or if a file of passes registers no pass.
    """
    if file not in _loaded_files:
        path, before = Path(file.path), plugin_registrations()
        plugin = _load(path.name, lambda: execute_file(file), str(path))
        if file.passes and plugin.problem is None and not _pass_names(registered_since(before)):
            plugin = Plugin(path.name, Diagnostic(f"plug-in {path.name} registers no pass", str(path), _NO_PASS_HINT))
        _loaded_files[file] = plugin
    return _loaded_files[file]


def _pass_names(keys: Iterable[RegistrationKey]) -> list[str]:
    return [name for kind, name in keys if kind in ("graph pass", "MLIR pass")]


def plugin_presets(files: tuple[PluginFile, ...]) -> tuple[Preset, ...]:
    """Returns the presets of the installed plug-ins and of `files`. Loads both, so call this in a separate process."""
    from buddy.compiler.protocol import presets

    installed_plugins()
    for file in files:
        load_plugin_file(file)
    return tuple(preset for name, preset in presets.presets().items() if name in presets.plugin_preset_functions())


def describe_installed() -> tuple[PluginInfo, ...]:
    """Returns the plug-ins of installed packages, each with the entries that it has registered in this process."""
    loaded = installed_plugins()

    def contents(plugin: Plugin) -> tuple[str, ...]:
        return tuple(f"{kind} {key}" for (kind, key), (name, _) in _origins.items() if name == plugin.name)

    return tuple(PluginInfo(plugin.name, contents(plugin), str(plugin.problem or "")) for plugin in loaded)


def plugin_problems(plugins: Sequence[Plugin]) -> tuple[Diagnostic, ...]:
    """Returns the errors of the plug-ins that failed."""
    return tuple(plugin.problem for plugin in plugins if plugin.problem is not None)


def origin(*keys: RegistrationKey) -> str:
    """Returns the names of the plug-ins that registered `keys`, comma-separated; "" if this package registered them.

    An entry that a script registered itself, without a plug-in, has the origin "elsewhere".
    """
    external = plugin_registrations()
    origins = (_origins.get(key, ("elsewhere", None)) for key in keys if key in external)
    return ", ".join(dict.fromkeys(name for name, _ in origins))


def registered_since(before: dict[RegistrationKey, object]) -> dict[RegistrationKey, object]:
    """Returns the entries that plug-ins have added or replaced since `plugin_registrations()` returned `before`."""
    return {key: entry for key, entry in plugin_registrations().items() if before.get(key) is not entry}


def _load(name: str, load: Callable[[], object], home: str) -> Plugin:
    """Loads a plug-in by calling `load`, and records its registrations. `home` is the file or folder of the plug-in.

    Any error of the plug-in, also `SystemExit`, becomes the result's `problem`; only Ctrl+C is raised again.
    """
    before, classes_before = plugin_registrations(), set(list_op_classes())
    problem = None
    try:
        with limited_time(import_seconds()):
            load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = plugin_problem(f"plug-in {name}", error, home)
    problem = _hide_taken_names(set(list_op_classes()) - classes_before, name, home) or problem
    added = registered_since(before)
    replaced = {key: _origins[key][0] for key in added if key in before and _origins.get(key, (name,))[0] != name}
    if replaced and problem is None:
        what = ", ".join(f"{kind} {key} of {other}" for (kind, key), other in replaced.items())
        problem = Diagnostic(f"plug-in {name} replaces {what}", home, _REPLACED_HINT)
    _origins.update({key: (name, entry) for key, entry in added.items()})
    return Plugin(name, problem)


def _hide_taken_names(added: Iterable[type[Op]], name: str, home: str) -> Diagnostic | None:
    """Hides op classes of a plug-in that have the name of an op class of this package; returns the last error."""
    problem = None
    for cls in added:
        try:
            check_op_name(cls)
        except BuddyError as error:
            hide_op_class(cls)
            problem = Diagnostic(f"plug-in {name}: {error.diagnostic.what}", home, error.todo)
    return problem


def _importer(point: metadata.EntryPoint) -> Callable[[], object]:
    """Returns a function that imports the entry point, and calls it if it names a function."""

    def load() -> None:
        module_or_function = point.load()
        if point.attr:
            module_or_function()

    return load

"""Finds the passes and dialects that the MLIR bindings register: the bindings can check a name but not list the names.

Every registered name is in the bindings' libraries: as a string, or as the end of a longer string, because linkers
merge strings that have the same end. So each string, and each of its suffixes, that has the form of a name is tried.
The construction of a pass may crash, so a forked process tries the names. The result is cached on disk until the
libraries change. The engine reads the cache with `cached_passes`, and calls `find_registered` in a one-shot process.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from buddy.compiler.mlir import bindings, mlir_tool
from buddy.compiler.protocol.plain_values import BindingsInfo, DialectInfo, PassInfo
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.disk_cache import CATALOGUES
from buddy.compiler.support.processes.forks import ForkedWorker

# The end of a NUL-terminated string that has the form of a pass name; and of an op name, `dialect.rest`.
_PASS_NAME = re.compile(rb"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*(?=\0)")
_OP_NAME = re.compile(rb"[a-z][a-z0-9_]*(?:\.[a-z][A-Za-z0-9_]*)+(?=\0)")
_MAX_NAME_LENGTH = 80  # longer strings are not tried
_INDEX = struct.Struct("=q")
_UNKNOWN_PASS = "does not refer to a registered"  # in the error of MLIR's pipeline parser
_SUMMARY = "registered in {package}, which has no description of it"


class RegisteredNames(msgspec.Struct, frozen=True):
    """The passes and dialects that the bindings register. `problem` says why the search failed."""

    passes: tuple[PassInfo, ...] = ()
    dialects: tuple[DialectInfo, ...] = ()
    problem: str = ""
    bindings: BindingsInfo | None = None


class _CacheEntry(msgspec.Struct, frozen=True):
    """A cached result. `states` has path, size in bytes and mtime in ns of each library in `folders`."""

    version: str
    folders: tuple[str, ...]
    states: tuple[tuple[str, int, int], ...]
    result: RegisteredNames


def find_registered() -> RegisteredNames:
    """Returns the registered passes and dialects, from the cache if the libraries have not changed.

    If the bindings or their libraries cannot be read, the result has only `problem`.
    """
    try:
        libraries, version, key = bindings.libraries(), bindings.version(), _cache_key()
        entry = _read_cache(key)
        if entry is None or (entry.version, entry.states) != (version, _file_states(libraries)):
            folders = tuple(sorted({str(path.parent) for path in libraries}))
            entry = _CacheEntry(version, folders, _file_states(libraries), _search_libraries(libraries))
            CATALOGUES.write(key, msgspec.msgpack.encode(entry))
    except (bindings.BindingsError, OSError) as error:
        return RegisteredNames(problem=str(error))
    return msgspec.structs.replace(entry.result, bindings=_bindings_info(entry))


def cached_passes() -> RegisteredNames | None:
    """Returns the cached result without loading the bindings or running a tool.

    Returns `None` if there is no cached result, if the libraries have changed, or if the user has an `mlir-opt`.
    """
    try:
        if bindings.package_folder() is None or mlir_tool.find_tool() is not None:
            return None
        entry = _read_cache(_cache_key())
        if entry is None or entry.states != _file_states(bindings.libraries_in(map(Path, entry.folders))):
            return None
    except (mlir_tool.ToolError, OSError):
        return None
    return msgspec.structs.replace(entry.result, bindings=_bindings_info(entry))


def _cache_key() -> str:
    """Returns a digest of the bindings' package and folder, the file that locates their libraries, and this module."""
    folder = bindings.package_folder()
    locating_file_state = () if folder is None else _file_states(folder.glob("_mlir_libs/__init__.py"))
    return digest(bindings.PACKAGE, str(folder), locating_file_state, Path(__file__).read_text(encoding="utf-8"))


def _file_states(files: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Returns path, size in bytes and mtime in ns of each file."""
    stats = [(str(path), path.stat()) for path in files]
    return tuple((path, status.st_size, status.st_mtime_ns) for path, status in stats)


def _read_cache(key: str) -> _CacheEntry | None:
    """Returns the cached result under `key`; `None` without a result, or if it cannot be read."""
    data = CATALOGUES.read(key)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=_CacheEntry)
    except msgspec.DecodeError:
        return None


def _bindings_info(entry: _CacheEntry) -> BindingsInfo:
    """Returns the version and folder of the bindings, whether the user has set them, and the user's `mlir-opt`."""
    folder = str(Path(entry.folders[0]).parent) if entry.folders else ""
    is_configured = bool(os.environ.get(bindings.PACKAGE_VARIABLE))
    return BindingsInfo(bindings.PACKAGE, entry.version, folder, is_configured, *_tool_state())


def _tool_state() -> tuple[str, str]:
    """Returns the path of the user's `mlir-opt`, and why it cannot be used ("" if it can)."""
    try:
        tool = mlir_tool.find_tool()
    except mlir_tool.ToolError as error:
        return "", str(error)
    if tool is None:
        return "", ""
    # Imported here, because the engine calls `cached_passes` and must not load MLIR.
    from buddy.compiler.passes import mlir_opt

    return tool.path, mlir_opt.problem()


def _search_libraries(libraries: list[Path]) -> RegisteredNames:
    """Returns the passes and dialects whose names are in `libraries`; if the passes cannot be tried, the reason."""
    texts, problem = [_read_constants(path) for path in libraries], ""
    try:
        passes = tuple(_find_passes(sorted(_possible_names(texts, _PASS_NAME))))
    except bindings.BindingsError as error:
        passes, problem = (), str(error)
    return RegisteredNames(passes, _find_dialects(texts), problem)


def _possible_names(texts: Iterable[bytes], form: re.Pattern[bytes]) -> set[str]:
    """Returns the strings in `texts` that match `form`, and their suffixes that start with a lowercase letter."""
    matches = {name.decode() for text in texts for name in form.findall(text)}
    suffixes = (name[start:] for name in matches for start, letter in enumerate(name) if letter.islower())
    return {name for name in suffixes if len(name) <= _MAX_NAME_LENGTH}


def _read_constants(library: Path) -> bytes:
    """Returns the section of a library that contains its strings, or the whole file if it is not ELF."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with library.open("rb") as file:
        try:
            section = ELFFile(file).get_section_by_name(".rodata")
            return bytes(section.data()) if section is not None else b""
        except ELFError:
            file.seek(0)
            return file.read()


# ---- passes ----------------------------------------------------------------------------------------------------------


class _PassDetails(Message, frozen=True):
    """A message from a fork to its parent: a registered pass."""

    info: PassInfo


class _SharedIndex:
    """The index of the name that a fork tries, in memory that it shares with its parent: the fork may crash.

    The index is -1 before the first name, and the number of names after the last.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _INDEX.size)
        self.value = -1

    @property
    def value(self) -> int:
        return int(_INDEX.unpack_from(self._memory)[0])

    @value.setter
    def value(self, index: int) -> None:
        _INDEX.pack_into(self._memory, 0, index)


def _find_passes(names: list[str]) -> Iterator[PassInfo]:
    """Yields the passes among `names`. A pass that crashes the fork is registered too, but has no details.

    After a crash, a new fork continues with the next name. Raises `BindingsError` if a fork ends before it tries a
    name.
    """
    while names:
        crashed_at = yield from _try_in_fork(names)
        if crashed_at is None:
            return
        yield PassInfo(names[crashed_at], "mlir", _SUMMARY.format(package=bindings.PACKAGE))
        names = names[crashed_at + 1 :]


def _try_in_fork(names: list[str]) -> Generator[PassInfo, None, int | None]:
    """Yields the passes among `names` up to a crash; returns the index of the name that caused it, or `None`."""
    index = _SharedIndex()
    fork = ForkedWorker(lambda channel: _try_names(names, index, channel.send), Message, _PassDetails)
    try:
        while (details := fork.receive()) is not None:
            yield details.info
        if index.value < 0:
            message = (
                f"the passes are not known: the process that tries their names did not start ({fork.wait_for_cause()})"
            )
            raise bindings.BindingsError(message, "check that the bindings have a pass manager")
    finally:
        fork.end()
    return None if index.value == len(names) else index.value


def _try_names(names: Sequence[str], index: _SharedIndex, send: Callable[[Message], None]) -> None:
    """Sends the details of each registered pass. Sets `index` before MLIR parses a name, which constructs the pass."""
    from buddy.compiler.mlir.bindings import ir, passmanager
    from buddy.compiler.passes.catalogue import pass_as_registered

    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        for index.value, name in enumerate(names):
            try:
                passmanager.PassManager.parse(f"builtin.module({name})")
            except (ValueError, ir.MLIRError) as error:
                if _UNKNOWN_PASS in str(error):
                    continue
            info = pass_as_registered(name, _SUMMARY.format(package=bindings.PACKAGE))
            if info is not None:
                send(_PassDetails(info))
        index.value = len(names)


# ---- dialects --------------------------------------------------------------------------------------------------------


def _find_dialects(texts: Iterable[bytes]) -> tuple[DialectInfo, ...]:
    """Returns the registered dialects, each with the number of its ops whose names occur in the libraries."""
    from buddy.compiler.mlir.bindings import ir

    candidates = [(name.partition(".")[0], name) for name in _possible_names(texts, _OP_NAME) if "." in name]
    context = ir.Context()
    possible_dialects = {dialect for dialect, _ in candidates}
    registered_dialects = {dialect for dialect in possible_dialects if _is_registered(context, dialect)}
    op_counts = Counter(
        dialect for dialect, op in candidates if dialect in registered_dialects and context.is_registered_operation(op)
    )
    return tuple(DialectInfo(name, op_counts[name], _python_module_of(name)) for name in sorted(registered_dialects))


def _is_registered(context: object, name: str) -> bool:
    """True if the dialect `name` is registered; `context` is an MLIR context."""
    try:
        context.dialects[name]  # type: ignore[attr-defined]
    except (IndexError, KeyError, ValueError, RuntimeError, AttributeError):
        return False
    return True


def _python_module_of(dialect: str) -> str:
    """Returns the name of the module with the Python classes of a dialect; "" if the bindings have none."""
    name = f"{bindings.PACKAGE}.dialects.{dialect}"
    try:
        return name if importlib.util.find_spec(name) is not None else ""
    except (ImportError, ValueError):
        return ""

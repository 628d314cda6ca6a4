"""Finds the passes and dialects that the MLIR bindings register: the bindings can check a name but not list the names.

Every registered name is a string in the bindings' libraries, so each string that has the form of a name is tried. The
construction of a pass may crash, so a forked process tries the names. The result is cached on disk until the libraries
change. The engine reads the cache itself, and calls `find_registered` in a one-shot process.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from buddy.compiler.mlir import bindings, mlir_tool
from buddy.compiler.protocol.plain_values import BindingsInfo, DialectInfo, PassInfo
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.disk_cache import CATALOGUES
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import ForkedWorker

# Zero-terminated strings after a zero byte: a name of a pass, and the name of an op as dialect and rest.
_PASS_NAME = re.compile(rb"(?<![^\0])[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*(?=\0)")
_OP_NAME = re.compile(rb"(?<![^\0])([a-z][a-z0-9_]*)((?:\.[a-z][A-Za-z0-9_]*)+)(?=\0)")
_MAX_NAME_LENGTH = 80  # longer strings are not tried
_UNKNOWN_PASS = "does not refer to a registered"  # in the error of MLIR's pipeline parser
_SUMMARY = "registered in {package}, which has no description of it"


class RegisteredPasses(msgspec.Struct, frozen=True):
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
    result: RegisteredPasses


def find_registered() -> RegisteredPasses:
    """Returns the registered passes and dialects, from the cache if the libraries have not changed.

    If the bindings or their libraries cannot be read, the result has only `problem`.
    """
    try:
        libraries, version, key = bindings.libraries(), bindings.version(), _cache_key()
        entry = _read_cache(key)
        if entry is None or (entry.version, entry.states) != (version, _states(libraries)):
            folders = tuple(sorted({str(path.parent) for path in libraries}))
            entry = _CacheEntry(version, folders, _states(libraries), _search_libraries(libraries))
            CATALOGUES.write(key, msgspec.msgpack.encode(entry))
    except (bindings.BindingsError, OSError) as error:
        return RegisteredPasses(problem=str(error))
    return msgspec.structs.replace(entry.result, bindings=_bindings_info(entry))


def cached_passes() -> RegisteredPasses | None:
    """Returns the cached result without loading the bindings or running a tool.

    Returns `None` if there is no cached result, if the libraries have changed, or if the user has an `mlir-opt`.
    """
    try:
        entry = (
            _read_cache(_cache_key()) if bindings.package_folder() is not None and mlir_tool.tool() is None else None
        )
        if entry is None or entry.states != _states(bindings.libraries_in(map(Path, entry.folders))):
            return None
    except (mlir_tool.ToolError, OSError):
        return None
    return msgspec.structs.replace(entry.result, bindings=_bindings_info(entry))


def _cache_key() -> str:
    """Returns a digest of the bindings' package and folder, the file that locates their libraries, and this module."""
    folder = bindings.package_folder()
    locating_file = () if folder is None else _states(folder.glob("_mlir_libs/__init__.py"))
    return digest(bindings.PACKAGE, str(folder), locating_file, Path(__file__).read_text(encoding="utf-8"))


def _states(files: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Returns path, size in bytes and mtime in ns of each file."""
    stats = [(str(path), path.stat()) for path in files]
    return tuple((path, status.st_size, status.st_mtime_ns) for path, status in stats)


def _read_cache(key: str) -> _CacheEntry | None:
    data = CATALOGUES.read(key)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=_CacheEntry)
    except msgspec.DecodeError:
        return None


def _bindings_info(entry: _CacheEntry) -> BindingsInfo:
    folder = str(Path(entry.folders[0]).parent) if entry.folders else ""
    is_configured = bool(os.environ.get(bindings.VARIABLE))
    return BindingsInfo(bindings.PACKAGE, entry.version, folder, is_configured, *_tool_state())


def _tool_state() -> tuple[str, str]:
    """Returns the path of the user's `mlir-opt`, and why it cannot be used ("" if it can)."""
    try:
        tool = mlir_tool.tool()
    except mlir_tool.ToolError as error:
        return "", str(error)
    if tool is None:
        return "", ""
    from buddy.compiler.passes import (
        mlir_opt,  # imported here, because the engine calls `cached_passes` and must not load MLIR
    )

    return tool.path, mlir_opt.problem()


def _search_libraries(libraries: list[Path]) -> RegisteredPasses:
    texts = [_read_constants(path) for path in libraries]
    names = {name.decode() for text in texts for name in _PASS_NAME.findall(text) if len(name) <= _MAX_NAME_LENGTH}
    return RegisteredPasses(tuple(_find_passes(sorted(names))), _find_dialects(texts))


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


class _NextPass(Message, frozen=True):
    """The fork will read the details of the pass with index `number`; after the last pass, the number of names."""

    number: int


class _PassDetails(Message, frozen=True):
    info: PassInfo


def _find_passes(names: list[str]) -> Iterator[PassInfo]:
    """Yields the passes among `names`. A pass that crashes the fork is registered too, but has no details."""
    start = 0
    while start < len(names):
        current, is_complete = len(names), True
        for message in _fork_messages(names[start:]):
            if isinstance(message, _PassDetails):
                yield message.info
                is_complete = True
            else:
                current = start + message.number
                is_complete = current == len(names)
        if not is_complete:
            yield PassInfo(names[current], "mlir", _SUMMARY.format(package=bindings.PACKAGE))
        start = current + 1


def _fork_messages(names: list[str]) -> Iterator[_NextPass | _PassDetails]:
    """Yields the messages of a fork that tries `names`."""

    def work(channel: Channel) -> None:
        _try_names(names, channel.send)
        channel.send(_NextPass(len(names)))

    fork = ForkedWorker(work, Message, _NextPass | _PassDetails)
    try:
        while (message := fork.receive()) is not None:
            yield message
    finally:
        fork.end()


def _try_names(names: Iterable[str], send: Callable[[Message], None]) -> None:
    """Sends the index of each registered pass before its details are read, and then the details."""
    from buddy.compiler.mlir.bindings import ir, passmanager
    from buddy.compiler.passes.catalogue import pass_as_registered

    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        for number, name in enumerate(names):
            try:
                passmanager.PassManager.parse(f"builtin.module({name})")
            except (ValueError, ir.MLIRError) as error:
                if _UNKNOWN_PASS in str(error):
                    continue
            send(_NextPass(number))
            info = pass_as_registered(name, _SUMMARY.format(package=bindings.PACKAGE))
            if info is not None:
                send(_PassDetails(info))


# ---- dialects --------------------------------------------------------------------------------------------------------


def _find_dialects(texts: Iterable[bytes]) -> tuple[DialectInfo, ...]:
    """Returns the registered dialects, each with the number of its ops whose names occur in the libraries."""
    from buddy.compiler.mlir.bindings import ir

    candidates = {(d.decode(), (d + rest).decode()) for text in texts for d, rest in _OP_NAME.findall(text)}
    context = ir.Context()
    registered_dialects = {dialect for dialect, _ in candidates if _is_registered(context, dialect)}
    ops = Counter(
        dialect for dialect, op in candidates if dialect in registered_dialects and context.is_registered_operation(op)
    )
    return tuple(DialectInfo(name, ops[name], _module_of(name)) for name in sorted(registered_dialects))


def _is_registered(context: object, name: str) -> bool:
    try:
        context.dialects[name]  # type: ignore[attr-defined]
    except (IndexError, KeyError, ValueError, RuntimeError, AttributeError):
        return False
    return True


def _module_of(dialect: str) -> str:
    name = f"{bindings.PACKAGE}.dialects.{dialect}"
    try:
        return name if importlib.util.find_spec(name) is not None else ""
    except (ImportError, ValueError):
        return ""

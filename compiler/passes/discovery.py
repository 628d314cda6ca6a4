"""Finds the passes and dialects that the bindings register; the bindings can check a name but not list the names.

Every registered name is a string in the bindings' libraries, so all strings of that form are tried. Trying a pass may
crash, so a child process does it; results are cached on disk until the libraries change. The engine
reads the cache itself, and calls `registered` in a one-shot process.
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

# A zero-terminated string that starts after a zero byte.
_PASS = re.compile(rb"(?<![^\0])[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*(?=\0)")
_OP = re.compile(rb"(?<![^\0])([a-z][a-z0-9_]*)((?:\.[a-z][A-Za-z0-9_]*)+)(?=\0)")
_LONGEST = 80
_UNKNOWN = "does not refer to a registered"
SUMMARY = "registered in {package}, which says no more of it"


class RegisteredPasses(msgspec.Struct, frozen=True):
    """The passes and dialects that the bindings register. `problem` says why the search failed."""

    passes: tuple[PassInfo, ...] = ()
    dialects: tuple[DialectInfo, ...] = ()
    problem: str = ""
    bindings: BindingsInfo | None = None


class _Kept(msgspec.Struct, frozen=True):
    """A cached result. `states` are the (path, bytes, nanoseconds) of all libraries in `folders`."""

    version: str
    folders: tuple[str, ...]
    states: tuple[tuple[str, int, int], ...]
    found: RegisteredPasses


def registered() -> RegisteredPasses:
    """Returns what is registered, from the cache if the libraries have not changed."""
    try:
        libraries, version, key = bindings.libraries(), bindings.version(), _key()
        kept = _kept(key)
        if kept is None or (kept.version, kept.states) != (version, _states(libraries)):
            folders = tuple(sorted({str(path.parent) for path in libraries}))
            kept = _Kept(version, folders, _states(libraries), _looked_for(libraries))
            CATALOGUES.write(key, msgspec.msgpack.encode(kept))
    except (bindings.BindingsError, OSError) as error:
        return RegisteredPasses(problem=str(error))
    return msgspec.structs.replace(kept.found, bindings=_bindings(kept))


def cached_passes() -> RegisteredPasses | None:
    """Returns the cached result, if there is one: loads no bindings and runs no tool."""
    try:
        kept = _kept(_key()) if bindings.package_folder() is not None and mlir_tool.tool() is None else None
        if kept is None or kept.states != _states(bindings.libraries_in(map(Path, kept.folders))):
            return None
    except (mlir_tool.ToolError, OSError):
        return None
    return msgspec.structs.replace(kept.found, bindings=_bindings(kept))


def _key() -> str:
    """Returns the cache key: the package that Python finds, and the file that locates its libraries."""
    folder = bindings.package_folder()
    saying = () if folder is None else _states(folder.glob("_mlir_libs/__init__.py"))
    return digest(bindings.PACKAGE, str(folder), saying, Path(__file__).read_text(encoding="utf-8"))


def _states(files: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    stats = [(str(path), path.stat()) for path in files]
    return tuple((path, status.st_size, status.st_mtime_ns) for path, status in stats)


def _kept(key: str) -> _Kept | None:
    data = CATALOGUES.read(key)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=_Kept)
    except msgspec.DecodeError:
        return None


def _bindings(kept: _Kept) -> BindingsInfo:
    folder = str(Path(kept.folders[0]).parent) if kept.folders else ""
    return BindingsInfo(bindings.PACKAGE, kept.version, folder, bool(os.environ.get(bindings.VARIABLE)), *_tool())


def _tool() -> tuple[str, str]:
    """Returns the path of the user's `mlir-opt`, and why it cannot be used ("" if it can)."""
    try:
        found = mlir_tool.tool()
    except mlir_tool.ToolError as error:
        return "", str(error)
    if found is None:
        return "", ""
    from buddy.compiler.passes import (
        mlir_opt,  # imported here, because the engine calls `cached_passes` and must not load MLIR
    )

    return found.path, mlir_opt.problem()


def _looked_for(libraries: list[Path]) -> RegisteredPasses:
    texts = [_constants(path) for path in libraries]
    names = sorted({name.decode() for text in texts for name in _PASS.findall(text) if len(name) <= _LONGEST})
    return RegisteredPasses(tuple(_in_children(names)), _dialects(texts))


def _constants(library: Path) -> bytes:
    """Returns the part of a library that contains strings, or the whole file if it is not ELF."""
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


class _Trying(Message, frozen=True):
    """The name of that number is tried next; the number of names at the end."""

    number: int


class _Found(Message, frozen=True):
    info: PassInfo


def _in_children(names: list[str]) -> Iterator[PassInfo]:
    """Yields the passes among `names`. A pass that crashes its child is registered too, but has no details."""
    start = 0
    while start < len(names):
        reached, told = len(names), True
        for said in _child(names[start:]):
            if isinstance(said, _Found):
                yield said.info
                told = True
            else:
                reached, told = start + said.number, start + said.number == len(names)
        if not told:
            yield PassInfo(names[reached], "mlir", SUMMARY.format(package=bindings.PACKAGE))
        start = reached + 1


def _child(names: list[str]) -> Iterator[_Trying | _Found]:
    """Yields what a fork says about `names`."""

    def work(channel: Channel) -> None:
        _try(names, channel.send)
        channel.send(_Trying(len(names)))

    fork = ForkedWorker(work, Message, _Trying | _Found)
    try:
        while (said := fork.receive()) is not None:
            yield said
    finally:
        fork.end()


def _try(names: Iterable[str], tell: Callable[[Message], None]) -> None:
    """Tells the number of each pass before it is tried, and then its details."""
    from buddy.compiler.mlir.bindings import ir, passmanager
    from buddy.compiler.passes.catalogue import pass_as_registered

    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        for number, name in enumerate(names):
            try:
                passmanager.PassManager.parse(f"builtin.module({name})")
            except (ValueError, ir.MLIRError) as error:
                if _UNKNOWN in str(error):
                    continue
            tell(_Trying(number))
            info = pass_as_registered(name, SUMMARY.format(package=bindings.PACKAGE))
            if info is not None:
                tell(_Found(info))


# ---- dialects --------------------------------------------------------------------------------------------------------


def _dialects(texts: Iterable[bytes]) -> tuple[DialectInfo, ...]:
    """Returns the registered dialects, each with the number of its ops whose names occur in the libraries."""
    from buddy.compiler.mlir.bindings import ir

    spelled = {(d.decode(), (d + rest).decode()) for text in texts for d, rest in _OP.findall(text)}
    context = ir.Context()
    known = {dialect for dialect, _ in spelled if _is_registered(context, dialect)}
    ops = Counter(dialect for dialect, op in spelled if dialect in known and context.is_registered_operation(op))
    return tuple(DialectInfo(name, ops[name], _module_of(name)) for name in sorted(known))


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

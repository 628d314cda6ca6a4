"""Saves captured programs and compilations on disk, so that an unchanged program is shown before torch is imported.

The engine does not know which files a script reads as data. It therefore shows the graphs of an earlier session only
until the script has run again. A compilation depends only on its graph, its recipe and this installation, so a saved
compilation is used instead of compiling again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from buddy.compiler.engine.compiling import store_text
from buddy.compiler.engine.programs import CompileResult, GraphRecord, OpenedProgram, ProgramKey, identity_of
from buddy.compiler.protocol import Assignment, Stage
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import PLUGIN_GROUP, Recipe, digest
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import ProgramLoaded, TextData
from buddy.compiler.support.disk_cache import COMPILATIONS, OPENED, DiskCache
from buddy.compiler.support.target import host_features

# The maximum size of a saved program or compilation before compression.
MAX_BYTES = 64 << 20
# The content of a larger file is not hashed: its size, modification time and inode identify it.
_MAX_HASHED_BYTES = 8 << 20
# Environment variables that differ between terminals and logins, and on which no model depends.
_TERMINAL_VARIABLES = re.compile(
    r"_|.*TERM.*|TMUX.*|STY|COLUMNS|LINES|SHLVL|(OLD)?PWD|WINDOW.*|SSH_.*|XDG_.*|DISPLAY|WAYLAND_.*|DBUS_.*|.*SESSION.*"
    r"|VTE_.*|KITTY_.*|WEZTERM_.*|GPG_.*|PS\d|PROMPT.*|LS_COLORS|TEXTUAL.*|(NO|FORCE)_COLOR|BUDDY_TUI_.*|PYTEST_.*"
)
# Environment variables that compilers read, except those that set folders or limits of memory.
_COMPILER_VARIABLES = re.compile(r"BUDDY_(?!CACHE|MEMORY|TUI_).*|(IREE|LLVM|MLIR|CUDA|ROCM|HIP)_.*")
# The delay in seconds before a compilation is saved; a new compilation of the graph within it replaces the old one.
SAVE_SECONDS = 1.0
Saved = TypeVar("Saved")


class SavedProgram(msgspec.Struct, frozen=True):
    """A captured program, the path and hash of each of its files, and when it was saved, in seconds since the epoch."""

    loaded: ProgramLoaded
    hashes: tuple[tuple[str, str], ...]
    saved_at: float


class _SavedCompilation(msgspec.Struct, frozen=True):
    """A finished compilation, and the texts of its stages. The stage `fx` is omitted, because the graph has it.

    `assignments` and the fields after it are those of `CompileResult`.
    """

    stages: tuple[Stage, ...]
    texts: tuple[TextData, ...]
    artifact: bytes
    assignments: tuple[Assignment, ...]
    remarks: tuple[tuple[str, str, str], ...]
    seconds: float
    reused: int


class SavedPrograms:
    """Reads and writes programs and compilations in threads, so that the engine stays responsive."""

    def __init__(self, store: TextStore) -> None:
        self._store = store
        self._writing: set[asyncio.Task[None]] = set()
        # For each graph, by its key, a function that writes its latest compilation, and the timer that will call it.
        self._waiting: dict[str, tuple[Callable[[], None], asyncio.TimerHandle]] = {}

    async def close(self) -> None:
        """Writes the waiting compilations now, and returns when everything is written."""
        for graph in list(self._waiting):
            self._write_waiting(graph)
        await asyncio.gather(*self._writing, return_exceptions=True)

    # ---- programs -----------------------------------------------------------------------------------------------

    async def find(self, key: ProgramKey) -> SavedProgram | None:
        """Returns the program that an earlier session saved under `key`, or `None` if one of its files has changed."""
        return None if key.plugins else await asyncio.to_thread(_read_program, key)

    def save(self, key: ProgramKey, loaded: ProgramLoaded, started_at: float) -> None:
        """Saves a program whose script was started at `started_at`, in seconds since the epoch.

        A program is not saved if its script or a plug-in has registered ops, lowerings or passes: changes of that code
        are not detected. Nor is it saved if a file was written after the start: its earlier content may have run.
        """
        if not (key.plugins or loaded.registrations):
            self._write_in_thread(lambda: _write_program(key, loaded, started_at))

    # ---- compilations -------------------------------------------------------------------------------------------

    async def find_result(
        self, program: OpenedProgram, graph: GraphRecord, recipe: Recipe, has_stages: bool = True
    ) -> CompileResult | None:
        """Returns the saved compilation of `graph`, with stages or without, and adds its texts to the store.

        Returns `None` if no such compilation is saved.
        """
        if not _may_be_saved(program, graph, recipe):
            return None
        try:
            key = await asyncio.to_thread(_compilation_key, graph, recipe, has_stages)
        except BuddyError:  # MLIR's bindings cannot be loaded; the compilation will report this error
            return None
        saved = await asyncio.to_thread(_read, COMPILATIONS, key, _SavedCompilation)
        if saved is None:
            return None
        for text in saved.texts:
            store_text(self._store, text)
        stages = (graph.fx, *saved.stages)
        reused = len(stages)
        return CompileResult(
            stages, saved.artifact, saved.assignments, saved.remarks, saved.seconds, reused, has_stages
        )

    def save_result(self, program: OpenedProgram, graph: GraphRecord, recipe: Recipe, result: CompileResult) -> None:
        """Saves a compilation after `SAVE_SECONDS`, unless a text of its stages has left the store."""
        if not _may_be_saved(program, graph, recipe):
            return
        names = dict.fromkeys(stage.text for stage in result.stages[1:])
        stored = {name: text for name in names if (text := self._store.get(name)) is not None}
        if len(stored) < len(names) or sum(text.size for text in stored.values()) > MAX_BYTES:
            return
        texts = tuple(_text_data(name, text) for name, text in stored.items())
        saved = _SavedCompilation(
            result.stages[1:],
            texts,
            result.artifact,
            result.assignments,
            result.remarks,
            result.seconds,
            result.reused,
        )
        if (waiting := self._waiting.pop(graph.key, None)) is not None:
            _, old_timer = waiting
            old_timer.cancel()
        timer = asyncio.get_running_loop().call_later(SAVE_SECONDS, self._write_waiting, graph.key)

        def write() -> None:
            _write_compilation(graph, recipe, result.has_stages, saved)

        self._waiting[graph.key] = write, timer

    def _write_waiting(self, graph: str) -> None:
        """Writes the waiting compilation of a graph in a thread."""
        write, timer = self._waiting.pop(graph)
        timer.cancel()
        self._write_in_thread(write)

    def _write_in_thread(self, write: Callable[[], None]) -> None:
        task = asyncio.get_running_loop().create_task(_run_in_thread(write))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)


def _text_data(name: str, text: IndexedText) -> TextData:
    """Returns a text of the store in the form in which workers send texts."""
    code, line_sets = text.machine, text.line_sets.tobytes()  # the machine code of the lines
    return TextData(name, text.content, line_sets, text.sets, text.derived, code.content, code.sizes)


async def _run_in_thread(write: Callable[[], None]) -> None:
    await asyncio.to_thread(write)


# ---- files --------------------------------------------------------------------------------------------------------


def _write_program(key: ProgramKey, loaded: ProgramLoaded, started_at: float) -> None:
    """Writes a program, unless plug-ins are installed or a file has changed since `started_at`; see `save`."""
    if _has_installed_plugins():
        return
    try:
        if any(os.stat(path).st_mtime > started_at for path in loaded.files):
            return
        hashes = tuple((path, _file_hash(path)) for path in loaded.files)
    except OSError:
        return
    _write(OPENED, _program_key(key), SavedProgram(loaded, hashes, time.time()))


def _read_program(key: ProgramKey) -> SavedProgram | None:
    """Returns the program saved under `key`, or `None` if one of its files has changed."""
    saved = _read(OPENED, _program_key(key), SavedProgram)
    try:
        is_unchanged = saved is not None and all(_file_hash(path) == file_hash for path, file_hash in saved.hashes)
    except OSError:
        return None
    return saved if is_unchanged else None


def _write_compilation(graph: GraphRecord, recipe: Recipe, has_stages: bool, saved: _SavedCompilation) -> None:
    if not _has_installed_plugins():
        _write(COMPILATIONS, _compilation_key(graph, recipe, has_stages), saved)


def _write(cache: DiskCache, key: str, value: object) -> None:
    """Writes a value, compressed, unless it has more than `MAX_BYTES`."""
    data = msgspec.msgpack.encode(value)
    if len(data) <= MAX_BYTES:
        cache.write(key, zlib.compress(data, 1))


def _read(cache: DiskCache, key: str, saved_type: type[Saved]) -> Saved | None:
    """Returns the value of `key`; a file that cannot be decoded counts as missing."""
    compressed = cache.read(key)
    try:
        return None if compressed is None else msgspec.msgpack.decode(zlib.decompress(compressed), type=saved_type)
    except (zlib.error, msgspec.MsgspecError):
        return None


def _file_hash(path: str) -> str:
    """Returns a hash of a file's content; raises `OSError` if it cannot be read."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size > _MAX_HASHED_BYTES:
            return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        return hashlib.sha256(file.read()).hexdigest()


# ---- keys ---------------------------------------------------------------------------------------------------------


def _program_key(key: ProgramKey) -> str:
    """Returns the key of a program, which includes this installation and the current environment."""
    return digest(key, _installation_on_disk(), _environment())


def _compilation_key(graph: GraphRecord, recipe: Recipe, has_stages: bool) -> str:
    """Returns a key that is the same on all machines with the same CPU and installation."""
    # Imported here, in a thread: it takes a tenth of a second, for which the start of the engine does not wait.
    from buddy.compiler.driver.program_cache import installation

    variables = [(name, value) for name, value in sorted(os.environ.items()) if _COMPILER_VARIABLES.fullmatch(name)]
    return digest(graph.key, identity_of(recipe), installation(), variables, has_stages)


def _may_be_saved(program: OpenedProgram, graph: GraphRecord, recipe: Recipe) -> bool:
    """Returns whether compilations of a graph by this recipe are saved on disk and read from it.

    The program must allow it (`reopens`). Changes in code of plug-ins and registrations are not detected, and other
    compilers (not `runs_passes`) have their own caches.
    """
    return program.reopens and recipe.runs_passes and not (program.key.plugins or graph.registrations or recipe.plugins)


@lru_cache(maxsize=1)
def _has_installed_plugins() -> bool:
    return bool(metadata.entry_points(group=PLUGIN_GROUP))


@lru_cache(maxsize=1)
def _installation_on_disk() -> str:
    """Returns a hash of the interpreter, of all installed packages with their versions, of this package and the CPU.

    Unlike `program_cache.installation`, it includes paths and times, and takes no slow import.
    """
    return digest(sys.version, sys.prefix, host_features(), list(_distributions()), list(_own_modules()))


def _distributions() -> Iterator[tuple[str, int]]:
    """Yields the path and modification time of each package's folder of metadata; the path includes the version."""
    for folder in filter(os.path.isdir, dict.fromkeys(sys.path)):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith((".dist-info", ".egg-info", ".egg-link")):
                yield entry.path, entry.stat().st_mtime_ns


def _own_modules() -> Iterator[tuple[str, int, int]]:
    """Yields the path, the modification time and the size of each module of the compiler."""
    for path in sorted(Path(__file__).resolve().parent.parent.rglob("*.py")):
        status = path.stat()
        yield str(path), status.st_mtime_ns, status.st_size


def _environment() -> list[tuple[str, str]]:
    """Returns the environment variables that a script may depend on."""
    return sorted((name, value) for name, value in os.environ.items() if not _TERMINAL_VARIABLES.fullmatch(name))

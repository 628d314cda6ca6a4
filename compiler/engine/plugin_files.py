"""Plug-in files in the engine: paths and hashes of their content. Only the workers load them."""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.recipe import PluginFile, digest
from buddy.compiler.support.processes.jobs import JobFailed

NO_PLUGINS: tuple[PluginFile, ...] = ()


@dataclass
class CompilerPlugins:
    """The plug-ins and graphs of the current compiler process, and its notes on the plug-ins."""

    life: int = 0
    graphs: set[str] = field(default_factory=set)
    plugins: tuple[PluginFile, ...] = NO_PLUGINS
    notes: tuple[str, ...] = ()
    asked: bool = False

    def use(self, plugins: tuple[PluginFile, ...], notes: tuple[str, ...]) -> None:
        """Records that `plugins` are loaded.

        Earlier graphs are forgotten, because they may contain ops that are registered only now.
        """
        self.plugins, self.notes, self.asked = plugins, notes, True
        self.graphs.clear()

    def took(self, key: str, kept: Collection[str]) -> None:
        """Records that graph `key` was sent, and that the worker now has `kept`: others may have been evicted."""
        self.graphs = {*self.graphs.intersection(kept), key}


def hash_plugin_file(path: str, directory: str = "") -> PluginFile:
    """The current path and hash of the file at `path`, relative to `directory`.

    Raises `OSError` if it cannot be read.
    """
    try:
        whole = Path(directory, path).resolve()
    except (ValueError, RuntimeError) as error:  # a NUL character, or a cycle of links
        raise OSError(errno.EINVAL, "is not a file path") from error
    if whole.exists() and not whole.is_file():  # such as /dev/zero, which never ends
        raise OSError(errno.EINVAL, "is no regular file")
    return PluginFile(str(whole), digest(whole.read_bytes()))


def as_they_are(plugins: Sequence[PluginFile], directory: str) -> tuple[tuple[PluginFile, ...], tuple[str, ...]]:
    """Plug-in files with absolute paths and current hashes, and a note for each whose hash has changed.

    Raises `JobFailed` for a file that cannot be read.
    """
    found, notes = [], []
    for plugin in plugins:
        try:
            now = hash_plugin_file(plugin.path, directory)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise JobFailed(Diagnostic(f"plug-in {plugin.path}: {why}", plugin.path, "check the path")) from error
        if plugin.hash not in ("", now.hash):
            notes.append(f"plug-in {plugin.path} has changed since the recipe was written")
        found.append(msgspec.structs.replace(now, passes=plugin.passes))
    return tuple(dict.fromkeys(found)), tuple(notes)

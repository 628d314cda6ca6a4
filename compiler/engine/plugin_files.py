"""Resolves the plug-in files that a recipe names."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import msgspec

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.recipe import PluginFile, digest
from buddy.compiler.support.processes.jobs import JobFailed


def hash_plugin_file(path: str, directory: str = "") -> PluginFile:
    """Returns the plug-in file at `path`, relative to `directory`, with its absolute path and the hash of its content.

    Raises `OSError` if it cannot be read.
    """
    try:
        absolute = Path(directory, path).resolve()
    except (ValueError, RuntimeError) as error:  # a NUL character, or a cycle of links
        raise OSError(errno.EINVAL, "is not a file path") from error
    if absolute.exists() and not absolute.is_file():  # such as /dev/zero, which never ends
        raise OSError(errno.EINVAL, "is not a regular file")
    return PluginFile(str(absolute), digest(absolute.read_bytes()))


def resolve_plugins(plugins: Sequence[PluginFile], directory: str) -> tuple[tuple[PluginFile, ...], tuple[str, ...]]:
    """Returns plug-in files with absolute paths and current hashes, and a note for each whose hash has changed.

    Raises `JobFailed` for a file that cannot be read.
    """
    resolved, notes = [], []
    for plugin in plugins:
        try:
            current = hash_plugin_file(plugin.path, directory)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise JobFailed(Diagnostic(f"plug-in {plugin.path}: {reason}", plugin.path, "check the path")) from error
        if plugin.hash not in ("", current.hash):
            notes.append(f"plug-in {plugin.path} has changed since the recipe was written")
        resolved.append(msgspec.structs.replace(current, passes=plugin.passes))
    return tuple(dict.fromkeys(resolved)), tuple(notes)

"""Starts the workbench in a terminal, and returns its exit code."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping

import msgspec

from buddy.app.session.client import EngineLocation
from buddy.app.session.engine_options import NO_LOG, LogOptions
from buddy.app.workbench.app import Workbench
from buddy.app.workbench.terminal import exit_on_disconnect
from buddy.app.workspace.session_file import FIRST_SCRIPT_NOTICE, record_first_script
from buddy.app.workspace.settings import load_settings, settings_path
from buddy.app.workspace.workspace import default_store
from buddy.compiler.protocol.recipe import PluginFile
from buddy.themes.palette import theme_error

# How long after the start garbage collection is enabled. The first paint, which it would delay, is earlier.
GC_DELAY_SECONDS = 2.0


def run_workbench(
    source: str,
    arguments: tuple[str, ...],
    *,
    engine: EngineLocation | None = None,
    directory: str | None = None,
    mouse: bool = True,
    ascii_mode: bool = False,
    theme: str | None = None,
    log: LogOptions = NO_LOG,
    plugins: tuple[PluginFile, ...] = (),
    watch: bool = False,
    overrides: Mapping[str, object] | None = None,
    shapes: tuple[str, ...] = (),
    is_trusted: bool = False,
    follows_file: bool = False,
    plain: bool = False,
    panes: tuple[str, ...] = (),
) -> int:
    """Opens the workbench on a program, and runs until the user quits. Returns the exit code of the process.

    `directory` is the working directory of the engine. With `watch`, the program is opened again when one of its files
    changes. `overrides` are recipe fields from the command line. `shapes`, `is_trusted`, `follows_file` and `panes` are
    the options `--shape`, `--trust`, `--follow` and `--pane`. `theme` replaces that of the settings. With `plain`, the
    workbench reads commands from stdin and prints lines.
    """
    settings, startup_messages = load_settings(settings_path())
    if theme:
        if problem := theme_error(theme):
            startup_messages = [*startup_messages, problem]
        settings = msgspec.structs.replace(settings, theme=theme)
    if settings.memory is not None:
        # The engine, which inherits the environment, reads this variable. A value that the user has set wins.
        os.environ.setdefault("BUDDY_MEMORY", str(settings.memory))
    workbench = _workbench_type(plain)(
        source, arguments, engine=engine, directory=directory, ascii_mode=ascii_mode, settings=settings, log=log,
        plugins=plugins, watch=watch, reopens_saved_graphs=settings.reopen, pane_files=panes,
    )  # fmt: skip
    workbench.session.overrides = overrides or {}
    workbench.session.shapes = shapes
    workbench.session.is_trusted, workbench.session.follows_file = is_trusted, follows_file
    if record_first_script(source, default_store()):
        startup_messages = [*startup_messages, FIRST_SCRIPT_NOTICE]
        workbench.shows_tour = True
    workbench.session_commands.startup_messages = startup_messages
    code = asyncio.run(_run_until_quit(workbench, mouse))
    return code if code is not None else workbench.return_code or 0


def _workbench_type(plain: bool) -> type[Workbench]:
    """Returns the application with a screen, or the plain one without it, which is imported only if it is needed."""
    if not plain:
        return Workbench
    from buddy.app.workbench.plain import PlainWorkbench

    return PlainWorkbench


async def _run_until_quit(workbench: Workbench, mouse: bool) -> int | None:
    """Runs until the user quits or the terminal disconnects, and then stops the engine.

    Returns the exit code; `None` if the application has ended without one, such as after an internal error.
    """
    asyncio.get_running_loop().call_later(GC_DELAY_SECONDS, _enable_garbage_collection)
    disconnect_watch = asyncio.ensure_future(exit_on_disconnect(workbench))
    try:
        return await workbench.run_to_exit(mouse)
    finally:
        disconnect_watch.cancel()
        await workbench.session.close()


def _enable_garbage_collection() -> None:
    """Enables garbage collection, which the command line disables.

    The objects that exist now are excluded, because most of them live until exit.
    """
    gc.freeze()
    gc.enable()

"""Starts the workbench in a terminal, and returns its exit code."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping

import msgspec

from buddy.app.session.client import EngineLocation
from buddy.app.session.log_file import NO_LOG, LogOptions
from buddy.app.workbench.app import Workbench
from buddy.app.workbench.terminal import exit_on_disconnect
from buddy.app.workspace.session_file import FIRST_SCRIPT_NOTICE, record_first_script
from buddy.app.workspace.settings import load_settings, settings_path
from buddy.app.workspace.workspace import default_store
from buddy.compiler.protocol.recipe import PluginFile
from buddy.themes.palette import theme_error

# Seconds after startup until garbage collection is enabled: later than the first paint.
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
    trusts: bool = False,
    follows: bool = False,
    plain: bool = False,
    panes: tuple[str, ...] = (),
) -> int:
    """Open the workbench on a program, and run until the user quits. Returns the exit code of the process.

    `overrides` are recipe fields from the command line, `shapes`, `trusts` and `follows` are the options `--shape`,
    `--trust` and `--follow`, `panes` the values of `--pane`. A `plain` workbench reads commands from stdin and prints
    lines.
    """
    settings, problems = load_settings(settings_path())
    if theme:
        problems += filter(None, [theme_error(theme)])
        settings = msgspec.structs.replace(settings, theme=theme)
    if settings.memory is not None:
        # The engine, which inherits the environment, reads this variable. A value that the user has set wins.
        os.environ.setdefault("BUDDY_MEMORY", str(settings.memory))
    bench = _workbench_type(plain)(
        source, arguments, engine=engine, directory=directory, ascii_mode=ascii_mode, settings=settings, log=log,
        plugins=plugins, watch=watch, reopens=settings.reopen, pane_files=panes,
    )  # fmt: skip
    bench.session.overrides = overrides or {}
    bench.session.shapes, bench.session.is_trusted, bench.session.follows_file = shapes, trusts, follows
    if record_first_script(source, default_store()):
        problems = [*problems, FIRST_SCRIPT_NOTICE]
        bench.shows_tour = True
    bench.session_commands.startup_messages = problems
    code = asyncio.run(_run(bench, mouse))
    return code if code is not None else bench.return_code or 0


def _workbench_type(plain: bool) -> type[Workbench]:
    """The application with a screen or without one, which is imported only if it is needed."""
    if not plain:
        return Workbench
    from buddy.app.workbench.plain import PlainWorkbench

    return PlainWorkbench


async def _run(bench: Workbench, mouse: bool) -> int | None:
    """Run until the user quits and the engine has exited."""
    asyncio.get_running_loop().call_later(GC_DELAY_SECONDS, _collect_garbage)
    disconnect_watch = asyncio.ensure_future(exit_on_disconnect(bench))
    try:
        return await bench.run_to_exit(mouse)
    finally:
        disconnect_watch.cancel()
        await bench.session.close()


def _collect_garbage() -> None:
    """Enable garbage collection, but exclude all objects that exist now, which are those of the startup."""
    gc.freeze()
    gc.enable()

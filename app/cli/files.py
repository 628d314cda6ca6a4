"""Writing of files by verbs, with one-line errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buddy.app.cli.headless import Headless
from buddy.app.cli.recipes import UsageError
from buddy.app.workspace.scripts import write_script
from buddy.compiler.protocol import WriteScript
from buddy.compiler.protocol.recipe import Recipe


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` in this block into a `UsageError` that names `path`."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror or error}") from error


async def save_script(engine: Headless, recipe: Recipe, path: Path) -> list[str]:
    """Write the graph of `recipe` as a script, with a `.npz` of its tensors. Prints and returns both paths."""
    made = await engine.client.request(WriteScript(0, recipe))
    with reporting_write_errors(path):
        files = [str(found) for found in write_script(path, made)]
    engine.console.note(f"wrote {' and '.join(files)}")
    return files

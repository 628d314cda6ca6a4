"""Files that verbs write: what keeps one from being written is said in a line."""

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
def writing(path: Path) -> Iterator[None]:
    """What of this block cannot be written to `path` is a mistake of the user's: raises `UsageError`."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror or error}") from error


async def save_script(engine: Headless, recipe: Recipe, path: Path) -> list[str]:
    """The graph of `recipe` as a script at `path`, beside a `.npz` of its tensors; both paths, which are told."""
    made = await engine.client.request(WriteScript(0, recipe))
    with writing(path):
        files = [str(found) for found in write_script(path, made)]
    engine.console.note(f"wrote {' and '.join(files)}")
    return files

"""`python -m tests.protocol.corpus` writes the files of this version that later versions must read.

It runs the workbench, `reproduce` and `cache export` on small programs, and writes to `tests/data/version_MAJOR.MINOR`.
`test_file_formats.py` opens the files. A format that changes after a release gets files of the next version: those of a
released version stay as they are.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from buddy.app.workbench.app import Workbench
from buddy.app.workspace.settings import Settings
from buddy.compiler.protocol import compatibility

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
README = """\
# Files of version {version}

Written by `python -m tests.protocol.corpus`: the workbench on `samples/mlp.py` with a disabled pass, a run and a
bookmark; `reproduce` without texts and values; the settings; and an archive of the cache with its key.
"""
SETTINGS = 'theme = "buddy-dark"\n\n[keys]\nsearch = "ctrl+f"\n'
PROGRAM = "import torch\nmodel, example_inputs = torch.nn.ReLU(), (torch.ones(4),)\n"


async def write_session(folder: Path) -> None:
    """Writes the recipe, its edits and the session of a workbench that has run the sample."""
    with tempfile.TemporaryDirectory() as store:
        app = Workbench("samples/mlp.py", store=Path(store), settings=Settings(), directory=str(ROOT))
        async with app.run_test(size=(120, 40)) as pilot:

            async def until(condition: Callable[[], bool]) -> None:
                end = time.monotonic() + PATIENCE
                while not condition():
                    assert time.monotonic() < end, app.state.problem
                    await pilot.pause(0.05)

            def is_compiled() -> bool:
                return not app.state.busy and app.state.compiled_recipe == app.workspace.recipe

            await until(lambda: app.state.compiled_recipe is not None and is_compiled())
            number = next(k for k, step in enumerate(app.workspace.recipe.steps) if step.name == "tosa-to-linalg-named")
            app.context.edits.edit(app.workspace.recipe.toggled(number), "tosa-to-linalg-named off")
            await pilot.pause(0.5)
            await until(is_compiled)
            await pilot.press("r")
            await until(lambda: app.state.report is not None and not app.state.busy)
            app.show_pane("ir")
            await pilot.press("M")
            await pilot.pause(0.5)
            app.exit(0)
        for pattern, name in (("*.toml", "mlp.toml"), ("*.edits", "mlp.edits"), ("*.session", "mlp.session")):
            (found,) = Path(store).rglob(pattern)
            shutil.copy(found, folder / name)


def run(*words: str, cache: Path) -> None:
    """Runs the command line in the root of the project, with its own cache."""
    environment = {**os.environ, "BUDDY_CACHE": str(cache)}
    subprocess.run([sys.executable, "-m", "buddy.app.cli", *words], cwd=ROOT, env=environment, check=True)


def write_reproducer(folder: Path, cache: Path) -> None:
    """Writes a reproducer, without the texts of its stages and the values, which are large."""
    run("reproduce", "samples/mlp.py", "-o", str(folder), "--plain", cache=cache)
    shutil.rmtree(folder / "stages")
    (folder / "values.npz").unlink()


def write_archive(folder: Path, cache: Path) -> None:
    """Writes an archive of the cache after one compilation, and its key."""
    with tempfile.TemporaryDirectory() as place:
        program = Path(place, "relu.py")
        program.write_text(PROGRAM, "utf-8")
        run("run", str(program), "--plain", cache=cache)
        run("cache", "export", str(folder / "cache.archive"), "--key", str(folder / "cache.key"), cache=cache)


def main() -> None:
    version = ".".join(metadata.version("buddy-tui").split(".")[:2])
    folder = ROOT / "tests" / "data" / f"version_{version}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(README.format(version=version), "utf-8")
    stamp = compatibility.SETTINGS.stamp()
    lines = [f"{name} = {value!r}".replace("'", '"') for name, value in stamp.items()]
    (folder / "config.toml").write_text("\n".join([*lines, SETTINGS]), "utf-8")
    asyncio.run(write_session(folder))
    for write, name in ((write_reproducer, "reproducer"), (write_archive, "")):
        with tempfile.TemporaryDirectory() as cache:
            write(folder / name, Path(cache))
    print(
        *(f"{path.relative_to(ROOT)} {path.stat().st_size}" for path in folder.rglob("*") if path.is_file()), sep="\n"
    )


if __name__ == "__main__":
    main()

"""Reproducers: folders with all files of a compilation and a run, for `buddy-tui replay`. Does not import Textual.

A reproducer contains the script, the recipe, all stages, inputs and outputs, the report, and the versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from buddy.app.reports.run_report import run_report_json
from buddy.app.session.stages import stage_file_name
from buddy.compiler.protocol import Assignment, Compiled, GraphInfo, Ran, Stage, Welcome, compatibility
from buddy.compiler.protocol.recipe import Recipe, to_toml
from buddy.compiler.protocol.source_locations import split_source

# The names of the files in a reproducer.
DESCRIPTION_FILE, RECIPE_FILE, VALUES_FILE, COMMAND_FILE = "reproducer.json", "recipe.toml", "values.npz", "replay.sh"


class StageFile(msgspec.Struct, frozen=True):
    """A stage of a reproducer: its file, and the hash of its text."""

    name: str
    file: str
    sha256: str


class ReproducerDescription(msgspec.Struct, frozen=True):
    """The contents of a reproducer. `script` is the copy of a Python script, "" if the source is not a local script.

    `files` are copies of the files that the script imports from its folder. `elsewhere` lists the imported files that
    are not in the reproducer, because they are outside of the script's folder or could not be read. `problem` is the
    error of a run that failed, "" otherwise.
    """

    format: int
    source: str
    arguments: tuple[str, ...]
    script: str
    graph: int
    engine: str
    target: str
    packages: dict[str, str]
    inputs: str
    stages: tuple[StageFile, ...]
    report: dict[str, Any] | None = None
    problem: str = ""
    files: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()

    @property
    def missing_files_text(self) -> str:
        """A message about the imported files that are not in the reproducer; empty without any."""
        return f"not in the reproducer: imported files {', '.join(self.elsewhere)}" if self.elsewhere else ""


class EngineFunctions(NamedTuple):
    """The functions of an engine that `write_reproducer` needs: compile, fetch a text by its hash, and run."""

    compile: Callable[[Recipe], Awaitable[Compiled]]
    fetch: Callable[[str], Awaitable[str]]
    run: Callable[[Recipe], Awaitable[Ran]]


class ReproducerSubject(NamedTuple):
    """The program of a reproducer: its recipe, its `inputs`, its source `files`, and the `shapes` of the capture."""

    recipe: Recipe
    info: GraphInfo
    welcome: Welcome | None
    inputs: str
    assignments: Sequence[Assignment] = ()
    files: Sequence[str] = ()
    shapes: Sequence[str] = ()


def sha256_of_text(text: str) -> str:
    """Returns the SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def has_foreign_files(folder: Path) -> bool:
    """Whether `folder` has files but is not a reproducer. Raises `OSError` if it is not a folder."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    try:
        read_description(folder)
    except ValueError:
        return True
    return False


async def write_reproducer(
    folder: Path, subject: ReproducerSubject, engine: EngineFunctions, failure: type[Exception]
) -> ReproducerDescription:
    """Compiles and runs the program, and writes a reproducer to `folder`. Returns the description of the reproducer.

    `failure` is the class of the error that the functions of `engine` raise. If the run raises it, the reproducer has
    the error instead of outputs. The files are first written to a temporary folder. Then they replace the files of an
    earlier reproducer in `folder`. Raises `OSError` if the folder cannot be written, and `failure` if the compilation
    fails or the run is cancelled.
    """
    folder = folder.resolve()
    folder_exists = folder.exists()
    temporary = (folder if folder_exists else folder.parent) / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        description = await _write_all(temporary, subject, engine, failure)
        if folder_exists:
            _move_into(folder, temporary)
        else:
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return description


def _move_into(folder: Path, temporary: Path) -> None:
    """Replaces the reproducer in `folder`, if any, by the one in `temporary`.

    The old description is deleted first and the new one written last, so an interruption leaves no description of files
    that are not in the folder.
    """
    try:
        previous = read_description(folder)
    except ValueError:
        previous = None
    if previous is not None:
        (folder / DESCRIPTION_FILE).unlink()
        for name in (VALUES_FILE, previous.script, *previous.files, *(stage.file for stage in previous.stages)):
            # The description is untrusted: it must not name files to delete outside the folder.
            if name == VALUES_FILE or (name.startswith(("script/", "stages/")) and ".." not in Path(name).parts):
                (folder / name).unlink(missing_ok=True)
    files = sorted(
        (path for path in temporary.rglob("*") if path.is_file()), key=lambda path: path.name == DESCRIPTION_FILE
    )
    for path in files:
        target = folder / path.relative_to(temporary)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


async def _write_all(
    folder: Path, subject: ReproducerSubject, engine: EngineFunctions, failure: type[Exception]
) -> ReproducerDescription:
    """Compiles, runs, and writes all files into an empty folder. Raises like `write_reproducer`."""
    recipe = subject.recipe
    (folder / RECIPE_FILE).write_text(to_toml(recipe), "utf-8")
    compiled = await engine.compile(recipe)
    stages = [await _write_stage(folder, stage, engine) for stage in compiled.stages]
    report, problem = None, ""
    try:
        ran = await engine.run(recipe)
        (folder / VALUES_FILE).write_bytes(ran.values)
        report = run_report_json(subject.info, ran.report, subject.assignments)
    except failure as error:
        if getattr(error, "cancelled", False):
            raise
        problem = str(error)
    description = _copy_sources(folder, subject, stages, report, problem)
    (folder / DESCRIPTION_FILE).write_text(json.dumps(msgspec.to_builtins(description), indent=2) + "\n", "utf-8")
    _write_command(folder / COMMAND_FILE)
    return description


async def _write_stage(folder: Path, stage: Stage, engine: EngineFunctions) -> StageFile:
    """Fetches the text of a stage, and writes it to a file in the folder."""
    text = await engine.fetch(stage.text)
    name = f"stages/{stage_file_name(stage)}"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return StageFile(stage.name, name, sha256_of_text(text))


def _copy_sources(
    folder: Path, subject: ReproducerSubject, stages: Sequence[StageFile], report: dict[str, Any] | None, problem: str
) -> ReproducerDescription:
    """Copies the script and the files that it imports into the folder. Returns the description of the reproducer."""
    recipe, welcome = subject.recipe, subject.welcome
    script = _copy_script(folder, recipe.source)
    files, elsewhere = _copy_imported(folder, recipe.source, subject.files) if script else ((), tuple(subject.files))
    return ReproducerDescription(
        compatibility.REPRODUCER.latest,
        recipe.source,
        recipe.arguments,
        script,
        recipe.graph,
        welcome.engine if welcome else "",
        welcome.target if welcome else "",
        welcome.packages if welcome else {},
        subject.inputs,
        tuple(stages),
        report,
        problem,
        files,
        elsewhere,
        tuple(subject.shapes),
    )


def _copy_script(folder: Path, source: str) -> str:
    """Copies the script into the folder. Returns its name there, "" if the source is not a script on this machine."""
    path = Path(split_source(source).target)
    if path.suffix != ".py" or not path.is_file():
        return ""
    (folder / "script").mkdir(exist_ok=True)
    (folder / "script" / path.name).write_bytes(path.read_bytes())
    return f"script/{path.name}"


def _copy_imported(folder: Path, source: str, files: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copies the files that the script imports from its folder.

    Returns the names of the copies, and the paths of the files that are not copied.
    """
    script = Path(split_source(source).target).resolve()
    copied, elsewhere = [], []
    for file in map(Path, files):
        if file == script:
            continue
        try:
            name = f"script/{file.relative_to(script.parent).as_posix()}"
            content = file.read_bytes()
        except (ValueError, OSError):  # outside of the script's folder, or not readable
            elsewhere.append(str(file))
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        copied.append(name)
    return tuple(copied), tuple(elsewhere)


def _write_command(path: Path) -> None:
    """Writes a shell script that replays the reproducer."""
    lines = ["#!/bin/sh", "# Compiles and runs this reproducer again, and reports the differences.", ""]
    path.write_text("\n".join([*lines, 'exec buddy-tui replay "$(dirname "$0")" --plain "$@"', ""]))
    path.chmod(path.stat().st_mode | 0o111)


def read_description(folder: Path) -> ReproducerDescription:
    """Reads the description of a reproducer. Raises `ValueError` if `folder` has no description or an invalid one."""
    path = folder / DESCRIPTION_FILE
    try:
        content = path.read_bytes()
        compatibility.REPRODUCER.check_stamp(msgspec.json.decode(content, type=compatibility.Stamp))
        description = msgspec.json.decode(content, type=ReproducerDescription)
    except OSError as error:
        raise ValueError(f"{folder} is not a reproducer: {path.name}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if description.script and not _is_inside(folder, description.script):
        raise ValueError(f"{path} names the script {description.script}, which is not in the folder")
    return description


def _is_inside(folder: Path, name: str) -> bool:
    """Whether the file `name` is inside `folder` after links are resolved."""
    try:
        return (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # A link cycle, or a null character.
        return False


def external_python(description: ReproducerDescription) -> str:
    """Returns the source if it is Python code outside of the folder, which a replay would run; otherwise ""."""
    runs_python = not description.script and split_source(description.source).runs_python
    return description.source if runs_python else ""


def source_of(folder: Path, description: ReproducerDescription) -> str:
    """Returns the source to open: the copy of the script with its `:MODEL`, if any; without a copy, the source."""
    if not description.script:
        return description.source
    return split_source(description.source).with_target(os.path.join(folder, description.script))

"""Reproducers: folders with all files of a compilation and a run, for `buddy-tui replay`. No Textual.

A reproducer contains the script, the recipe, all stages, inputs and outputs, the report, and the versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from buddy.app.reports.run_report import as_json
from buddy.app.session.stages import file_name
from buddy.compiler.protocol import Assignment, Compiled, GraphInfo, Ran, Stage, Welcome
from buddy.compiler.protocol.recipe import Recipe, to_toml

FORMAT = 1
# Suffixes of model files that execute no code. The engine checks whether the content matches.
_NO_PYTHON = (".mlir", ".mlirbc", ".pt2", ".pt", ".pth", ".onnx")
DESCRIPTION, RECIPE, VALUES, COMMAND = "reproducer.json", "recipe.toml", "values.npz", "replay.sh"


class StageFile(msgspec.Struct, frozen=True):
    """A stage of a reproducer: its file, and the hash of its text."""

    name: str
    file: str
    sha256: str


class ReproducerDescription(msgspec.Struct, frozen=True):
    """The contents of a reproducer. `script` is the copy in the folder, empty if the source is a module name.

    `files` are copies of files that the script imports from its own folder. `elsewhere` lists imported files that are
    not in the reproducer, because they are outside that folder or could not be read.
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
    def lacks(self) -> str:
        """A message with the files that a replay on another machine also needs; empty without any."""
        return f"the reproducer lacks imported files: {', '.join(self.elsewhere)}" if self.elsewhere else ""


class EngineFunctions(NamedTuple):
    """The functions of an engine that `write_reproducer` needs: compile, fetch a text by its name, and run."""

    compile: Callable[[Recipe], Awaitable[Compiled]]
    fetch: Callable[[str], Awaitable[str]]
    run: Callable[[Recipe], Awaitable[Ran]]


class ReproducerSubject(NamedTuple):
    """The program of a reproducer: its `files`, and the `shapes` that it was captured with."""

    recipe: Recipe
    info: GraphInfo
    welcome: Welcome | None
    inputs: str
    assignments: Sequence[Assignment] = ()
    files: Sequence[str] = ()
    shapes: Sequence[str] = ()


def text_hash(text: str) -> str:
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
    """Compile, run and write a reproducer. If the run fails with `failure`, the description has the failure.

    The folder changes only after all files are complete; then they replace the files of an earlier reproducer.
    Raises `OSError` if the folder cannot be written, and `failure` if the compilation fails or the run is cancelled.
    """
    folder = folder.resolve()
    there = folder.exists()
    made = (folder if there else folder.parent) / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    try:
        found = await _write_all(made, subject, engine, failure)
        if there:
            _move_into(folder, made)
        else:
            made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return found


def _move_into(folder: Path, made: Path) -> None:
    """Replace the reproducer in `folder` by the one in `made`. The description is deleted first and written last."""
    try:
        before = read_description(folder)
    except ValueError:
        before = None
    if before is not None:
        (folder / DESCRIPTION).unlink()
        for name in (VALUES, before.script, *before.files, *(stage.file for stage in before.stages)):
            # The description is untrusted: it must not name files to delete outside the folder.
            if name == VALUES or (name.startswith(("script/", "stages/")) and ".." not in Path(name).parts):
                (folder / name).unlink(missing_ok=True)
    files = sorted((path for path in made.rglob("*") if path.is_file()), key=lambda path: path.name == DESCRIPTION)
    for path in files:
        target = folder / path.relative_to(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


async def _write_all(
    folder: Path, subject: ReproducerSubject, engine: EngineFunctions, failure: type[Exception]
) -> ReproducerDescription:
    recipe = subject.recipe
    (folder / RECIPE).write_text(to_toml(recipe), "utf-8")
    compiled = await engine.compile(recipe)
    stages = [await _write_stage(folder, stage, engine) for stage in compiled.stages]
    report, problem = None, ""
    try:
        ran = await engine.run(recipe)
        (folder / VALUES).write_bytes(ran.values)
        report = as_json(subject.info, ran.report, subject.assignments)
    except failure as error:
        if getattr(error, "cancelled", False):
            raise
        problem = str(error)
    described = _describe(folder, subject, stages, report, problem)
    (folder / DESCRIPTION).write_text(json.dumps(msgspec.to_builtins(described), indent=2) + "\n", "utf-8")
    _write_command(folder / COMMAND)
    return described


async def _write_stage(folder: Path, stage: Stage, engine: EngineFunctions) -> StageFile:
    text = await engine.fetch(stage.text)
    name = f"stages/{file_name(stage)}"
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return StageFile(stage.name, name, text_hash(text))


def _describe(
    folder: Path, subject: ReproducerSubject, stages: Sequence[StageFile], report: dict[str, Any] | None, problem: str
) -> ReproducerDescription:
    recipe, welcome = subject.recipe, subject.welcome
    script = _copy_script(folder, recipe.source)
    files, elsewhere = _copy_imported(folder, recipe.source, subject.files) if script else ((), tuple(subject.files))
    return ReproducerDescription(
        FORMAT,
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
    """Copy the script into the folder. Returns an empty string for another source or a remote one."""
    path = Path(source.partition(":")[0])
    if path.suffix != ".py" or not path.is_file():
        return ""
    (folder / "script").mkdir(exist_ok=True)
    (folder / "script" / path.name).write_bytes(path.read_bytes())
    return f"script/{path.name}"


def _copy_imported(folder: Path, source: str, files: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copy the files that the script imports from its folder. Returns the copies, and the files not copied."""
    script = Path(source.partition(":")[0]).resolve()
    copied, elsewhere = [], []
    for file in map(Path, files):
        if file == script:
            continue
        name = f"script/{file.relative_to(script.parent).as_posix()}" if file.is_relative_to(script.parent) else ""
        try:
            data = file.read_bytes() if name else b""
        except OSError:
            name = ""
        if not name:
            elsewhere.append(str(file))
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        copied.append(name)
    return tuple(copied), tuple(elsewhere)


def _write_command(path: Path) -> None:
    lines = ["#!/bin/sh", "# Compiles and runs this reproducer again, and reports the differences.", ""]
    path.write_text("\n".join([*lines, f'exec buddy-tui replay "$(dirname "$0")" {shlex.quote("--plain")} "$@"', ""]))
    path.chmod(path.stat().st_mode | 0o111)


def read_description(folder: Path) -> ReproducerDescription:
    """The description of a reproducer. Raises `ValueError` with the problem of the folder."""
    path = folder / DESCRIPTION
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ReproducerDescription)
    except OSError as error:
        raise ValueError(f"{folder} is not a reproducer: {path.name}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if found.format > FORMAT:
        raise ValueError(f"{folder} was written by a later version of buddy-tui ({found.engine})")
    if found.script and not _inside(folder, found.script):
        raise ValueError(f"{path} names the script {found.script}, which is not in the folder")
    return found


def _inside(folder: Path, name: str) -> bool:
    """Whether a file named by a description is inside its folder, after resolving links."""
    try:
        return (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a link cycle, or a null character
        return False


def external_python(found: ReproducerDescription) -> str:
    """The Python code that a replay would run and that is not in the folder; empty without any."""
    return "" if found.script or Path(found.source.partition(":")[0]).suffix in _NO_PYTHON else found.source


def source_of(folder: Path, found: ReproducerDescription) -> str:
    """The source to open: the copy of the script, with the name of the model if there was one."""
    _, colon, name = found.source.partition(":")
    return os.path.join(folder, found.script) + colon + name if found.script else found.source

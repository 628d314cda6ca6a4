"""The pages that show commands with what they print: each command is run, and prints that.

A line `...` stands for any lines. Remarks before a block: `<!-- needs FEATURE -->`, its text holds on CPUs with that
feature only (elsewhere the commands must still succeed); `<!-- figures vary -->`, its numbers are not compared;
`<!-- exits with 1 -->`, so do its commands (remarks are separated by a comma);
`<!-- file: NAME -->`, the Python block has a name that commands may use.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.filecheck_text import filecheck

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(?:<!-- (?P<remark>[^>]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.S | re.M)
CPU = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Shown:
    """A command on a page, what it is said to print, and the remark before its block."""

    command: str
    output: tuple[str, ...]
    remark: str


def shown(page: Path) -> list[Shown]:
    """The commands of a page's console blocks."""
    found = []
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["language"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.M)[1:]:
                command, *output = part.rstrip("\n").split("\n")
                found.append(Shown(command, tuple(output), block["remark"] or ""))
    return found


def files(page: Path) -> dict[str, str]:
    """The Python blocks that a page gives a name."""
    blocks = BLOCK.finditer(page.read_text("utf-8"))
    named = ((block["remark"] or "", block["text"]) for block in blocks if block["language"] == "python")
    return {remark.removeprefix("file: "): text for remark, text in named if remark.startswith("file: ")}


def cases() -> Iterator[object]:
    for page in (ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))):
        for number, one in enumerate(shown(page), 1):
            yield pytest.param(page, one, id=f"{page.stem} {number}")


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """The folder where a reader tries the commands: the samples are in it."""
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("page", "one"), cases())
def test_a_command_prints_what_the_page_shows(
    page: Path, one: Shown, reader: Path, run_warm: Callable[..., Any]
) -> None:
    for name, text in files(page).items():
        (reader / name).write_text(text)
    program, *words_of_it = shlex.split(one.command)
    start = {"buddy-tui": ["-m", "buddy.app.cli"], "python": []}[program]
    done = run_warm(*start, *words_of_it, cwd=reader)
    remarks = one.remark.split(", ")
    assert done.returncode == (1 if "exits with 1" in remarks else 0), done.stderr
    printed = done.stdout.rstrip("\n").split("\n")
    if one.remark.startswith("needs ") and not has(one.remark.removeprefix("needs ")):
        pytest.skip(f"the page's text {one.remark}; the command ran")
    if "figures vary" in remarks:
        assert matches(words(one.output), words(printed)), done.stdout
    else:
        assert matches(one.output, printed), done.stdout


def names() -> dict[str, list[str]]:
    """The rows of names that scripts for Buddy-MLIR import: the module, and the names that are said to be in it."""
    text = (DOCS / "how-to" / "from-buddy-mlir.md").read_text("utf-8").partition("## Names")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(buddy\.[\w.]+)`[^|]*\| (.*) \|$", text, re.M)
    return {module: re.findall(r"`(\w+)`", cell) for module, cell in rows}


def test_every_name_on_the_page_for_buddy_mlirs_users_can_be_imported() -> None:
    assert len(names()) == 5
    missing = [(module, name) for module in names() for name in names()[module] if not hasattr(imported(module), name)]
    assert missing == []


def test_every_argument_of_the_compiler_is_on_the_page() -> None:
    section = (
        (DOCS / "how-to" / "from-buddy-mlir.md")
        .read_text("utf-8")
        .partition("## Arguments of")[2]
        .partition("\n## ")[0]
    )
    told = [name for row in re.findall(r"^\| (`[^|]*`) \|", section, re.M) for name in re.findall(r"`(\w+)`", row)]
    wanted = inspect.signature(imported("buddy.compiler.frontend").DynamoCompiler).parameters
    assert set(told) == set(wanted)


def imported(module: str) -> ModuleType:
    return importlib.import_module(module)


def has(feature: str) -> bool:
    return CPU.exists() and feature in CPU.read_text().split()


def words(lines: Sequence[str]) -> list[str]:
    """The lines without their numbers, and without the blanks that numbers need."""
    return [
        re.sub(r"\s+", " ", re.sub(r"[\d.e+-]*\d\S*( (ms|us|s|B|kB|MB|GB)\b)?", "0", line)).strip() for line in lines
    ]


def matches(expected: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether the lines are those expected; `...` stands for any number of them."""
    if not expected:
        return not printed or list(printed) == [""]
    if expected[0] == "...":
        return any(matches(expected[1:], printed[k:]) for k in range(len(printed) + 1)) or len(expected) == 1
    return bool(printed) and printed[0].rstrip() == expected[0].rstrip() and matches(expected[1:], printed[1:])


@pytest.mark.parametrize(
    ("expected", "printed", "result"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a", "..."], ["a", "b", "c"], True),
        (["a", "...", "c"], ["a", "b", "b", "c"], True),
        (["a", "...", "c"], ["a", "b"], False),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a"], False),
    ],
)
def test_dots_stand_for_any_lines(expected: list[str], printed: list[str], result: bool) -> None:
    assert matches(expected, printed) is result


# ---- the introductory add, stage by stage ----------------------------------------------------------------------------

STAGES = {
    "fx": """
        CHECK: opcode         name    target           args              kwargs
        CHECK: placeholder    arg0_1  arg0_1           ()                {}
        CHECK: placeholder    arg1_1  arg1_1           ()                {}
        CHECK: call_function  add     aten.add.Tensor  (arg0_1, arg1_1)  {}
        CHECK: output         output  output           ((add,),)         {}
    """,
    "lower": """
        CHECK: func.func @forward(%[[X:.*]]: tensor<10xf32> {{.*}}, %[[Y:.*]]: tensor<10xf32> {{.*}}) -> tensor<10xf32>
        CHECK-NEXT: %[[SUM:.*]] = tosa.add %[[X]], %[[Y]] : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
        CHECK-NEXT: return %[[SUM]] : tensor<10xf32>
    """,
    "one-shot-bufferize": """
        CHECK: #[[MAP:.*]] = affine_map<(d0) -> (d0)>
        CHECK: func.func @forward(%[[X:.*]]: memref<10xf32> {{.*}}, %[[Y:.*]]: memref<10xf32> {{.*}}) -> memref<10xf32>
        CHECK-NEXT: %[[SUM:.*]] = memref.alloc() {alignment = 64 : i64} : memref<10xf32>
        CHECK-NEXT: linalg.generic {indexing_maps = [#[[MAP]], #[[MAP]], #[[MAP]]], iterator_types = ["parallel"]}
        CHECK-SAME: ins(%[[X]], %[[Y]] : memref<10xf32>, memref<10xf32>) outs(%[[SUM]] : memref<10xf32>)
        CHECK: %[[S:.*]] = arith.addf %{{.*}}, %{{.*}} : f32
        CHECK-NEXT: linalg.yield %[[S]] : f32
        CHECK: return %[[SUM]] : memref<10xf32>
    """,
    "reconcile-unrealized-casts": """
        CHECK: llvm.func @forward(%[[X:[a-z0-9]+]]: !llvm.ptr {{.*}}, %[[Y:[a-z0-9]+]]: !llvm.ptr {{.*}},
        CHECK-SAME: %[[SUM:[a-z0-9]+]]: !llvm.ptr
        CHECK-DAG: %[[ONE:.*]] = llvm.mlir.constant(1 : index) : i64
        CHECK-DAG: %[[TEN:.*]] = llvm.mlir.constant(10 : index) : i64
        CHECK-DAG: %[[ZERO:.*]] = llvm.mlir.constant(0 : index) : i64
        CHECK: llvm.br ^bb1(%[[ZERO]] : i64)
        CHECK-NEXT: ^bb1(%[[I:.*]]: i64):
        CHECK-NEXT: %[[MORE:.*]] = llvm.icmp "slt" %[[I]], %[[TEN]] : i64
        CHECK-NEXT: llvm.cond_br %[[MORE]], ^bb2, ^bb3
        CHECK: %[[PX:.*]] = llvm.getelementptr {{.*}}%[[X]][%[[I]]] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        CHECK-NEXT: %[[VX:.*]] = llvm.load %[[PX]] : !llvm.ptr -> f32
        CHECK-NEXT: %[[PY:.*]] = llvm.getelementptr {{.*}}%[[Y]][%[[I]]] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        CHECK-NEXT: %[[VY:.*]] = llvm.load %[[PY]] : !llvm.ptr -> f32
        CHECK-NEXT: %[[S:.*]] = llvm.fadd %[[VX]], %[[VY]] : f32
        CHECK-NEXT: %[[PS:.*]] = llvm.getelementptr {{.*}}%[[SUM]][%[[I]]] : (!llvm.ptr, i64) -> !llvm.ptr, f32
        CHECK-NEXT: llvm.store %[[S]], %[[PS]] : f32, !llvm.ptr
        CHECK-NEXT: %[[NEXT:.*]] = llvm.add %[[I]], %[[ONE]] : i64
        CHECK-NEXT: llvm.br ^bb1(%[[NEXT]] : i64)
        CHECK: llvm.return
    """,
    "translate": """
        CHECK: define void @forward(ptr %{{[0-9]+}}, ptr %{{[0-9]+}}, ptr %{{[0-9]+}})
        CHECK: phi i64
        CHECK: %[[VX:.*]] = load float, ptr
        CHECK: %[[VY:.*]] = load float, ptr
        CHECK-NEXT: %[[S:.*]] = fadd float %[[VX]], %[[VY]]
        CHECK: store float %[[S]], ptr
        CHECK: ret void
    """,
    "codegen": """
        CHECK: forward:
        CHECK: {{v?}}adds{{s}}
        CHECK: ret
    """,
}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., Any]) -> Path:
    """All stages of `arith_add`, as `dump` writes them: TOSA first, MLIR's own passes."""
    folder = tmp_path_factory.mktemp("stages")
    done = cli("dump", "samples/arith_add.py", "--dialect", "tosa", "--preset", "upstream", "--all", "-o", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_the_introductory_add_goes_through_the_stage(stage: str, stages: Path) -> None:
    (file,) = stages.glob(f"*-{stage}.*")
    filecheck(file.read_text(), STAGES[stage])

"""Each sample runs as plain Python, and through the whole line: captured, compiled, and equal to eager."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buddy.compiler.compilation import Compiler
from buddy.compiler.presets import default_recipe
from buddy.compiler.runner import run_and_compare
from buddy.compiler.sources import CapturedGraph, load_program

SAMPLES = [
    ("arith_add.py", (), "model"),
    ("addmm.py", (), "model"),
    ("mlp.py", (), "MLP"),
    ("torch_compile.py", (), "f"),
    ("custom_op.py", (), "f"),
    ("buddy_style.py", (), "foo"),
    ("two_models.py", (), "Gate, Gate #2, Gate #3, Head"),
    ("training.py", (), "Halves, Halves (backward)"),
    ("lenet.py", (), "LeNet"),
    ("resnet18.py", ("--tiny",), "ResNet18"),
    ("mobilenet_v3.py", ("--tiny",), "MobileNetV3Small"),
    ("lstm.py", ("--tiny",), "Tagger"),
    ("bert.py", ("--tiny",), "BertModel"),
    ("vit.py", ("--tiny",), "ViTModel"),
    ("gpt2.py", ("--tiny",), "GPT2LMHeadModel"),
    ("gpt2.py", ("--tiny", "--decode"), "Decode"),
    ("llama.py", ("--tiny",), "LlamaForCausalLM"),
    ("llama.py", ("--tiny", "--decode"), "Decode"),
    ("whisper.py", ("--tiny",), "WhisperModel"),
]
# Activations at the peak are at most a tenth more than eager's, over as much as a kernel's own scratch memory is where
# tensors are this small. Winograd's transformed tiles are larger than the images of the tiny ResNet; what a step of
# training keeps for the backward pass are results, which functions other than the entry do not work in.
MEMORY, SMALL, MEMORY_OF = 1.1, 1 << 10, {"resnet18.py": 1.75, "training.py": 1.3}
HUGGING_FACE = ("bert.py", "vit.py", "gpt2.py", "llama.py", "whisper.py")


@pytest.mark.parametrize(("name", "arguments", "_model"), SAMPLES)
def test_a_sample_runs_as_plain_python(
    name: str, arguments: tuple[str, ...], _model: str, root: Path, run_python: Callable[..., Any]
) -> None:
    pytest.importorskip("transformers" if name in HUGGING_FACE else "torch")
    done = run_python(str(root / "samples" / name), *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("flavour", ["linalg", "tosa"])
@pytest.mark.parametrize(("name", "arguments", "model"), SAMPLES)
def test_a_sample_compiled_equals_eager(
    name: str, arguments: tuple[str, ...], model: str, flavour: Any, root: Path
) -> None:
    pytest.importorskip("transformers" if name in HUGGING_FACE else "torch")
    program = load_program(str(root / "samples" / name), arguments)
    assert ", ".join(graph.info.name for graph in program.graphs) == model
    for captured in program.graphs:
        report = compiled_equals_eager(captured, flavour)
        if flavour == "linalg":
            limit = MEMORY_OF.get(name, MEMORY) * report.memory.eager + SMALL
            assert report.memory.compiled <= limit, report.memory


def compiled_equals_eager(captured: CapturedGraph, flavour: Any) -> Any:
    """The graph is compiled as a whole, and agrees; the report of its run."""
    compilation = Compiler(captured.graph).compile(default_recipe(flavour=flavour))
    eager = [a.node for a in compilation.assignments if a.lowering == "eager"]
    assert eager == []
    nodes = (len(compilation.assignments), len(eager))
    report = run_and_compare(
        captured, compilation.artifact, repeats=2, threads=1, nodes=nodes, compile_seconds=compilation.seconds
    )
    assert report.ok, report
    return report


def test_torch_compile_sample_agrees_with_eager(root: Path, run_python: Callable[..., Any]) -> None:
    line = run_python(str(root / "samples" / "torch_compile.py")).stdout.splitlines()[-1]
    assert float(line.rsplit(" ", 1)[1]) < 1e-5


def table_of_samples(root: Path) -> dict[str, bool]:
    """The samples in the README's table, and whether it says that they take `--tiny`."""
    rows = re.findall(r"^\| `samples/(\w+\.py)` \|.*\| (yes )?\|$", (root / "README.md").read_text("utf-8"), re.M)
    return {name: bool(tiny) for name, tiny in rows}


def test_the_readme_lists_every_sample_and_which_take_tiny(root: Path) -> None:
    samples = {path.name: '"--tiny"' in path.read_text("utf-8") for path in (root / "samples").glob("*.py")}
    assert table_of_samples(root) == samples
    assert {name for name, _, _ in SAMPLES} == set(samples)

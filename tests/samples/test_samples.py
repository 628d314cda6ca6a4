"""Each sample runs as plain Python, and through the whole line: captured, compiled, and equal to eager."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.importers.sources import CapturedGraph, load_program
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.run_report import NodeCounts
from buddy.compiler.runtime import run_and_compare
from tests.support.tiers import sampled

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


# Runs each script that a line of its input names, as `python SCRIPT ARGUMENTS` would, in a process forked from one that
# has imported torch and nothing else, and prints how it ended and what it printed.
PLAIN = """\
import json, os, runpy, sys, traceback
import torch

for line in sys.stdin:
    script, *arguments = words = json.loads(line)
    out, err = (open(os.path.join(sys.argv[1], name), "w+") for name in ("out", "err"))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for file, number in ((out, 1), (err, 2)):
                os.dup2(file.fileno(), number)
            sys.argv, sys.path[0] = words, os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
            status = 0
        except SystemExit as end:
            status = 1 if end.code else 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    print(json.dumps([status, *(open(file.name).read() for file in (out, err))]), flush=True)
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The process that runs samples as plain Python."""
    command = [sys.executable, "-c", PLAIN, str(tmp_path_factory.mktemp("plain"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def printed(plain: subprocess.Popen[str], script: Path, *arguments: str) -> str:
    """What a sample prints; it has to end well."""
    assert plain.stdin is not None
    assert plain.stdout is not None
    plain.stdin.write(json.dumps([str(script), *arguments]) + "\n")
    plain.stdin.flush()
    status, out, err = json.loads(plain.stdout.readline())
    assert status == 0, err
    return str(out)


@pytest.mark.parametrize(("name", "arguments", "_model"), SAMPLES)
def test_a_sample_runs_as_plain_python(
    name: str, arguments: tuple[str, ...], _model: str, root: Path, plain: subprocess.Popen[str]
) -> None:
    pytest.importorskip("transformers" if name in HUGGING_FACE else "torch")
    lines = printed(plain, root / "samples" / name, *arguments).splitlines()
    assert lines
    if name == "torch_compile.py":
        assert float(lines[-1].rsplit(" ", 1)[1]) < 1e-5, "it says how far its results are from eager's"


# What others have as well: convolutions by depth, attention with a cache, patches of images.
LIKE_OTHERS = ("mobilenet_v3.py", "whisper.py", "vit.py", "llama.py")
COMPILED = sampled(
    SAMPLES, [s for s in SAMPLES if s[0] not in LIKE_OTHERS or "--decode" in s[1]], "a model of ops that others have"
)


@pytest.fixture(scope="module", params=COMPILED, ids=lambda sample: " ".join((sample[0], *sample[1])))
def sample(request: pytest.FixtureRequest, root: Path) -> tuple[str, tuple[CapturedGraph, ...]]:
    """A sample's name and its graphs, captured once for all dialects."""
    name, arguments, model = request.param
    pytest.importorskip("transformers" if name in HUGGING_FACE else "torch")
    program = load_program(str(root / "samples" / name), arguments)
    assert ", ".join(graph.info.name for graph in program.graphs) == model
    return name, tuple(program.graphs)


IN_TOSA = pytest.mark.full("models by the dialect that tests/ops and tests/docs compile op by op")


@pytest.mark.parametrize("dialect", ["linalg", pytest.param("tosa", marks=IN_TOSA)])
def test_a_sample_compiled_equals_eager(sample: tuple[str, tuple[CapturedGraph, ...]], dialect: Any) -> None:
    name, graphs = sample
    for captured in graphs:
        report = compiled_equals_eager(captured, dialect)
        if dialect == "linalg":
            limit = MEMORY_OF.get(name, MEMORY) * report.memory.eager + SMALL
            assert report.memory.compiled <= limit, report.memory


def compiled_equals_eager(captured: CapturedGraph, dialect: Any) -> Any:
    """The graph is compiled as a whole, and agrees; the report of its run."""
    compilation = Compiler(captured.graph).compile(default_recipe(dialect=dialect))
    eager = [a.node for a in compilation.assignments if a.lowering == "eager"]
    assert eager == []
    nodes, seconds = NodeCounts.of(compilation.assignments), compilation.seconds
    report = run_and_compare(captured, compilation.artifact, repeats=2, threads=1, nodes=nodes, compile_seconds=seconds)
    assert report.ok, report
    return report


def table_of_samples(root: Path) -> dict[str, bool]:
    """The samples in the table of samples, and whether it says that they take `--tiny`."""
    rows = re.findall(
        r"^\| `samples/(\w+\.py)` \|.*\| (yes )?\|$",
        (root / "docs" / "reference" / "samples.md").read_text("utf-8"),
        re.M,
    )
    return {name: bool(tiny) for name, tiny in rows}


def test_the_page_of_samples_lists_every_sample_and_which_take_tiny(root: Path) -> None:
    samples = {path.name: '"--tiny"' in path.read_text("utf-8") for path in (root / "samples").glob("*.py")}
    assert table_of_samples(root) == samples
    assert {name for name, _, _ in SAMPLES} == set(samples)

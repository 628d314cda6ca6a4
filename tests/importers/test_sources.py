"""Scripts as users write them: what is captured, what world they run in, and what is said when they fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.importers.sources import CapturedProgram, SourceError, load_program
from buddy.compiler.protocol import Diagnostic

Write = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """Writes a script into a folder of its own and gives its path."""

    def write(text: str, name: str = "script.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def names(program: CapturedProgram) -> list[str]:
    return [graph.info.name for graph in program.graphs]


def targets(program: CapturedProgram, graph: int = 0) -> list[str]:
    return [op.target for op in program.graphs[graph].graph.operations]


def refused(source: str, *arguments: str) -> Diagnostic:
    with pytest.raises(SourceError) as caught:
        load_program(source, arguments)
    return caught.value.diagnostic


# ---- names of results ------------------------------------------------------------------------------------------------

RETURNING = """
import collections
import dataclasses
import torch

Pair = collections.namedtuple("Pair", ["mean", "spread"])

@dataclasses.dataclass
class Scores:
    logits: torch.Tensor
    loss: torch.Tensor

class Model(torch.nn.Module):
    def forward(self, x):
        y, z = x + 1, x * 2
        return {result}

model, example_inputs = Model(), (torch.randn(3),)
"""


@pytest.mark.parametrize("frontend", ["dynamo", "export"])
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ('{"hidden": y, "pooled": z}', ["hidden", "pooled"]),
        ('{"pooled": z, "layers": [y, z + y]}', ["pooled", "layers.0", "layers.1"]),
        ("Pair(z, y)", ["mean", "spread"]),
        ("(y, {'last': z})", ["add", "1.last"]),
        ("(y, z)", ["add", "mul"]),
        ("y", ["output"]),
    ],
)
def test_results_have_the_names_that_the_program_gives_them(
    script: Write, result: str, expected: list[str], frontend: Any
) -> None:
    program = load_program(script(RETURNING.replace("{result}", result)), (), frontend=frontend)
    assert sorted(program.graphs[0].names_of_results()) == sorted(expected)


@pytest.mark.parametrize("call", ["model(*example_inputs)", "torch.compile(model)(*example_inputs)"])
def test_the_results_of_a_call_of_the_script_have_names_too(script: Write, call: str) -> None:
    text = RETURNING.replace("{result}", "Scores(y, z)").replace("model, example_inputs", "net, inputs")
    text += call.replace("model", "net").replace("example_inputs", "inputs") + "\n"
    assert load_program(script(text)).graphs[0].names_of_results() == ("logits", "loss")


def test_after_a_graph_break_the_graph_of_a_result_names_it(script: Write) -> None:
    text = RETURNING.replace("y, z = x + 1, x * 2", "y = x + 1; torch._dynamo.graph_break(); z = y * 2")
    first, second = load_program(script(text.replace("{result}", '{"last": z}'))).graphs
    assert (first.names_of_results(), second.names_of_results()) == (("add",), ("last",))


# ---- what is captured ------------------------------------------------------------------------------------------------

MODEL = "import torch\nmodel = torch.nn.Linear(3, 2)\n"


@pytest.mark.parametrize(
    "inputs",
    [
        "example_inputs = torch.ones(4, 3)",
        "example_inputs = (torch.ones(4, 3),)",
        "example_inputs = [torch.ones(4, 3)]",
        "example_inputs = {'input': torch.ones(4, 3)}",
        "def example_inputs():\n    return torch.ones(4, 3)",
    ],
)
def test_model_and_inputs_in_every_form(script: Write, inputs: str) -> None:
    program = load_program(script(MODEL + inputs))
    graph = program.graphs[0]
    assert (names(program), graph.info.inputs, graph.info.parameters) == (["Linear"], 1, 2)
    assert graph.eager(graph.tensors)[0].shape == (4, 2)


def test_a_function_that_makes_the_model(script: Write) -> None:
    source = script("import torch\ndef model():\n    return torch.nn.ReLU()\nexample_inputs = torch.ones(2)\n")
    assert targets(load_program(source)) == ["relu.default"]


def test_a_function_that_is_the_model(script: Write) -> None:
    source = script(
        "import torch\ndef model(x, y):\n    return x @ y\nexample_inputs = torch.ones(2, 3), torch.ones(3, 2)\n"
    )
    assert targets(load_program(source)) == ["mm.default"]


WITHOUT_INPUTS = """
import torch
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(3))
    def forward(self):
        return self.w * 2
model = M()
"""


def test_a_model_without_inputs(script: Write) -> None:
    graph = load_program(script(WITHOUT_INPUTS)).graphs[0]
    assert (graph.info.inputs, graph.info.parameters) == (0, 1)


PLAIN = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
with torch.no_grad():
    for rows in (2, 2, 5, 2):
        print(net(torch.ones(rows, 3)).shape)
"""


def test_plain_calls_once_per_module_and_shape(script: Write, capsys: pytest.CaptureFixture[str]) -> None:
    program = load_program(script(PLAIN))
    assert names(program) == ["Sequential", "Sequential #2"]
    assert [graph.tensors[2].shape for graph in program.graphs] == [(2, 3), (5, 3)]
    assert capsys.readouterr().out.count("torch.Size") == 4


def test_the_number_of_captured_calls_is_bounded_and_said(script: Write) -> None:
    text = "import torch\nnet = torch.nn.ReLU()\nfor n in range(1, 30):\n    net(torch.ones(n))\n"
    program = load_program(script(text))
    assert len(program.graphs) == 8
    assert any("only the first 8" in note for note in program.notes)


def test_what_the_script_compiles_itself_comes_first(script: Write) -> None:
    text = (
        "import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2))\n"
        "@torch.compile(backend='inductor')\ndef f(x):\n    return x.sin()\nf(torch.ones(3))\n"
    )
    program = load_program(script(text))
    assert names(program) == ["f"]
    assert targets(program) == ["sin.default"]


BUDDY = """
import torch
from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.ops import tosa
compiler = DynamoCompiler(primary_registry=tosa.ops_registry)
graphs = compiler.importer(lambda x, y: x * y + x, torch.randn(10), torch.randn(10))
assert graphs == compiler.imported_graphs and compiler.imported_params[graphs[0]] == []
graphs[0].lower_to_top_level_ir()
print(graphs[0]._imported_module)
result = compiler.dynamo_run()(torch.ones(10), torch.ones(10))
assert result[0].tolist() == [2.0] * 10
@torch.compile(backend=compiler)
def g(x):
    return x.exp()
g(torch.ones(2))
"""


def test_a_buddy_script_is_captured_as_it_runs(script: Write, capsys: pytest.CaptureFixture[str]) -> None:
    program = load_program(script(BUDDY))
    assert [targets(program, i) for i in range(2)] == [["mul.Tensor", "add.Tensor"], ["exp.default"]]
    assert "tosa.mul" in capsys.readouterr().out


BREAK = """
import torch
def model(x):
    y = x.sin()
    print("here")
    return y.cos()
example_inputs = torch.ones(2)
"""


def test_graph_breaks_give_several_graphs(script: Write) -> None:
    program = load_program(script(BREAK))
    assert [targets(program, i) for i in range(2)] == [["sin.default"], ["cos.default"]]


TRAINING = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    optimiser.zero_grad()
    loss = net(torch.ones(4, 3)).pow(2).sum()
    loss.backward()
    optimiser.step()
print("trained", float(loss.detach()))
"""


def test_a_training_script_gives_forward_and_backward(
    script: Write, capsys: pytest.CaptureFixture[str], run_python: Callable[..., Any]
) -> None:
    source = script(TRAINING)
    program = load_program(source)
    assert names(program) == ["Linear", "Linear (backward)"]
    assert [op.stable for op in program.graphs[0].graph.placeholders][:2] == ["weight", "bias"]
    assert any("backward" in note for note in program.notes)
    printed = capsys.readouterr().out
    assert printed == run_python(source).stdout


def test_buffers_change_once_per_call(script: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "import torch\nnorm = torch.nn.BatchNorm1d(3)\nnorm(torch.ones(4, 3))\nprint(int(norm.num_batches_tracked))\n"
    )
    load_program(script(text))
    assert capsys.readouterr().out == "1\n"


def test_random_numbers_are_those_of_the_script_alone(script: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import torch\ntorch.manual_seed(0)\ntorch.nn.Dropout()(torch.ones(4))\nprint(torch.rand(1).item())\n"
    load_program(script(text))
    torch.manual_seed(0)
    torch.nn.Dropout()(torch.ones(4))
    assert capsys.readouterr().out == f"{torch.rand(1).item()}\n"


ANNOTATED = """
import dataclasses, typing, torch

@dataclasses.dataclass
class Config:
    width: int = 3

kinds = [field.type for field in dataclasses.fields(Config)]
assert kinds == [int], kinds
model, example_inputs = torch.nn.Linear(Config().width, 2), torch.ones(1, 3)
"""


def test_annotations_are_values_where_the_script_does_not_say_otherwise(script: Write) -> None:
    assert names(load_program(script(ANNOTATED))) == ["Linear"]
    with pytest.raises(SourceError, match="'int'"):
        load_program(script("from __future__ import annotations\n" + ANNOTATED, "other.py"))


# ---- names in scripts and modules ------------------------------------------------------------------------------------


WITH_MAIN = """
import torch
def f(x):
    return x.exp()
example_inputs = torch.ones(2)
if __name__ == "__main__":
    print("main")
"""


def test_a_name_in_a_script_leaves_its_main_block_alone(script: Write, capsys: pytest.CaptureFixture[str]) -> None:
    program = load_program(script(WITH_MAIN) + ":f")
    assert targets(program) == ["exp.default"]
    assert capsys.readouterr().out == ""


def test_a_name_in_a_module_of_the_folder(script: Write, tmp_path: Path) -> None:
    script("import torch\ndef f(x):\n    return x.exp()\nexample_inputs = torch.ones(2)\n", "buddy_test_pkg_mod.py")
    assert targets(load_program("buddy_test_pkg_mod:f", directory=str(tmp_path))) == ["exp.default"]


def test_a_missing_name_lists_those_there_are(script: Write) -> None:
    diagnostic = refused(script(MODEL) + ":modle")
    assert "does not define modle" in diagnostic.what
    assert "model" in diagnostic.todo


# ---- the world a script runs in --------------------------------------------------------------------------------------

WORLD = """
import sys
from pathlib import Path
import torch
import buddy_test_neighbour
assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
assert sys.argv[1:] == ["--width", "5"], sys.argv
assert Path(__file__).with_name("data.txt").read_text() == "data"
assert sys.path[0] == str(Path(__file__).parent)
torch.nn.ReLU()(torch.ones(buddy_test_neighbour.SIZE))
"""


def test_a_script_runs_as_python_would_run_it(script: Write, tmp_path: Path) -> None:
    script("SIZE = 7\n", "buddy_test_neighbour.py")
    (tmp_path / "data.txt").write_text("data")
    before = list(sys.path), list(sys.argv), sys.modules["__main__"], torch.compile, torch.nn.Module.__call__
    program = load_program(script(WORLD), ("--width", "5"))
    assert program.graphs[0].tensors[0].shape == (7,)
    assert before == (list(sys.path), list(sys.argv), sys.modules["__main__"], torch.compile, torch.nn.Module.__call__)


# The script leaves the folder that its path is relative to, for one that is then deleted.
LEAVING = """
import os, tempfile, torch
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
torch.nn.ReLU()(torch.ones(2))
"""


def test_a_script_may_leave_its_folder(script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(LEAVING)
    monkeypatch.chdir(tmp_path)
    program = load_program("script.py")
    assert targets(program) == ["relu.default"]
    assert program.files[0] == str(tmp_path / "script.py")
    assert Path.cwd() == tmp_path


SUSPENDING = """
import asyncio, torch
class Waiting(torch.nn.Module):
    async def forward(self, x):
        await asyncio.sleep(0)
        return torch.relu(x)
class Yielding(torch.nn.Module):
    def forward(self, x):
        yield x
print(asyncio.run(Waiting()(torch.ones(2))).tolist(), len(list(Yielding()(torch.ones(2)))))
torch.nn.Sigmoid()(torch.ones(2))
"""


def test_coroutines_and_generators_run_in_eager(script: Write, capsys: pytest.CaptureFixture[str]) -> None:
    program = load_program(script(SUSPENDING))
    assert capsys.readouterr().out == "[1.0, 1.0] 1\n"
    assert targets(program) == ["sigmoid.default"]
    assert program.notes == [
        "Waiting was not captured: its forward is a coroutine (async def)",
        "Yielding was not captured: its forward is a generator",
    ]


def test_a_model_without_weights_before_its_first_call(script: Write) -> None:
    text = "import torch\nmodel, example_inputs = torch.nn.LazyLinear(3), torch.ones(2, 5)\n"
    assert "addmm.default" in targets(load_program(script(text)))


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("def f(x):\n    return x / 0\nf(1)\n", "raised ZeroDivisionError: division by zero", "script.py:2 in f"),
        ("import sys\nsys.exit(3)\n", "exited with status 3", "script.py:2"),
        ("import sys\nsys.exit('usage: MODEL')\n", "the message: usage: MODEL", "script.py:2"),
        ("name = input('which? ')\n", "reads from standard input", "script.py:1"),
        ("import sys\nfor line in sys.stdin:\n    print(line)\n", "reads from standard input", "script.py:2"),
        ("x = 1\ndef f(:\n    pass\n", "not valid Python", "script.py:2"),
        ("import not_there_at_all\n", "raised ModuleNotFoundError: No module named 'not_there_at_all'", "script.py:1"),
        ("print('nothing')\n", "no model was captured", "script.py"),
        (MODEL, "needs inputs", "script.py:model"),
        (MODEL + "example_inputs = torch.ones(4, 5)\n", "shapes cannot be multiplied", "script.py"),
        (MODEL + "example_inputs = 1, 2\n", "do not fit", "script.py:model"),
        ("model = 3\nexample_inputs = 4\n", "which cannot be called", "script.py:model"),
        ("raise KeyboardInterrupt if 0 else SystemError('odd')\n", "raised SystemError: odd", "script.py:1"),
        (
            "class Odd(Exception):\n    def __str__(self):\n        return 3\nraise Odd\n",
            "raised Odd: its text raised TypeError",
            "script.py:4",
        ),
        ("import os, torch\nos.chdir('/')\nraise OSError('elsewhere')\n", "raised OSError: elsewhere", "script.py:3"),
        ("async def model(x): return x + 1\nexample_inputs = 4\n", "is a coroutine (async def)", "script.py:model"),
        ("def model(x):\n    yield x\nexample_inputs = 4\n", "is a generator", "script.py:model"),
    ],
)
def test_a_script_that_fails(script: Write, text: str, what: str, line: str) -> None:
    diagnostic = refused(script(text))
    assert what in diagnostic.what
    assert diagnostic.where.endswith(line)
    assert diagnostic.todo
    assert "buddy/compiler" not in diagnostic.detail
    assert "compiler/importers/sources" not in diagnostic.detail


def test_an_early_clean_exit_keeps_what_was_captured(script: Write) -> None:
    program = load_program(script("import sys, torch\ntorch.nn.ReLU()(torch.ones(2))\nsys.exit(0)\n"))
    assert targets(program) == ["relu.default"]


def test_a_missing_file_suggests_the_nearest(script: Write, tmp_path: Path) -> None:
    script("", "model.py")
    diagnostic = refused(str(tmp_path / "modle.py"))
    assert "there is no file" in diagnostic.what
    assert "model.py" in diagnostic.todo


def test_a_link_to_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to("moved.py")
    diagnostic = refused(str(tmp_path / "link.py"))
    assert diagnostic.what == f"{tmp_path}/link.py is a link to a file that does not exist"
    assert (diagnostic.where, diagnostic.todo) == ("moved.py", "correct the link")


def test_an_empty_path_is_no_folder() -> None:
    assert refused("").what == "the path of the program is empty"


def test_a_folder_lists_its_scripts(script: Write, tmp_path: Path) -> None:
    script("", "model.py")
    diagnostic = refused(str(tmp_path))
    assert "is a folder" in diagnostic.what
    assert "model.py" in diagnostic.todo
    (tmp_path / "loop").symlink_to("loop")
    assert refused(str(tmp_path)) == diagnostic, "a link to itself is no reason to read nothing"


def test_a_script_that_is_wrong_or_of_another_encoding_is_a_script(script: Write, tmp_path: Path) -> None:
    wrong = script("import torch\nmodel = torch.nn.Linear(2, 2)\nmodel.eval()\ndef f(:\n    pass\n")
    assert "is not valid Python" in refused(wrong).what
    path = tmp_path / "latin.py"
    text = (
        "# -*- coding: latin-1 -*-\n# caf\u00e9\nimport torch\nmodel, example_inputs = torch.nn.ReLU(), torch.ones(2)\n"
    )
    path.write_bytes(text.encode("latin-1"))
    assert names(load_program(str(path))) == ["ReLU"]


def test_another_shape_may_have_another_element_type(script: Write) -> None:
    source = script("import torch\nmodel, example_inputs = torch.nn.ReLU(), torch.ones(2)\n")
    (captured,) = load_program(source, shapes=("input=3x4xf64",)).graphs
    assert [(tuple(t.shape), t.dtype) for t in captured.tensors] == [((3, 4), torch.float64)]


def test_a_file_that_is_no_script(script: Write) -> None:
    assert "is text, which contains no program" in refused(script("hello", "notes.txt")).what


def test_a_missing_module() -> None:
    assert "there is no module not_there" in refused("not_there.at_all:model").what


def test_a_failed_script_leaves_nothing_patched(script: Write) -> None:
    before = torch.compile, torch.nn.Module.__call__, torch.autograd.backward, sys.stdin
    refused(script("1/0\n"))
    assert before == (torch.compile, torch.nn.Module.__call__, torch.autograd.backward, sys.stdin)


def test_progress_is_told(script: Write) -> None:
    told: list[str] = []
    load_program(script(MODEL + "example_inputs = torch.ones(1, 3)\n"), on_progress=told.append)
    assert any("running" in text for text in told)
    assert "capturing" in told


HUGGING_FACE = """
from transformers import BertConfig, BertModel
import torch
config = BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=50)
model = BertModel.from_pretrained("nobody/has-cached-this", config=config)
example_inputs = {"input_ids": torch.zeros(1, 4, dtype=torch.int64)}
"""


def test_uncached_weights_are_built_from_the_config_and_said(script: Write) -> None:
    pytest.importorskip("transformers")
    first, second = load_program(script(HUGGING_FACE)), load_program(script(HUGGING_FACE))
    assert first.notes == [
        "nobody/has-cached-this is not in the local cache: BertModel was built from its config with seed 0"
    ]
    pairs = zip(first.graphs[0].tensors, second.graphs[0].tensors, strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


OPTIONS = """
from transformers import BertForSequenceClassification
import torch
model = BertForSequenceClassification.from_pretrained(
    "nobody/has-cached-this", num_labels=5, num_hidden_layers=1, hidden_size=32, num_attention_heads=2,
    intermediate_size=64, vocab_size=50, dtype=torch.bfloat16,
)
example_inputs = {"input_ids": torch.zeros(1, 4, dtype=torch.int64)}
"""


def test_a_model_built_from_its_config_has_the_options_of_the_call(script: Write) -> None:
    pytest.importorskip("transformers")
    (captured,) = load_program(script(OPTIONS)).graphs
    (result,) = captured.graph.results
    assert (result.tensor_meta.shape, result.tensor_meta.dtype) == ((1, 5), TensorDType.BFloat16)


AUTO = """
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertConfig
import torch
tokenizer = AutoTokenizer.from_pretrained("nobody/tiny-bert")
config = BertConfig(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64)
model = AutoModel.from_pretrained("nobody/tiny-bert", config=config)
example_inputs = tokenizer("some words", return_tensors="pt")
"""


def test_auto_classes_fall_back_too(script: Write) -> None:
    pytest.importorskip("transformers")
    program = load_program(script(AUTO))
    assert names(program) == ["BertModel"]
    assert [note.split(": ")[1] for note in program.notes] == [
        "BertTokenizer was made without a vocabulary",
        "BertModel was built from its config with seed 0",
    ]


@pytest.mark.parametrize("before", ["", "transformers.models.auto.modeling_auto"])
def test_a_model_of_unknown_kind_is_refused_with_the_reason(script: Write, before: str) -> None:
    """Also where the classes were there before the script (each holds its own copy of `from_pretrained`)."""
    pytest.importorskip(before or "transformers")
    text = "from transformers import AutoModel\nmodel = AutoModel.from_pretrained('nobody/zzz')\n"
    assert "no known architecture is named in 'nobody/zzz'" in refused(script(text)).what


MLIR = """
from mlir.ir import Context, Module
import mlir.passmanager
from mlir.dialects import func, linalg
import torch
with Context():
    print(Module.parse("module {}"))
import torch_mlir.ir
assert torch_mlir.ir.Context is Context
torch.nn.ReLU()(torch.ones(2))
"""


def test_a_script_may_import_mlir_by_its_own_name(script: Write, run_python: Callable[..., Any]) -> None:
    load = "import sys; from buddy.compiler.importers.sources import load_program; load_program(sys.argv[1])"
    done = run_python("-c", load, script(MLIR))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("module {")


def test_loading_needs_no_mlir(script: Write, run_python: Callable[..., Any]) -> None:
    load = (
        "import sys; from buddy.compiler.importers.sources import load_program; load_program(sys.argv[1]); "
        "sys.exit(', '.join(name for name in sys.modules if name.startswith(('torch_mlir', 'mlir'))))"
    )
    done = run_python("-c", load, script(PLAIN))
    assert done.stderr.strip() == ""


# ---- graphs that break off -------------------------------------------------------------------------------------------


def test_a_graph_that_breaks_off_says_why_and_on_which_line(script: Write) -> None:
    path = script(
        "import torch\n\n\ndef f(x):\n    y = x + 1\n    print(y.sum().item())\n"
        "    return y * 2 if y.sum() > 0 else y\n\n\ntorch.compile(f)(torch.ones(3))\n"
    )
    infos = [graph.info for graph in load_program(path).graphs]
    assert [info.name for info in infos] == ["f", "f #2", "f #3"]
    assert "Tensor.item()" in infos[0].break_reason
    assert infos[1].break_reason == "a branch on a tensor's value"
    assert [info.break_line for info in infos[:2]] == [f"{path}:6", f"{path}:7"]
    assert (infos[2].break_reason, infos[2].break_line) == ("", "")


def test_the_backward_graph_leaves_the_break_to_the_forward_graph(script: Write) -> None:
    path = script(
        "import torch\n\n\ndef f(x):\n    y = x * x\n    print('seen')\n    return y.sum()\n\n\n"
        "x = torch.ones(3, requires_grad=True)\ntorch.compile(f)(x).backward()\n"
    )
    infos = [graph.info for graph in load_program(path).graphs]
    broken = {info.name: bool(info.break_reason) for info in infos}
    assert broken == {"f": True, "f (backward)": False, "f #2": False, "f (backward) #2": False}


# ---- sizes that only a call tells ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "call"),
    [("", "dynamic=True"), ("torch._dynamo.mark_dynamic(x, 0)\n", "fullgraph=True")],
)
def test_a_script_says_which_sizes_only_a_call_tells(script: Write, mark: str, call: str) -> None:
    text = f"""
import torch
x = torch.randn(6, 8)
{mark}f = torch.compile(lambda x: (x * 2).sum(1) + x.shape[0], backend="buddy", {call})
f(x)
"""
    program = load_program(script(text))
    (graph,) = program.graphs
    rows = {row.target: row.shape for row in graph.info.rows}
    assert rows["aten.mul.Tensor"].startswith("s0x")
    (result,) = graph.eager(graph.tensors)
    torch.testing.assert_close(result, (graph.tensors[0] * 2).sum(1) + 6)

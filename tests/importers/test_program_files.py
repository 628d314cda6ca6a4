"""Programs and weights that PyTorch has saved: what is opened, on which inputs, and what is refused; nothing runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import bundled_inputs

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.importers.sources import CapturedProgram, SourceError, load_program
from buddy.compiler.importers.sources.inputs import new_generator, random_tensor
from buddy.compiler.importers.sources.modules import capture_module
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.pickles import UnsafeError, without_running_code
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.programs import parse_input_shape
from buddy.compiler.protocol.source_files import kind_of


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.b = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.tanh(self.b(torch.relu(self.a(x)))) * scale


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class Harm:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


@pytest.fixture(scope="module")
def model() -> Layers:
    torch.manual_seed(0)
    return Layers().eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Layers) -> Path:
    """The model in every form; the names of the files say nothing of what they are."""
    path, x = tmp_path_factory.mktemp("files"), torch.ones(2, 8)
    open_rows = {"x": {0: torch.export.Dim("rows", min=1, max=64)}}
    torch.export.save(torch.export.export(model, (x,)), path / "exported.pt2")
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=open_rows), path / "open.pt2")
    torch.jit.script(model).save(str(path / "script.bin"))
    rows = torch.jit.script(Rows().eval())
    rows.save(str(path / "rows.pt"))
    bundled_inputs.augment_model_with_bundled_inputs(rows, [(torch.tensor([[1, 2, 3]]),)])
    rows.save(str(path / "bundled.pt"))
    torch.save(model.state_dict(), path / "weights.pt2")
    torch.save(model.state_dict(), path / "legacy.pt", _use_new_zipfile_serialization=False)
    (path / "exported.bin").write_bytes((path / "exported.pt2").read_bytes())
    return path


def refused(path: Path, *shapes: str) -> Diagnostic:
    with pytest.raises(SourceError) as caught:
        load_program(str(path), shapes=shapes)
    return caught.value.diagnostic


def test_kinds_are_told_by_content(folder: Path) -> None:
    kinds = {path.name: kind_of(path).kind for path in folder.iterdir()}
    assert kinds == {
        "exported.pt2": "exported",
        "exported.bin": "exported",
        "open.pt2": "exported",
        "script.bin": "torchscript",
        "rows.pt": "torchscript",
        "bundled.pt": "torchscript",
        "weights.pt2": "weights",
        "legacy.pt": "weights",
    }


def results_of(program: CapturedProgram, x: torch.Tensor) -> torch.Tensor:
    """What the one graph gives in eager with `x` in the place of its input."""
    (captured,) = program.graphs
    assert captured.eager is not None
    tensors = [
        x if kind.value == "input" else t for kind, t in zip(captured.graph.kinds, captured.tensors, strict=True)
    ]
    (found,) = captured.eager(tensors)
    return found


@pytest.mark.parametrize(
    ("name", "shapes"), [("exported.bin", ()), ("open.pt2", ("x=5x8",)), ("script.bin", ("x=3x8",))]
)
def test_a_program_computes_what_the_model_does(
    folder: Path, model: Layers, name: str, shapes: tuple[str, ...]
) -> None:
    program = load_program(str(folder / name), shapes=shapes)
    (captured,) = program.graphs
    inputs = [t for kind, t in zip(captured.graph.kinds, captured.tensors, strict=True) if kind.value == "input"]
    assert [tuple(t.shape) for t in inputs] == [(int(shapes[0][2]), 8) if shapes else (2, 8)]
    assert captured.info.parameters == 4
    x = torch.randn_like(inputs[0])
    with torch.no_grad():
        torch.testing.assert_close(results_of(program, x), model(x))


def test_torchscript_takes_inputs_that_are_bundled_or_said(folder: Path) -> None:
    bundled = load_program(str(folder / "bundled.pt")).graphs[0]
    assert any(tensor.equal(torch.tensor([[1, 2, 3]])) for tensor in bundled.tensors)
    said = load_program(str(folder / "rows.pt"), shapes=("ids=2x5xi64",)).graphs[0]
    assert (2, 5) in [tuple(tensor.shape) for tensor in said.tensors if tensor.dtype is torch.int64]
    diagnostic = refused(folder / "rows.pt")
    assert "does not describe its inputs: ids" in diagnostic.what
    assert "--shape ids=" in diagnostic.todo


def test_a_program_without_inputs_of_its_own_gets_random_ones_and_keeps_its_numbers(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int, more: dict[str, torch.Tensor]) -> torch.Tensor:
            return x * n + more["a"]

    exported = torch.export.export(Scaled(), (torch.ones(2), 3, {"a": torch.ones(2)}))
    exported._example_inputs = None
    torch.export.save(exported, tmp_path / "scaled.pt2")
    program = load_program(str(tmp_path / "scaled.pt2"))
    assert any("contains no inputs: random ones are used" in note for note in program.notes)
    (captured,) = program.graphs
    assert captured.eager is not None
    x, more = captured.tensors
    torch.testing.assert_close(captured.eager(captured.tensors)[0], x * 3 + more)


def test_a_branch_that_runs_is_a_graph_and_another_is_told_of(tmp_path: Path) -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1 if bool(x.sum() > 0) else x - 1
            return y * 2

    path = tmp_path / "branches.pt"
    torch.jit.script(Branches()).save(str(path))
    program = load_program(str(path), shapes=("x=2",))
    targets = [row.target for graph in program.graphs for row in graph.info.rows]
    assert any("aten.add" in target for target in targets)
    assert not any("aten.sub" in target for target in targets)
    (note,) = program.notes
    assert "is captured as 3 graphs; the code between and after them runs in PyTorch" in note
    assert "its bodies are separate graphs" in note


@pytest.mark.parametrize("name", ["weights.pt2", "legacy.pt"])
def test_weights_are_no_program(folder: Path, name: str) -> None:
    diagnostic = refused(folder / name)
    assert "contains weights but no program: 4 tensors, 212 numbers (a.weight 16x8 float32" in diagnostic.what


@pytest.mark.parametrize("name", ["exported.pt2", "script.bin", "weights.pt2", "legacy.pt"])
def test_a_file_that_is_cut_off(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((folder / name).read_bytes()[:700])
    diagnostic = refused(path)
    assert any(word in diagnostic.what for word in ("truncated or damaged", "cannot be read as weights"))


# ---- what would run code ---------------------------------------------------------------------------------------------


def test_a_pickle_of_classes_is_refused_and_names_them(tmp_path: Path, model: Layers) -> None:
    path, mark = tmp_path / "harm.pt", tmp_path / "mark"
    torch.save({"weights": model.state_dict(), "more": Harm(mark)}, path)
    diagnostic = refused(path)
    assert "is a pickle that would run code: it asks for" in diagnostic.what
    assert "mkdir" in diagnostic.what
    path.write_bytes(pickle.dumps(Harm(mark)))
    assert "would run code" in refused(path).what
    assert not mark.exists()


def test_a_pickled_module_is_a_program_once_it_is_trusted(tmp_path: Path) -> None:
    path, module = tmp_path / "module.pt", torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()).eval()
    torch.save(module, path)
    diagnostic = refused(path, "input=2x8")
    assert "torch.nn.modules.container.Sequential" in diagnostic.what
    assert "--trust" in diagnostic.todo
    program = load_program(str(path), shapes=("input=2x8",), trusts=True)
    x = torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(results_of(program, x), module(x))


def replaced(path: Path, change: Callable[[str, bytes], bytes], to: Path) -> Path:
    """A copy of an archive with other content in its members."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(to, "w") as other:
        for name in archive.namelist():
            other.writestr(name, change(name, archive.read(name)))
    return to


def test_an_exported_program_whose_pickles_would_run_code(folder: Path, tmp_path: Path) -> None:
    mark, data = tmp_path / "mark", io.BytesIO()
    torch.save((((Harm(mark),), {})), data)

    def change(name: str, content: bytes) -> bytes:
        return data.getvalue() if "sample_inputs" in name and name.endswith(".pt") else content

    diagnostic = refused(replaced(folder / "exported.pt2", change, tmp_path / "harm.pt2"))
    assert "would execute code when read" in diagnostic.what
    assert not mark.exists()


def test_an_exported_program_whose_sizes_would_run_code(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    harm = f"__import__('os').mkdir('{mark}')"

    def change(name: str, content: bytes) -> bytes:
        return content.replace(b"Symbol('s77', positive=True, integer=True)", harm.encode())

    before = folder / "open.pt2"
    with zipfile.ZipFile(before) as archive:
        texts = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".json"))
    assert b"Symbol('s77', positive=True, integer=True)" in texts
    diagnostic = refused(replaced(before, change, tmp_path / "harm.pt2"))
    assert "in place of an expression of sizes" in diagnostic.what
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "open('x')", "(1).__class__", "[1 for s0 in (1,)]", "eval(s0)", "lambda: 1", "Symbol('a b')"],
)
def test_what_is_no_expression_of_sizes(text: str) -> None:
    import sympy

    with without_running_code(), pytest.raises(UnsafeError):
        sympy.sympify(text, locals={})


def test_expressions_of_sizes_are_read() -> None:
    import sympy

    s = sympy.Symbol("s77", positive=True, integer=True)
    with without_running_code():
        assert sympy.sympify("2*s77 + Max(s77, 3)//2", locals={"s77": s}).free_symbols == {s}
        assert sympy.sympify("Symbol('s77', positive=True, integer=True)", locals={}) == s


def test_a_program_that_touches_files_is_refused(tmp_path: Path) -> None:
    class Reads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.from_file("/etc/hostname", False, 1, dtype=torch.uint8).to(x.dtype)

    path = tmp_path / "reads.pt"
    torch.jit.script(Reads()).save(str(path))
    assert "calls torch.from_file, which accesses files" in refused(path, "x=2").what


def test_a_program_that_would_touch_files_by_being_read_is_refused_before(tmp_path: Path) -> None:
    class Leaves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        @torch.jit.export
        def __getstate__(self):  # type: ignore[no-untyped-def]
            return self.w, self.training

        @torch.jit.export
        def __setstate__(self, state: tuple[torch.Tensor, bool]):  # type: ignore[no-untyped-def]
            self.w, self.training = state[0], state[1]
            torch.save(state[0], "mark-of-a-module-that-was-read")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w

    path, mark = tmp_path / "leaves.pt", Path("mark-of-a-module-that-was-read")
    script = torch.jit.script(Leaves())
    mark.unlink(missing_ok=True)
    script.save(str(path))
    try:
        assert "calls torch.save, which accesses files" in refused(path, "x=2").what
        assert not mark.exists()
    finally:
        mark.unlink(missing_ok=True)


NEW_IN_3_11 = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no operator.call")


@pytest.mark.parametrize("called", ["torch.os.mkdir", pytest.param("_operator.call", marks=NEW_IN_3_11)])
def test_an_op_of_higher_order_may_not_call_whatever_it_is_given(tmp_path: Path, called: str) -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    mark, path = tmp_path / "mark", tmp_path / "branches.pt2"
    torch.export.save(torch.export.export(Branches(), (torch.ones(2),)), path)

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith("model.json"):
            return content
        program = json.loads(content)
        node = next(n for n in program["graph_module"]["graph"]["nodes"] if n["target"].endswith("cond"))
        node["target"] = "torch.ops.higher_order.wrap"
        given = ({"as_operator": called}, {"as_string": str(mark)})
        node["inputs"] = [{"name": "", "arg": each, "kind": 1} for each in given]
        return json.dumps(program).encode()

    diagnostic = refused(replaced(path, change, tmp_path / "harm.pt2"))
    assert f"{called.rpartition('.')[2]}>, which is not a computation on tensors" in diagnostic.what
    assert not mark.exists()


def test_a_shape_of_no_input_is_refused(folder: Path) -> None:
    assert "unknown input y; the inputs are ids" in refused(folder / "rows.pt", "ids=2x5xi64", "y=3").what


# ---- the parameters of a module's forward ----------------------------------------------------------------------------


class Masked(torch.nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 2.0, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x * scale if mask is None else x * scale + mask


class Collecting(torch.nn.Module):
    def forward(self, x: torch.Tensor, *inputs: torch.Tensor, **options: object) -> torch.Tensor:
        return x + len(inputs) + len(options)


class KeywordOnly(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, y: torch.Tensor | None = None, /, *, bias: torch.Tensor, more: float = 1.0
    ) -> torch.Tensor:
        return x + bias * more if y is None else x - y + bias


@pytest.mark.parametrize(
    ("module", "shapes", "expected"),
    [
        (Masked(), ("x=2x3",), lambda x: x * 2),
        (Masked(), ("x=2x3", "mask=5x2x3"), lambda x, mask: x * 2 + mask),
        (Collecting(), ("x=2x3",), lambda x: x),
        (KeywordOnly(), ("x=2x3", "bias=3"), lambda x, bias: x + bias),
        (KeywordOnly(), ("x=2x3", "y=2x3", "bias=3"), lambda x, y, bias: x - y + bias),
    ],
)
def test_only_parameters_without_a_default_need_a_shape(
    module: torch.nn.Module, shapes: tuple[str, ...], expected: Callable[..., torch.Tensor]
) -> None:
    opening = Opening(Path("model.pt"), title="model.pt", shapes=shapes)
    (captured,) = capture_module(opening, module).graphs
    assert captured.eager is not None
    generator = new_generator()
    inputs = [random_tensor(parse_input_shape(text).shape, TensorDType.Float32, generator) for text in shapes]
    torch.testing.assert_close(captured.eager(captured.tensors)[0], expected(*inputs))


def test_a_parameter_without_a_default_needs_a_shape() -> None:
    for module, name in ((Masked(), "x"), (Collecting(), "x"), (KeywordOnly(), "x, bias")):
        with pytest.raises(SourceError, match=f"does not describe its inputs: {name} "):
            capture_module(Opening(Path("model.pt"), title="model.pt"), module)

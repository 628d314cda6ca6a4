"""What an export writes: programs in C that give eager's numbers without Python, libraries that need libc alone."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from buddy.compiler.codegen.machines import this_machine
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER
from buddy.compiler.tools.export import ExportError, packages
from buddy.compiler.tools.export.interface import c_name
from tests.programs import Line
from tests.tools.export.written import COMPILERS, build, errors, examples, line, need, npy, program, run, write

# Sums of some hundred products of numbers of size 1, in another order than eager's: roundings of f32.
CLOSE = 1e-4
KINDS = ("asm", "object", "static", "shared", "llvm-ir", "mlir", "bytecode", "wheel")


class Encoder(nn.Module):
    """A layer of BERT, tiny: embeddings, attention, GELU, normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        q, k, v = (t.view(*t.shape[:2], 2, 16).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        x = self.last(x + self.down(nn.functional.gelu(self.up(x))))
        return x, torch.tanh(x[:, 0])


class Residual(nn.Module):
    """A block of ResNet, tiny: convolutions, batch norms, a residual, pools."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.down, self.head = nn.Conv2d(16, 32, 1, 2), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = torch.relu(self.second(torch.relu(self.first(x))) + x)
        return self.head(torch.relu(self.down(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a tiny BERT was exported to, in every kind."""
    need("gcc")
    torch.manual_seed(0)
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[1, 10:] = False
    _, made = line(Encoder().eval(), torch.randint(50, (2, 16)), mask)
    folder = tmp_path_factory.mktemp("encoder")
    write(made, folder, *KINDS)
    return folder


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_tiny_bert_runs_without_python_and_gives_eagers_numbers(encoder: Path, compiler: str) -> None:
    made = build(encoder, compiler, "main.c", "net.c", "net.o")
    said = run([made, *examples(encoder), "--repeats", "3"], encoder)
    assert len(errors(said)) == 2
    assert max(errors(said)) < CLOSE
    assert "time: median" in said


def test_assembly_and_both_libraries_are_the_same_program(encoder: Path) -> None:
    for words in (["net.c", "net.s"], ["libnet.a"], ["libnet.so", "-Wl,-rpath,$ORIGIN"]):
        said = run([build(encoder, "gcc", "main.c", *words), *examples(encoder)], encoder)
        assert max(errors(said)) < CLOSE, words


def test_the_shared_library_needs_libc_and_libm_and_shows_its_functions(encoder: Path) -> None:
    data = (encoder / "libnet.so").read_bytes()
    assert all(name.startswith(("libc.so", "libm.so")) for name in packages.needed_libraries(data))
    names = ("open", "run", "close", "inputs", "outputs", "sizes", "shape", "message", "detail")
    functions = {f"net_{name}" for name in names}
    assert set(packages.exported_symbols(data)) == functions


def test_weights_are_the_models_under_its_names(encoder: Path) -> None:
    data = (encoder / "net.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert not (8 + length) % 64
    torch.manual_seed(0)
    state = Encoder().state_dict()
    for name, tensor in state.items():
        begin, end = header[name]["data_offsets"]
        assert header[name]["shape"] == list(tensor.shape)
        found = np.frombuffer(data[8 + length + begin : 8 + length + end], "f4")
        assert np.array_equal(found, tensor.numpy().ravel()), name


def test_wrong_weights_are_told_of(encoder: Path, tmp_path: Path) -> None:
    made, data = build(encoder, "gcc", "main.c", "net.c", "net.o"), (encoder / "net.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + length]
    wrong = {
        "none": None,
        "empty": b"",
        "short": data[:6],
        "cut": data[: length // 2],
        "text": b"this is no safetensors file at all, it is some text",
        "renamed": data[:8] + text.replace(b'"words.weight"', b'"wards.weight"') + data[8 + length :],
        "half": data[:8] + text.replace(b'"F32"', b'"F16"') + data[8 + length :],
        "reshaped": data[:8] + text.replace(b"[50,32]", b"[32,50]") + data[8 + length :],
        "less": data[:-4],
        "nested": (1 << 10).to_bytes(8, "little") + b'{"a":' + b"[" * 1019,
    }  # fmt: skip
    for name, content in wrong.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        said = run([made, "--weights", str(path)], encoder, code=1)
        assert "file of weights" in said, name
    assert "words.weight" in run([made, "--weights", str(tmp_path / "renamed")], encoder, code=1)


def test_weights_that_lie_anywhere_are_read(encoder: Path, tmp_path: Path) -> None:
    """A header of any length puts data on odd addresses; other tensors, and texts with escapes, may stand in it."""
    data = (encoder / "net.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = {"note": 'a "quoted" \\ text \u00e9\n', "more": "x"}
    header["other"] = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps(header, indent=1).encode()
    text += b" " * ((1 - len(text)) % 8)
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    made = build(encoder, "gcc", "main.c", "net.c", "net.o")
    assert max(errors(run([made, "--weights", str(path), *examples(encoder)], encoder))) < CLOSE


def test_indices_out_of_range_are_refused_as_in_eager(encoder: Path, tmp_path: Path) -> None:
    made = build(encoder, "gcc", "main.c", "net.c", "net.o")
    paths = npy(tmp_path, ids=torch.full((2, 16), 50), mask=torch.ones(2, 16, dtype=torch.bool))
    said = run([made, *paths], encoder, code=1)
    assert "eager PyTorch rejects these values" in said
    assert "embedding" in said


def test_inputs_of_another_kind_are_told_of(encoder: Path, tmp_path: Path) -> None:
    made = build(encoder, "gcc", "main.c", "net.c", "net.o")
    (wrong,) = npy(tmp_path, shape=torch.zeros(16, 2, dtype=torch.int64))
    assert "another shape" in run([made, wrong], encoder, code=1)
    (wrong,) = npy(tmp_path, kind=torch.zeros(2, 16, dtype=torch.float64))
    assert "another element type" in run([made, wrong], encoder, code=1)
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.zeros((2, 16), "i8")))
    assert "Fortran's order" in run([made, str(tmp_path / "columns.npy")], encoder, code=1)
    assert "cannot be opened" in run([made, "nosuch.npy"], encoder, code=1)
    assert "unknown option" in run([made, "--nosuch"], encoder, code=1)


def test_the_header_is_c_and_cplusplus_and_tells_shapes(encoder: Path) -> None:
    need("g++")
    header = (encoder / "net.h").read_text()
    assert "int64_t ids[2][16]" in header
    assert "[2][16][32]" in header
    command = [
        "g++",
        "-std=c++17",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "main.cpp",
        "libnet.a",
        "-lm",
        "-o",
        "run-cpp",
    ]
    subprocess.run(command, cwd=encoder, check=True, timeout=120)
    said = run([encoder / "run-cpp", *examples(encoder)[:2]], encoder)
    assert "max" in said


def test_llvm_ir_mlir_and_bytecode_are_read_again(encoder: Path) -> None:
    from buddy.compiler.codegen.machines import machine_of, parse_module
    from buddy.compiler.mlir.bindings import ir
    from buddy.compiler.ops.lowering import new_context

    assert parse_module((encoder / "net.ll").read_text(), machine_of("")).get_function("net_entry")
    with new_context(), ir.Location.unknown():
        text = ir.Module.parse((encoder / "net.mlir").read_text())
        binary = ir.Module.parse((encoder / "net.mlirbc").read_bytes())
        assert str(text) == str(binary)


def test_nothing_is_written_over_unless_asked_for(encoder: Path, tmp_path: Path) -> None:
    _, made = line(lambda x: x + 1, torch.ones(4))
    (tmp_path / "net.ll").write_text("mine")
    with pytest.raises(ExportError, match=r"holds net\.ll already"):
        write(made, tmp_path, "llvm-ir", "mlir")
    assert [path.name for path in tmp_path.iterdir()] == ["net.ll"]
    write(made, tmp_path, "llvm-ir", force=True)
    assert "define" in (tmp_path / "net.ll").read_text()
    with pytest.raises(ExportError, match="is not a folder"):
        write(made, tmp_path / "net.ll", "mlir")
    (tmp_path / "net.mlir").mkdir()
    with pytest.raises(ExportError, match="is a folder"):
        write(made, tmp_path, "llvm-ir", "mlir", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "net.ll", "net.mlir"]
    (tmp_path / "example").write_text("mine")
    with pytest.raises(ExportError, match="is a file"):
        write(made, tmp_path, "object", force=True)
    for name in ("int", "Net", "2net", "a b", "../x", "", "exp", "index", "round_up", "weights", "now"):
        with pytest.raises(ExportError, match="is not a valid name for C functions"):
            write(made, tmp_path / "other", "mlir", name=name)
    assert c_name("exp") == "exp_program"


def test_a_model_that_is_called_as_nothing_in_c_keeps_its_name() -> None:
    for name in ("mlp", "bert", "resnet18", "model", "net", "linear", "attention", "encoder"):
        assert c_name(name) == name


def test_code_for_a_gpu_is_refused(tmp_path: Path) -> None:
    made = program(Line(lambda x: x + 1, torch.ones(4)), default_recipe(preset="gpu"))
    with pytest.raises(ExportError, match="for a GPU"):
        write(made, tmp_path, "object")


def test_a_program_may_have_tensors_without_elements_and_more_than_main_holds(tmp_path: Path) -> None:
    need("gcc", "g++")
    x = torch.arange(6.0).reshape(2, 3)
    _, made = line(lambda x, e: (x[:0] + 1, x * 2, torch.cat([e, x])), x, torch.ones(0, 3))
    write(made, tmp_path, "object")
    said = run([build(tmp_path, "gcc", "main.c", "net.c", "net.o"), *examples(tmp_path)], tmp_path)
    assert errors(said) == [0.0, 0.0, 0.0]
    command = ["g++", "-std=c++17", "-x", "c++", "main.cpp", "-x", "none", "loader.o", "net.o", "-lm", "-o", "run-cpp"]
    subprocess.run(["gcc", "-std=c11", "-c", "net.c", "-o", "loader.o"], cwd=tmp_path, check=True, timeout=120)
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    assert "max 10" in run([tmp_path / "run-cpp", *examples(tmp_path)[:2]], tmp_path)
    main = (tmp_path / "main.c").read_text()
    (tmp_path / "main.c").write_text(main.replace("MOST = 256", "MOST = 2"))
    small = build(tmp_path, "gcc", "main.c", "net.c", "net.o")
    assert "increase MOST" in run([small, *examples(tmp_path)[:2]], tmp_path, code=1)


def test_weights_from_a_pipe_do_not_hang(encoder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    made = build(encoder, "gcc", "main.c", "net.c", "net.o")
    assert "cannot be opened" in run([made, "--weights", str(tmp_path / "pipe")], encoder, code=1)


def test_a_compiler_that_is_no_command_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "'gcc")
    with pytest.raises(ExportError, match="CC is not a command"):
        packages.compiler_for(this_machine())
    need("gcc")
    monkeypatch.setenv("CC", " ")
    assert packages.compiler_for(this_machine())


def test_nodes_in_eager_are_refused_by_name() -> None:
    found = Line(lambda x: torch.relu(x) + 1, torch.ones(4))
    node = next(row.stable for row in found.program.info.rows if "relu" in row.target)
    made = program(found, default_recipe().with_choice(node, EAGER))
    with pytest.raises(ExportError, match=f"1 nodes run in eager PyTorch: {node}"):
        write(made, Path("nowhere"), "object")


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a tiny ResNet was exported to, as an object."""
    torch.manual_seed(0)
    model = Residual().eval()
    nn.init.uniform_(model.norm.running_var, 0.5, 2.0)
    _, made = line(model, torch.randn(1, 3, 32, 32))
    folder = tmp_path_factory.mktemp("residual")
    write(made, folder, "object")
    return folder


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_tiny_resnet_runs_without_python(residual: Path, compiler: str) -> None:
    said = run([build(residual, compiler, "main.c", "net.c", "net.o"), *examples(residual)], residual)
    assert max(errors(said)) < CLOSE


def test_threads_share_the_work_by_openmp(tmp_path: Path) -> None:
    torch.manual_seed(0)
    need("gcc")
    recipe = msgspec.structs.replace(default_recipe(), threads=2)
    _, made = line(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), torch.randn(64, 64), recipe=recipe)
    assert made.artifact.threads == 2
    write(made, tmp_path, "object", "shared")
    alone = run(
        [build(tmp_path, "gcc", "main.c", "net.c", "net.o", "-Wno-unknown-pragmas"), *examples(tmp_path)], tmp_path
    )
    shared = run([build(tmp_path, "gcc", "-fopenmp", "main.c", "net.c", "net.o"), *examples(tmp_path)], tmp_path)
    # No sum is divided among threads, so the bits are the same on any number of them.
    assert errors(alone) == errors(shared)
    assert errors(alone)[0] < CLOSE
    allowed = ("libc.so", "libm.so", "libgomp.so")
    assert all(name.startswith(allowed) for name in packages.needed_libraries((tmp_path / "libnet.so").read_bytes()))


def test_a_call_tells_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0)
    layer = nn.Linear(8, 4)
    _, made = line(lambda x: (torch.softmax(layer(x), -1), torch.cat([x, x])[1:]), x)
    assert made.artifact.symbols
    write(made, tmp_path, "object")
    other = torch.randn(11, 8)
    program = build(tmp_path, "gcc", "main.c", "net.c", "net.o")
    run([program, *npy(tmp_path, x=other), "--save", "made"], tmp_path)
    found = [np.load(tmp_path / f"made{i}.npy") for i in range(2)]
    # Eight products of numbers of size 1, in any order.
    np.testing.assert_allclose(found[0], torch.softmax(layer(other), -1).detach().numpy(), atol=1e-6)
    np.testing.assert_array_equal(found[1], torch.cat([other, other])[1:].numpy())
    assert "sizes" in (tmp_path / "net.h").read_text()


ELEMENT_TYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
def test_element_types_cross(dtype: torch.dtype, tmp_path: Path) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x == y, x, y)

    x, y = torch.tensor([0, 1, 1, 3]).to(dtype), torch.tensor([0, 1, 0, 2]).to(dtype)
    _, made = line(function, x, y)
    write(made, tmp_path, "object")
    said = run([build(tmp_path, "gcc", "main.c", "net.c", "net.o"), *examples(tmp_path)], tmp_path)
    assert errors(said) == [0.0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_results_are_written_and_read(dtype: torch.dtype, tmp_path: Path) -> None:
    """All bit patterns. The example program compares values, the saved file has the bits."""
    bits = torch.arange(256, dtype=torch.uint8).view(dtype)
    x = torch.where(bits.float().isfinite(), bits.float(), 1)
    _, made = line(lambda x: x.to(dtype), x)
    write(made, tmp_path, "object")
    program = build(tmp_path, "gcc", "main.c", "net.c", "net.o")
    assert errors(run([program, *examples(tmp_path), "--save", "made"], tmp_path)) == [0.0]
    np.testing.assert_array_equal(np.load(tmp_path / "made0.npy"), x.to(dtype).view(torch.uint8).numpy())


def test_cmake_builds_it(encoder: Path, tmp_path: Path) -> None:
    need("cmake", "gcc", "g++")
    for words in (["-S", str(encoder), "-B", "."], ["--build", "."]):
        subprocess.run(["cmake", *words], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    said = run([tmp_path / "net-c", *examples(encoder)], encoder)
    assert max(errors(said)) < CLOSE


def test_the_wheel_holds_what_its_record_says(encoder: Path) -> None:
    (path,) = encoder.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        record = wheel.read("net-0.1.0.dist-info/RECORD").decode().splitlines()
        assert wheel.testzip() is None
        assert wheel.read("net/net.safetensors") == (encoder / "net.safetensors").read_bytes()
    assert [entry.split(",")[0] for entry in record] == names
    assert {"net/__init__.py", "net/libnet.so"} <= set(names)

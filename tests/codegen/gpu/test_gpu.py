"""Programs for a GPU: their stages, their kernels by number, and what is said where they cannot be made or run."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from llvmlite import binding
from torch.nn import functional

from buddy.compiler.codegen.gpu import driver as gpu_driver
from buddy.compiler.codegen.gpu.driver import (
    LIBRARY,
    Device,
    DeviceFailed,
    KernelParameters,
    LoadOnDevice,
    NoDeviceError,
)
from buddy.compiler.codegen.gpu.host_code import HostCodeError, host_steps
from buddy.compiler.codegen.gpu.kernels import PtxError, emit_ptx
from buddy.compiler.codegen.machines import parse_module, this_machine
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol import NOT_APPLIED
from buddy.compiler.protocol.artifact import (
    Argument,
    Artifact,
    Buffer,
    Copy,
    DeviceProgram,
    KernelScalar,
    Launch,
    Pointer,
    TensorSpec,
    from_bytes,
    to_bytes,
)
from buddy.compiler.protocol.presets import default_recipe, presets
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.protocol.worker_messages import Activity
from buddy.compiler.runtime.buffers import torch_dtype
from buddy.compiler.runtime.executable import load_artifact
from buddy.compiler.runtime.on_device import GpuRunError
from buddy.compiler.support.processes.forks import ForkedWorker
from tests.programs import Line, assert_same, without

GPU = default_recipe(preset="gpu")
REGISTERS = [f"{place}.{axis}" for place in ("ctaid", "tid") for axis in "xyz"]
_DECLARED = re.compile(r"^declare .*@llvm\.nvvm\.read\.ptx\.sreg\.\w+\.\w\(\).*$", re.MULTILINE)
_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double}


class EmulatedKernel:
    """A kernel run on this CPU, one thread after another, with the arguments that a driver would pass.

    The kernel is that of the stage `ir`, of which PTX is made; only the registers that give a thread its position are
    replaced. Kernels whose threads wait for each other could not be run so.
    """

    def __init__(self, text: str, name: str) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        text = _DECLARED.sub("", text).replace("define ptx_kernel void", "define void")
        for register in REGISTERS:
            plain = register.replace(".", "_")
            text = text.replace(f"@llvm.nvvm.read.ptx.sreg.{register}", f"@read_{plain}")
            text += f"\n@{plain} = global i32 0\ndefine i32 @read_{plain}() {{\n"
            text += f"  %v = load i32, ptr @{plain}\n  ret i32 %v\n}}\n"
        machine = binding.Target.from_default_triple().create_target_machine()
        self._engine = binding.create_mcjit_compiler(parse_module(text, this_machine()), machine)
        self._engine.finalize_object()
        self._address = self._engine.get_function_address(name)
        self._places = [
            ctypes.c_int32.from_address(self._engine.get_global_value_address(register.replace(".", "_")))
            for register in REGISTERS
        ]

    def launch(self, launch: Launch, addresses: dict[int, int]) -> None:
        parameters = KernelParameters(launch.arguments, addresses)
        kinds = [ctypes.c_void_p if isinstance(a, Pointer) else _TYPES[a.kind] for a in launch.arguments]
        values = [kind.from_address(parameters.table[i]) for i, kind in enumerate(kinds)]
        function: Callable[..., Any] = ctypes.CFUNCTYPE(None, *kinds)(self._address)
        for block in itertools.product(*map(range, launch.grid)):
            for thread in itertools.product(*map(range, launch.block)):
                for place, number in zip(self._places, (*block, *thread), strict=True):
                    place.value = number
                function(*values)


def run_emulated(artifact: Artifact, llvm_ir: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a program for a GPU returns, with its kernels run on this CPU."""
    assert artifact.device is not None
    texts = ["; ModuleID" + text for text in llvm_ir.split("; ModuleID")[1:]]
    named = {re.search(r"define ptx_kernel void @(\w+)\(", text)[1]: text for text in texts}  # type: ignore[index]
    buffers = [inputs[argument.source].contiguous() for argument in artifact.arguments]
    results = [torch.empty(tuple(map(int, spec.shape)), dtype=torch_dtype(spec)) for spec in artifact.results]
    own = [torch.frombuffer(bytearray(b.content or b.size), dtype=torch.uint8) for b in artifact.device.buffers]
    addresses = {number: tensor.data_ptr() for number, tensor in enumerate([*buffers, *results, *own])}
    for step in artifact.device.steps:
        if isinstance(step, Copy):
            ctypes.memmove(addresses[step.target], addresses[step.source], step.size)
        else:
            EmulatedKernel(named[step.kernel], step.kernel).launch(step, addresses)
    return results


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def projected(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w + b) * 0.5


def chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.sqrt(torch.abs(x) + 1) * torch.exp(-y) + torch.floor(x * 3)
    return functional.gelu(z), z > y


def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(functional.layer_norm(x, (x.shape[-1],)) @ w, dim=-1)


def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([functional.pad(x, (2, 1)), y], dim=1) * 2


PROGRAMS = {
    # Neither size is a whole number of blocks.
    "a matmul": (projected, (numbers(11, 7), numbers(7, 45), numbers(45))),
    "an element-wise chain": (chain, (numbers(37), numbers(37))),
    "rows": (normalised, (numbers(2, 3, 8), numbers(8, 5))),
    "copies of strided buffers": (padded, (numbers(3, 5), numbers(3, 4))),
    "a constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), (numbers(4, 3),)),
}


@pytest.fixture(scope="module", params=PROGRAMS, ids=list(PROGRAMS))
def program(request: pytest.FixtureRequest) -> tuple[Line, Any]:
    function, inputs = PROGRAMS[request.param]
    line = Line(function, *inputs)
    return line, line.compile(GPU)


def test_the_phases_are_those_that_the_preset_says(program: tuple[Line, Any]) -> None:
    line, _ = program
    wanted = presets()["gpu"].phases[1:]
    seen = dict.fromkeys((stage.phase, stage.language) for stage, _ in line.stages)
    assert list(seen) == list(wanted)


def test_every_op_and_instruction_leads_to_nodes(program: tuple[Line, Any]) -> None:
    line, _ = program
    for stage, text in line.stages:
        assert len(text.line_sets) == len(text.content.splitlines()), stage.name
        assert stage.origins[2] == 0, stage.name


def test_the_kernels_give_eagers_numbers(program: tuple[Line, Any]) -> None:
    line, compilation = program
    artifact = from_bytes(to_bytes(compilation.artifact))
    found = run_emulated(artifact, line.text("translate"), line.program.tensors)
    with torch.no_grad():
        assert_same(found, line.program.eager(line.program.tensors))


def test_the_text_is_ptx_with_an_entry_for_each_launch(program: tuple[Line, Any]) -> None:
    line, compilation = program
    device = compilation.artifact.device
    assert not compilation.artifact.objects
    entries = re.findall(r"\.visible \.entry (\w+)\(", line.text("codegen"))
    assert entries == [step.kernel for step in device.steps if isinstance(step, Launch)]
    for text in device.modules:
        assert text.startswith(".version ")
        assert f".target {device.chip}\n" in text
        assert ".loc" not in text
        assert "__nv_" not in text


def test_blocks_have_threads_side_by_side_along_the_last_dim() -> None:
    line = Line(lambda x: x + 1, numbers(40, 50))
    (launch,) = line.compile(GPU).artifact.device.steps
    assert (launch.grid, launch.block) == ((2, 5, 1), (32, 8, 1))


def test_the_same_recipe_gives_the_same_text() -> None:
    function, inputs = PROGRAMS["a matmul"]
    texts = [Line(function, *inputs) for _ in range(2)]
    for line in texts:
        line.compile(GPU)
    assert texts[0].text("codegen") == texts[1].text("codegen")


def test_a_field_that_the_backend_does_not_read_is_reported() -> None:
    line = Line(lambda x: x + 1, numbers(4))
    remarks = line.compile(msgspec.structs.replace(GPU, target="x86-64-v3", opt_level=3)).remarks
    assert [remark for remark in remarks if remark[0] == NOT_APPLIED] == [
        (NOT_APPLIED, "", "target has no effect: the backend gpu does not read it")
    ]


# ---- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "recipe"),
    [(lambda x: torch.sort(x).values, GPU), (lambda x: torch.relu(x) + 1, GPU.with_choice("relu.0", EAGER))],
    ids=["a loop of the host's", "an op in eager"],
)
def test_what_the_host_would_have_to_do_is_told(function: Callable[..., Any], recipe: Recipe) -> None:
    diagnostic = Line(function, numbers(6)).fail(recipe).diagnostic
    assert "is left on the host, which only launches kernels" in diagnostic.what
    assert diagnostic.node
    assert "--preset default" in diagnostic.todo


def test_a_dynamic_size_of_the_entry_is_refused_with_its_location() -> None:
    text = 'func.func @f(%size: index {buddy.symbol = "s0"}) { return loc("graph":0:0) } loc("graph":0:0)'
    module = ir.Module.parse(text, ir.Context())
    with pytest.raises(HostCodeError, match="the program has dynamic sizes") as refusal:
        host_steps(module.operation)
    assert LocationSets().number_of(refusal.value.location) == 0


def test_checks_of_values_are_named_as_the_reason_and_can_be_omitted() -> None:
    line = Line(lambda table, i: table[i] * 2, numbers(5, 3), torch.tensor([4, 0]))
    diagnostic = line.fail(GPU).diagnostic
    assert "--checks none" in diagnostic.todo
    compilation = line.compile(msgspec.structs.replace(GPU, checks="none"))
    found = run_emulated(compilation.artifact, line.text("translate"), line.program.tensors)
    with torch.no_grad():
        assert_same(found, line.program.eager(line.program.tensors))


def test_a_function_that_no_instruction_computes_is_told() -> None:
    diagnostic = Line(torch.exp, numbers(6)).fail(without(GPU, "expand-math-to-polynomials")).diagnostic
    assert "__nv_expf" in diagnostic.what
    assert "expand-math-to-polynomials" in diagnostic.todo


def test_an_intrinsic_that_would_end_the_process_is_refused() -> None:
    text = "define void @f(ptr %p) {\n  %v = load float, ptr %p\n  %e = call float @llvm.exp.f32(float %v)\n"
    text += "  store float %e, ptr %p\n  ret void\n}\ndeclare float @llvm.exp.f32(float)\n"
    with pytest.raises(PtxError, match=r"llvm\.exp\.f32"):
        emit_ptx(text, "sm_75", 2)
    assert ".visible .func f" in emit_ptx(text.replace("exp", "sqrt"), "sm_75", 2)


def test_a_kernel_that_is_not_lowered_is_told_with_its_node() -> None:
    diagnostic = Line(torch.relu, numbers(6)).fail(without(GPU, "convert-gpu-to-nvvm")).diagnostic
    assert "in a kernel has not been converted to the LLVM dialect" in diagnostic.what
    assert diagnostic.node == "relu.0"


# ---- launching -------------------------------------------------------------------------------------------------------


def test_arguments_lie_as_a_driver_reads_them() -> None:
    arguments = (
        Pointer(2),
        KernelScalar("i64", -5),
        KernelScalar("f32", 0.5),
        KernelScalar("i1", 1),
        KernelScalar("f64", 0.25),
    )
    parameters = KernelParameters(arguments, {2: 0x7F0012345678})
    kinds = (ctypes.c_uint64, ctypes.c_int64, ctypes.c_float, ctypes.c_int8, ctypes.c_double)
    table = (ctypes.c_void_p * len(arguments)).from_address(parameters.address)
    found = [kind.from_address(place).value for kind, place in zip(kinds, table, strict=True)]
    assert found == [0x7F0012345678, -5, 0.5, 1, 0.25]


def driver() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


# The functions of the package `cuda.bindings.driver` that a program of copies calls. Memory of the device is memory of
# the process. The driver fails in a fork of a process that has torch's CUDA libraries; this one where torch is.
EMULATED_DRIVER = r"""
import ctypes, os, sys

memory = []

def cuInit(flags):
    {start}
    if "torch" in sys.modules:
        return (999,)
    return (0,)

def cuGetErrorString(status):
    return 0, {{3: b"initialization error", 100: b"no CUDA-capable device is detected", 999: b"torch is here"}}[status]

def cuDeviceGet(number):
    return 0, number

def cuDevicePrimaryCtxRetain(device):
    return 0, 1

def cuCtxSetCurrent(context):
    return (0,)

def cuDeviceGetName(size, device):
    return 0, b"an emulated GPU\0"

def cuMemAlloc(size):
    memory.append(ctypes.create_string_buffer(size))
    return 0, ctypes.addressof(memory[-1])

def cuMemcpyHtoD(target, source, size):
    ctypes.memmove(target, source, size)
    return (0,)

cuMemcpyDtoH = cuMemcpyDtoD = cuMemcpyHtoD

def cuEventCreate(flags):
    return 0, 1

def cuEventRecord(event, stream):
    {call}
    return (0,)

def cuEventSynchronize(event):
    return (0,)

def cuEventElapsedTime(first, second):
    return 0, 0.25

def cuEventDestroy(event):
    return (0,)
"""


@pytest.fixture
def emulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that gives processes started later a CUDA driver; `start` and `call` are code of `cuInit`
    and of a call.
    """

    def install(start: str = "pass", call: str = "pass") -> None:
        package = tmp_path / "cuda" / "bindings"
        package.mkdir(parents=True)
        for folder in (package, package.parent):
            (folder / "__init__.py").touch()
        (package / "driver.py").write_text(EMULATED_DRIVER.format(start=start, call=call))
        # The library itself is only opened, so any will do.
        maps = Path("/proc/self/maps").read_text().splitlines()
        library = next(line.split()[-1] for line in maps if "/libm.so" in line)
        shutil.copy(library, tmp_path / LIBRARY)
        for variable in ("PYTHONPATH", "LD_LIBRARY_PATH"):
            monkeypatch.setenv(variable, os.pathsep.join([str(tmp_path), os.environ.get(variable, "")]))

    return install


def copies() -> Artifact:
    """Returns a program that returns its two inputs in the other order, one of them by way of a buffer of its own."""
    specs = (TensorSpec((3, 5), "f32"), TensorSpec((7,), "i64"))
    device = DeviceProgram("sm_75", (), (Buffer(56),), (Copy(0, 3, 60), Copy(1, 4, 56), Copy(4, 2, 56)))
    arguments = tuple(Argument(number, spec) for number, spec in enumerate(specs))
    return Artifact("main", (), arguments, (specs[1], specs[0]), device=device)


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the library is found by LD_LIBRARY_PATH")


@needs_linux
@pytest.mark.slow
def test_the_driver_runs_in_an_interpreter_that_imports_no_torch(emulate: Callable[..., None]) -> None:
    emulate()
    program = load_artifact(copies())
    for seed in range(2):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)).T
        y = torch.arange(7) * (seed + 1)
        first, second = program([x, y])
        assert torch.equal(first, y)
        assert torch.equal(second, x)
    assert program.notes() == (
        "on an emulated GPU: the kernels take 0.25 ms, the copies to and from the device the rest",
    )
    with pytest.raises(ValueError, match="input 1 is"):
        program([torch.ones(3, 5), torch.ones(7)])


@needs_linux
@pytest.mark.slow
def test_a_fork_of_a_process_with_torch_starts_a_new_interpreter(emulate: Callable[..., None]) -> None:
    """A run happens in such a fork, in which the driver cannot be initialized."""
    emulate()
    fork = ForkedWorker(
        lambda channel: channel.send(
            Activity(str(load_artifact(copies())([torch.ones(3, 5), torch.arange(7)])[0].tolist()))
        ),
        Activity,
        Activity,
    )
    answer = fork.receive()
    assert answer is not None, fork.output()
    assert answer.activity == "[0, 1, 2, 3, 4, 5, 6]"
    fork.end()


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "call", "what", "todo"),
    [
        ("return (100,)", "pass", "no CUDA device was found (cuInit: no CUDA-capable", "a machine with a GPU"),
        ("return (3,)", "pass", "the CUDA driver did not start (cuInit: initialization error)", "nvidia-smi"),
        ("os._exit(3)", "pass", "the process for the GPU ended with exit code 3", "--preset default"),
        ("pass", "return (3,)", "cuEventRecord: initialization error", "--preset default"),
        ("pass", "os.kill(os.getpid(), 11)", "the process for the GPU ended with SIGSEGV", "--preset default"),
    ],
    ids=["no device", "no start", "exit at the start", "an error in a call", "a crash in a call"],
)
def test_a_driver_that_fails_is_reported(
    emulate: Callable[..., None], start: str, call: str, what: str, todo: str
) -> None:
    emulate(start, call)
    with pytest.raises(GpuRunError) as caught:
        load_artifact(copies())([torch.ones(3, 5), torch.arange(7)])
    assert what in caught.value.diagnostic.what
    assert todo in caught.value.diagnostic.todo


class IdleDevice:
    """A device without memory, on which no module has kernels."""

    name = "an idle GPU"

    def allocate(self, _size: int) -> int:
        return 0

    def load_kernels(self, _ptx: str, names: Sequence[str]) -> dict[str, object]:
        assert not names
        return {}


@pytest.mark.parametrize(
    ("memory", "steps", "what"),
    [
        (-1, (Launch("f", (1, 1, 1), (1, 1, 1), ()),), "the program's PTX has no kernel f"),
        (1 << 20, (), "the shared memory cannot be mapped: [Errno 9]"),
    ],
)
def test_a_program_that_cannot_be_loaded_is_answered(
    memory: int, steps: tuple[Launch, ...], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_driver, "Device", IdleDevice)
    request = LoadOnDevice(DeviceProgram("sm_75", ("",), (), steps), memory, 8, (), ())
    requests, replies = iter((request, None)), list[object]()
    gpu_driver.serve(cast(Any, SimpleNamespace(receive=lambda: next(requests), send=replies.append)))
    (reply,) = replies
    assert isinstance(reply, DeviceFailed)
    assert what in reply.error


def test_a_device_whose_context_fails_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {
        "cuInit": lambda _flags: (0,),
        "cuDeviceGet": lambda number: (0, number),
        "cuDevicePrimaryCtxRetain": lambda _device: (2, 0),
        "cuGetErrorString": lambda _status: (0, b"out of memory"),
    }
    monkeypatch.setattr(gpu_driver, "_import_driver", lambda: SimpleNamespace(**functions))
    with pytest.raises(NoDeviceError, match=r"did not start \(cuDevicePrimaryCtxRetain: out of memory\)"):
        Device()


@pytest.mark.skipif(driver(), reason="there is a CUDA driver")
def test_without_a_driver_one_line_says_so() -> None:
    artifact = Line(torch.relu, numbers(6)).compile(GPU).artifact
    with pytest.raises(GpuRunError) as caught:
        load_artifact(artifact)
    assert str(caught.value).count("\n") == 0
    assert "no CUDA driver was found (libcuda.so.1)" in caught.value.diagnostic.what
    assert "run the program on a machine with a GPU" in caught.value.diagnostic.todo


@pytest.mark.skipif(driver(), reason="there is a CUDA driver")
def test_the_binding_takes_the_arguments_that_it_is_called_with() -> None:
    """Without a driver every function of the binding fails, but only once it has read its arguments."""
    api = pytest.importorskip("cuda.bindings.driver", reason="pip install 'buddy-tui[cuda]'")
    device = Device.__new__(Device)
    device._api = api
    launch = Launch("f", (2, 1, 1), (32, 8, 1), (Pointer(0), KernelScalar("i64", 3)))
    acts = (
        lambda: device.load_kernels(".version 6.3\n", ["f"]),
        lambda: device._call("cuModuleGetFunction", api.CUmodule(0), b"f"),
        lambda: device._call("cuDevicePrimaryCtxRetain", api.CUdevice(0)),
        lambda: device._call("cuCtxSetCurrent", api.CUcontext(0)),
        lambda: device._call("cuDeviceGetName", 128, api.CUdevice(0)),
        lambda: device.allocate(64),
        lambda: device.upload(1 << 40, 1 << 41, 64),
        lambda: device.download(1 << 41, 1 << 40, 64),
        lambda: device.copy(1 << 40, 1 << 41, 64),
        lambda: device.launch(api.CUfunction(0), launch, {0: 1 << 40}),
        lambda: device.record_event(),
        lambda: device._call("cuEventRecord", api.CUevent(0), 0),
        lambda: device.take_elapsed_ms(api.CUevent(0), api.CUevent(0)),
        lambda: device._call("cuEventElapsedTime", api.CUevent(0), api.CUevent(0)),
    )
    for act in acts:
        with pytest.raises(RuntimeError, match="driver"):
            act()


@pytest.mark.slow
@pytest.mark.skipif(driver(), reason="there is a CUDA driver")
def test_a_run_makes_all_stages_and_says_what_is_missing(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef model(x):\n    return torch.relu(x @ x)\n\n\nexample_inputs = (torch.ones(6, 6),)\n"
    )
    done = cli("run", "model.py", "--preset", "gpu", cwd=tmp_path)
    assert done.returncode == 1
    assert "no CUDA driver was found (libcuda.so.1)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not driver(), reason="there is no CUDA driver")
def test_with_a_driver_the_numbers_are_eagers(program: tuple[Line, Any]) -> None:
    line, compilation = program
    with torch.no_grad():
        assert_same(load_artifact(compilation.artifact)(line.program.tensors), line.program.eager(line.program.tensors))

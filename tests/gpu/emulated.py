"""Runs kernels made for a GPU on this CPU, one thread after another, with the arguments that a driver would be given.

The kernels are those of the stage `ir`, of which PTX is made; only the registers that tell a thread its place are
replaced. Kernels that wait for each other's threads could not be run so.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from llvmlite import binding

from buddy.compiler.artifact import Artifact
from buddy.compiler.gpu.driver import Parameters
from buddy.compiler.gpu.program import Copy, Launch, Pointer
from buddy.compiler.machines import parsed, this_machine
from buddy.compiler.runner.memory import torch_dtype

REGISTERS = [f"{place}.{axis}" for place in ("ctaid", "tid") for axis in "xyz"]
_DECLARED = re.compile(r"^declare .*@llvm\.nvvm\.read\.ptx\.sreg\.\w+\.\w\(\).*$", re.MULTILINE)
_TYPES = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double}


class Kernel:
    """One kernel of a module's text, as a function of this CPU."""

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
        self._engine = binding.create_mcjit_compiler(parsed(text, this_machine()), machine)
        self._engine.finalize_object()
        self._address = self._engine.get_function_address(name)
        self._places = [
            ctypes.c_int32.from_address(self._engine.get_global_value_address(register.replace(".", "_")))
            for register in REGISTERS
        ]

    def launch(self, launch: Launch, addresses: dict[int, int]) -> None:
        parameters = Parameters(launch.words, addresses)
        kinds = [ctypes.c_void_p if isinstance(word, Pointer) else _TYPES[word.kind] for word in launch.words]
        values = [kind.from_address(parameters.table[i]) for i, kind in enumerate(kinds)]
        function: Callable[..., Any] = ctypes.CFUNCTYPE(None, *kinds)(self._address)
        for block in itertools.product(*map(range, launch.grid)):
            for thread in itertools.product(*map(range, launch.block)):
                for place, number in zip(self._places, (*block, *thread), strict=True):
                    place.value = number
                function(*values)


def run(artifact: Artifact, llvm_ir: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a program for a GPU returns."""
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
            Kernel(named[step.kernel], step.kernel).launch(step, addresses)
    return results

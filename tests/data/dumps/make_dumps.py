"""Makes the dumps of other compilers that the tests read: `python make_dumps.py --python PYTHON [NAME ...]`.

PYTHON has iree-base-compiler, jax and triton, and the folder of its executables has `iree-compile`; this interpreter
has torch. `mlir-opt-19` and `opt-19` are on the path. Each compiler's dumps are one archive; `versions.json` names
what made them. Triton compiles for a GPU of NVIDIA without one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
MLIR = """\
func.func @scale(%x: tensor<4x8xf32>, %s: f32) -> tensor<4x8xf32> {
  %init = tensor.empty() : tensor<4x8xf32>
  %c = linalg.fill ins(%s : f32) outs(%init : tensor<4x8xf32>) -> tensor<4x8xf32>
  %r = linalg.mul ins(%x, %c : tensor<4x8xf32>, tensor<4x8xf32>) outs(%init : tensor<4x8xf32>) -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
func.func @twice(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %two = arith.constant 2.0 : f32
  %dead = arith.constant 3.0 : f32
  %y = call @scale(%x, %two) : (tensor<4x8xf32>, f32) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
"""
PIPELINE = (
    "builtin.module(func.func(canonicalize,cse),inline,func.func(linalg-generalize-named-ops),"
    "one-shot-bufferize{bufferize-function-boundaries},func.func(convert-linalg-to-loops,canonicalize),convert-scf-to-cf)"
)
LLVM = """\
define i32 @sum(ptr %p, i32 %n) {
entry:
  %acc = alloca i32
  store i32 0, ptr %acc
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %q = getelementptr i32, ptr %p, i32 %i
  %v = load i32, ptr %q
  %a = load i32, ptr %acc
  %b = add i32 %a, %v
  store i32 %b, ptr %acc
  %next = add i32 %i, 1
  %done = icmp eq i32 %next, %n
  br i1 %done, label %exit, label %loop
exit:
  %r = load i32, ptr %acc
  ret i32 %r
}
define i32 @main(ptr %p) {
  %r = call i32 @sum(ptr %p, i32 16)
  ret i32 %r
}
"""
IREE = """\
func.func @scale(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = arith.mulf %x, %y : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
"""
TRITON = """\
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out + offs, tl.load(x + offs, mask=mask) + tl.load(y + offs, mask=mask), mask=mask)

types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
triton.compile(ASTSource(fn=add_kernel, signature=types, constexprs={"BLOCK": 256}), target=GPUTarget("cuda", 80, 32))
"""
JAX = """\
import jax, jax.numpy as jnp

def mlp(x, w, b):
    h = jnp.tanh(x @ w + b)
    return jax.nn.softmax(h, axis=-1).sum()

x = jax.ShapeDtypeStruct((4, 8), "float32")
w, b = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16,), "float32")
jax.jit(jax.grad(mlp, argnums=1)).lower(x, w, b).compile()
"""
TORCH = """\
import torch

@torch.compile
def f(x, w):
    h = torch.tanh(x @ w)
    return torch.softmax(h, -1) * 2

f(torch.ones(4, 8), torch.ones(8, 16))
"""


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Runs a command in `folder`; returns its error output."""
    home = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=folder, env=home | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return done.stderr


def make_mlir(folder: Path, _python: Path) -> None:
    (folder / "in.mlir").write_text(MLIR)
    command = ["mlir-opt-19", f"--pass-pipeline={PIPELINE}", "in.mlir", "-o", os.devnull]
    one_thread = "--mlir-disable-threading"
    logs = {
        "after_all.log": ["--mlir-print-ir-after-all", "--mlir-print-debuginfo", one_thread],
        "threads.log": ["--mlir-print-ir-after-all"],
        "before_all.log": ["--mlir-print-ir-before-all", one_thread],
        "module_scope.log": ["--mlir-print-ir-after-all", "--mlir-print-ir-module-scope", one_thread],
    }
    for name, options in logs.items():
        (folder / name).write_text(run([*command, *options], folder))
    run([*command, "--mlir-print-ir-after-all", "--mlir-print-ir-tree-dir=tree", one_thread], folder)


def make_llvm(folder: Path, _python: Path) -> None:
    (folder / "in.ll").write_text(LLVM)
    for name, option in (("after_all.log", "-print-after-all"), ("changed.log", "-print-changed")):
        command = ["opt-19", "-passes=default<O2>", option, "in.ll", "-S", "-o", os.devnull]
        (folder / name).write_text(run(command, folder))


def make_iree(folder: Path, python: Path) -> None:
    (folder / "scale.mlir").write_text(IREE)
    command = [
        str(python.parent / "iree-compile"), "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic", "scale.mlir", "-o",
        os.devnull,
    ]  # fmt: skip
    run([*command, "--dump-compilation-phases-to=phases"], folder)
    (folder / "after_all.log").write_text(run([*command, "--mlir-print-ir-after-all", "--compile-to=stream"], folder))


def make_triton(folder: Path, python: Path) -> None:
    (folder / "kernel.py").write_text(TRITON)
    names = {"TRITON_DUMP_DIR": "kernels", "TRITON_CACHE_DIR": "cache"}
    switches = dict.fromkeys(("TRITON_KERNEL_DUMP", "TRITON_ALWAYS_COMPILE", "MLIR_ENABLE_DUMP"), "1")
    (folder / "passes.log").write_text(run([str(python), "kernel.py"], folder, **names, **switches))
    shutil.rmtree(folder / "cache")


def make_xla(folder: Path, python: Path) -> None:
    (folder / "mlp.py").write_text(JAX)
    flags = "--xla_dump_to=hlo --xla_dump_hlo_pass_re=.*"
    run([str(python), "mlp.py"], folder, JAX_PLATFORMS="cpu", XLA_FLAGS=flags)


def make_inductor(folder: Path, _python: Path) -> None:
    (folder / "softmax.py").write_text(TORCH)
    switches = {"TORCHINDUCTOR_CACHE_DIR": "cache", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    command = [sys.executable, "softmax.py"]
    run(command, folder, **switches, TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR="debug", TORCH_TRACE="trace")
    logs = "output_code,post_grad_graphs,aot_graphs,graph_code"
    (folder / "torch_logs.log").write_text(run(command, folder, **switches, TORCH_LOGS=logs))
    shutil.rmtree(folder / "cache")


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "mlir": make_mlir,
    "llvm": make_llvm,
    "iree": make_iree,
    "triton": make_triton,
    "xla": make_xla,
    "inductor": make_inductor,
}
# What made each archive: a command whose output has the version, or a package of PYTHON.
VERSIONS = {
    "mlir": "mlir-opt-19",
    "llvm": "opt-19",
    "iree": "iree.compiler.version",
    "triton": "triton",
    "xla": "jaxlib",
    "inductor": "torch",
}


def version_of(name: str, python: Path) -> str:
    tool = VERSIONS[name]
    if tool.endswith("-19"):
        output = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
        match = re.search(r"LLVM version ([\w.]+)", output)
        return f"{tool} {match[1] if match else ''}"
    module, attribute = (tool, "VERSION") if tool.startswith("iree") else (tool, "__version__")
    interpreter = sys.executable if name == "inductor" else str(python)
    code = f"import {module} as m; print(m.{attribute})"
    return (
        f"{tool} {subprocess.run([interpreter, '-c', code], capture_output=True, text=True, check=True).stdout.strip()}"
    )


def pack(folder: Path, archive: Path) -> None:
    """Writes the text files of `folder` to an archive, without paths of this machine."""
    packages = re.compile(r"[^\s\"'(:]*/site-packages/")
    with tarfile.open(archive, "w:xz") as tar:
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or path.is_symlink():
                continue
            data = path.read_bytes()
            if b"\0" in data or path.suffix in (".pb", ".json"):
                data = b"\0" * 16  # a binary file, whose content no test reads
            text = packages.sub("site-packages/", data.decode("utf-8").replace(str(folder), "/example"))
            text = re.sub(r"/root/[\w./-]*|/home/[\w./-]*", "/home/user", text)
            member = tarfile.TarInfo(str(path.relative_to(folder)))
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="the interpreter that has IREE, JAX and Triton")
    parser.add_argument("names", nargs="*", default=list(MAKERS), help=f"some of {', '.join(MAKERS)}")
    options = parser.parse_args()
    recorded = FOLDER / "versions.json"
    versions = json.loads(recorded.read_text()) if recorded.exists() else {}
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            MAKERS[name](Path(folder), options.python.absolute())
            pack(Path(folder), FOLDER / f"{name}.tar.xz")
        versions[name] = version_of(name, options.python)
        print(f"{name}: {(FOLDER / name).with_suffix('.tar.xz').stat().st_size:,} bytes, {versions[name]}")
    recorded.write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Bindings from a package of the user's: they are used, what they have registered is found, absence is told."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buddy.compiler.mlir import bindings
from buddy.compiler.passes import catalogue, discovery

Run = Callable[..., "subprocess.CompletedProcess[str]"]
CLI = ("-m", "buddy.app.cli")
LOAD = "from buddy.compiler.mlir.bindings import ir"
# Registered in every build with the GPU dialects, and of no use in any pipeline that this project brings.
UNLISTED = "amdgpu-emulate-atomics"


def said(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages that are not bindings: one does not load, one has no `ir`."""
    root = tmp_path_factory.mktemp("broken")
    for name, text in (
        ("half_built", "raise ImportError('undefined symbol: mlirContextCreate\\nand more')\n"),
        ("bare", ""),
    ):
        (root / name).mkdir()
        (root / name / "__init__.py").write_text("")
        if text:
            (root / name / "ir.py").write_text(text)
    return root


@pytest.mark.parametrize(
    ("package", "found"),
    [
        ("no_such_package", "is not found by Python"),
        ("/opt/llvm/python_packages", "is not found by Python"),
        ("mlir", "is not found by Python"),
        ("bare", "/bare, which has no module ir"),
        ("half_built", "/half_built, whose module ir does not load: undefined symbol: mlirContextCreate"),
    ],
)
def test_a_package_without_bindings_is_told_in_one_line(
    package: str, found: str, broken: Path, run_python: Run
) -> None:
    """Which variable, what was found, what to do."""
    done = run_python("-c", LOAD, BUDDY_MLIR_PACKAGE=package, PYTHONPATH=str(broken))
    assert f"BUDDY_MLIR_PACKAGE={package} " in said(done)
    assert found in said(done)
    assert "or unset it to use" in said(done)


def test_a_build_with_the_name_of_an_installed_package_is_no_installed_one(run_python: Run, tmp_path: Path) -> None:
    """Else what one has made would be taken from disk for the other."""
    (tmp_path / "torch_mlir" / "_mlir_libs").mkdir(parents=True)
    (tmp_path / "torch_mlir" / "__init__.py").write_text("")
    text = f"from pathlib import Path\n\n\ndef get_lib_dirs():\n    return [Path({str(tmp_path)!r})]\n"
    (tmp_path / "torch_mlir" / "_mlir_libs" / "__init__.py").write_text(text)
    code = "from buddy.compiler.mlir.bindings import version; print(version())"
    assert run_python("-c", code, PYTHONPATH=str(tmp_path)).stdout.startswith("local-")
    assert not run_python("-c", code).stdout.startswith("local-")


@pytest.mark.slow
def test_the_command_line_says_the_same_without_a_traceback(run_python: Run, root: Path) -> None:
    done = run_python(*CLI, "run", str(root / "samples" / "mlp.py"), BUDDY_MLIR_PACKAGE="no_such_package")
    assert done.returncode == 1
    # The script is captured all the same: that needs no MLIR.
    assert "error in graph 0: BUDDY_MLIR_PACKAGE=no_such_package is not found by Python" in done.stderr
    assert "Traceback" not in done.stderr
    assert "File " not in done.stderr


@pytest.mark.slow
def test_a_program_compiles_and_runs_by_the_bindings_of_a_build(build: Path, run_python: Run, tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\n\n\ndef model(x):\n    return torch.relu(x @ x)\n\n\nexample_inputs = (torch.ones(6, 6),)\n"
    )
    done = run_python(
        *CLI, "run", str(model), "--repeats", "1", "--json", BUDDY_MLIR_PACKAGE="mlir", PYTHONPATH=str(build)
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\"verdict\": \"(\w+)\"", done.stdout) == ["ok"]


@pytest.mark.slow
def test_the_doctor_says_which_bindings_are_in_use(build: Path, run_python: Run, torch_mlir_opt: str) -> None:
    done = run_python(
        *CLI, "doctor", BUDDY_MLIR_PACKAGE="mlir", PYTHONPATH=str(build), BUDDY_MLIR_OPT=torch_mlir_opt, timeout=240
    )
    assert re.search(r"bindings +mlir local-\w+ in .*torch_mlir, set by BUDDY_MLIR_PACKAGE", done.stdout), done.stdout
    assert re.search(r"dialects +\d+: .*linalg.*vector", done.stdout)
    assert f"mlir-opt   {torch_mlir_opt}" in done.stdout.replace("~", str(Path.home()))


def test_what_is_registered_beyond_the_list_is_in_the_catalogue(run_python: Run) -> None:
    assert UNLISTED not in {info.name for info in catalogue.catalogue()}
    done = run_python(*CLI, "passes", "--json")
    listed = {info["name"]: info for info in json.loads(done.stdout)}
    assert listed[UNLISTED]["anchor"] == "builtin.module"
    assert listed["fold-memref-alias-ops"]["anchor"] == "builtin.module"
    assert {info.name for info in catalogue.catalogue()} <= listed.keys()
    options = {option["name"]: option["default"] for option in listed["convert-vector-to-scf"]["options"]}
    assert options["full-unroll"] == "false"


def test_a_pass_that_crashes_in_the_parse_hides_no_other() -> None:
    """It is listed without details, and the names after it are tried too."""
    depth = 100_000  # MLIR parses nested pipelines by recursion, so this one overflows the stack
    crashing = "func.func(" * depth + "cse" + ")" * depth
    names = ["aa", "canonicalize", "inline", crashing, "mem2reg", "zz"]
    found = [info.name for info in discovery._find_passes(names)]
    assert found == ["canonicalize", "inline", crashing, "mem2reg"]


def test_names_are_found_that_the_linker_has_merged_with_the_ends_of_longer_strings() -> None:
    """In the installed bindings, these three are only the ends of `…-fold-memref-alias-ops`, `f…` and `…_cse`."""
    texts = [discovery._read_constants(path) for path in bindings.libraries()]
    possible = discovery._possible_names(texts, discovery._PASS_NAME)
    assert {"fold-memref-alias-ops", "canonicalize", "cse"} <= possible
    found = discovery._possible_names([b"CSE\0enable_constant_cse\0not one\0"], discovery._PASS_NAME)
    assert found >= {"constant_cse", "cse", "one"}
    assert "not one" not in found
    possible = discovery._possible_names([b"transform.gpu.launch\0"], discovery._OP_NAME)
    assert {"transform.gpu.launch", "gpu.launch"} <= possible


def test_registered_dialects_are_listed_with_their_ops(run_python: Run) -> None:
    done = run_python(*CLI, "passes", "--dialects", "--json")
    found = {info["name"]: info for info in json.loads(done.stdout)}
    assert found["arith"]["ops"] > 40
    assert found["arith"]["module"] == "torch_mlir.dialects.arith"
    assert {"linalg", "scf", "nvvm", "gpu", "vector", "tosa"} <= found.keys()
    assert "no-such-dialect" not in found


KNOWN = """\
import sys

from buddy.compiler.passes import discovery

known = discovery.cached_passes()
assert "torch_mlir" not in sys.modules
assert known is not None
assert known == discovery.find_registered()
"""
CHANGING = """\
import sys
from pathlib import Path

from buddy.compiler.passes import discovery

for text in (b"\\0arith.addf\\0", b"\\0arith.addf\\0tensor.empty\\0"):
    Path(sys.argv[1]).write_bytes(text)
    assert discovery.cached_passes() is None
    print(*(info.name for info in discovery.find_registered().dialects))
    assert discovery.cached_passes() == discovery.find_registered()
"""


def test_what_was_found_before_is_read_without_loading_the_bindings(run_python: Run) -> None:
    run_python(*CLI, "passes", "canonicalize")
    done = run_python("-c", KNOWN)
    assert done.returncode == 0, done.stderr


def test_libraries_that_have_changed_are_looked_through_anew(run_python: Run, tmp_path: Path) -> None:
    libraries = tmp_path / "own_build" / "_mlir_libs"
    libraries.mkdir(parents=True)
    (libraries / "__init__.py").write_text("def get_lib_dirs():\n    return __path__\n")
    (libraries.parent / "__init__.py").write_text("")
    (libraries.parent / "ir.py").write_text("import sys\n\nimport torch_mlir.ir as ir\n\nsys.modules[__name__] = ir\n")
    one = str(libraries / "one.so")
    done = run_python("-c", CHANGING, one, BUDDY_MLIR_PACKAGE="own_build", PYTHONPATH=str(tmp_path))
    assert done.stdout.splitlines() == ["arith", "arith tensor"], done.stderr


# ---- passes written in Python ----------------------------------------------------------------------------------------

PASS = """\
from dataclasses import dataclass

from buddy.compiler.passes.base import MlirPass, register


@register
@dataclass(frozen=True)
class CountLoops(MlirPass):
    name = "count-loops"
    summary = "says how many loops there are"

    def run(self, root, context):
        pass
"""


def test_a_file_of_passes_has_to_register_one(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(PASS)
    (tmp_path / "empty.py").write_text("x = 1\n")
    words = ("--pass-plugin", "good.py", "--pass-plugin", "empty.py", "--plugin", "empty.py")
    done = run_python(*CLI, "passes", "count-loops", *words, cwd=tmp_path)
    assert done.returncode == 0
    assert re.search(r"count-loops +mlir +good.py +builtin.module +says how many loops there are", done.stdout)
    assert done.stderr.count("plug-in empty.py registers no pass") == 1
    assert "good.py registers" not in done.stderr


# The accessors of the ops' dialects, which each class of ops defines; what says that `memoryview` takes the class.
ADDED = {"OpView.__getattr__", "DenseElementsAttr.__buffer__"}


def declared(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yields the classes of a stub, and their members as `Class.member`."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from declared(node.body, f"{prefix}{node.name}.")
        elif prefix and isinstance(node, ast.FunctionDef):
            yield prefix + node.name
        elif prefix and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id


def stub(name: str) -> list[str]:
    text = (Path(bindings.__file__).parent / f"{name}.pyi").read_text(encoding="utf-8")
    return list(declared(ast.parse(text).body))


def exists(root: object, path: str) -> bool:
    first, _, rest = path.partition(".")
    if rest:
        return hasattr(root, first) and exists(getattr(root, first), rest)
    return first in dir(root) or hasattr(root, first)  # `InsertionPoint.current` raises outside of an insertion point


def test_the_types_for_the_type_checker_are_those_of_the_bindings() -> None:
    ir = bindings.ir
    # `Type`, `Attribute` and `AffineExpr` have the members of their classes, which differ.
    general = {"Type": ir.Type, "Attribute": ir.Attribute, "AffineExpr": ir.AffineExpr}
    classes = [value for value in vars(ir).values() if isinstance(value, type)]
    missing = []
    for path in set(stub("ir")) - ADDED:
        first, _, member = path.partition(".")
        roots = [c for c in classes if issubclass(c, general[first])] if first in general and member else [ir]
        if not any(exists(root, member if root is not ir else path) for root in roots):
            missing.append(path)
    assert not missing, missing


def test_the_functions_of_dialects_for_the_type_checker_are_those_of_the_bindings() -> None:
    paths = [path for path in stub("dialects") if not path.startswith("Dialect")]
    missing = [path for path in paths if not exists(bindings, path)]
    assert not missing, missing

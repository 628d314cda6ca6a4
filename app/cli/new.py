"""`buddy-tui new KIND NAME`: writes a plug-in as a package with a test and a README, which imports only `buddy.api`."""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from buddy.app.cli import FAILURE, USAGE_ERROR, VERBS
from buddy.app.cli.console import Console
from buddy.compiler.protocol import Diagnostic

KINDS = ("op", "pass", "backend", "pane", "plugin")
_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_EPILOG = """
op: an op class and its lowering; pass: an MLIR pass with an option; backend: a backend with a stage of its own;
pane: a pane of the workbench; plugin: all of these, and a preset and an exporter. NAME is of lower-case letters, digits
and hyphens.
"""

# ---- the texts of a plug-in ------------------------------------------------------------------------------------------

# Names between @ are replaced, see `plugin_files`. The imports are added for the names in a text, see `_with_imports`.
_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "@NAME@"
version = "0.1.0"
description = "A plug-in of buddy-tui"
dependencies = ["buddy-tui"]

@ENTRY_POINTS@
[tool.setuptools]
py-modules = [@MODULES@]
"""
# A pane is in a module of its own, because the workbench, which has no torch, imports that module and no other.
_PANE_SUFFIX = "_pane"
# For each module, by the suffix of its name: its entry point, its title, and how to try it without installing it.
_ENTRY_POINTS = {
    "": '[project.entry-points."buddy.plugins"]\n@NAME@ = "@MODULE@"\n',
    _PANE_SUFFIX: '[project.entry-points."buddy.panes"]\n@NAME@ = "@MODULE@_pane:@CLASS@Pane"\n',
}
_TITLES = {"": "The plug-in", _PANE_SUFFIX: "The pane of the plug-in"}
_TRY_COMMANDS = {
    "": "    buddy-tui run SCRIPT.py --plugin @MODULE@.py    # without installing it\n",
    _PANE_SUFFIX: "    buddy-tui SCRIPT.py --pane @MODULE@_pane.py:@CLASS@Pane\n",
}

_README = """\
# @NAME@

A plug-in of buddy-tui, which imports only `buddy.api`.

    python -m pytest                                   # its test
@TRY@    pip install --no-deps --no-build-isolation -e .    # then every command and torch.compile load it
    buddy-tui doctor                                   # lists it, with its error if it does not load

@WHAT@
"""

_OP = '''

class @CLASS@Op(ElementwiseOp):
    """The op `@MODULE@::apply`; ATen's ops are named without `aten.`, such as `tanh.default`."""

    targets = ("@MODULE@.apply.default",)


@lowering(@CLASS@Op)
def lower_@MODULE@(node: Op, symbol_table: SymbolTable) -> Any:
    """Emits one loop over the elements, with this expression as its body."""
    return lower_expression(node, symbol_table, lambda x: 0.5 * (x + scalar.sqrt(x * x + 4)))
'''

_PASS = '''

@register_pass
@dataclass(frozen=True)
class @CLASS@Pass(MlirPass):
    """Replaces `x - constant` by `x + -constant`. With `only_ones`, only the constant 1."""

    name = "@NAME@"
    summary = "adds the negative of a constant instead of subtracting the constant"
    only_ones: bool = False

    def run(self, root: Any, context: PassContext) -> None:
        for op in find_ops(root, "arith.subf"):
            constant = op.operands[1].owner
            if not isinstance(constant, (mlir.ir.Operation, mlir.ir.OpView)) or constant.name != "arith.constant":
                continue
            value = mlir.ir.FloatAttr(constant.attributes["value"]).value
            if self.only_ones and value != 1:
                context.remark(self.name, op.location, f"kept: the constant is {value:g}")
                continue
            with mlir.ir.InsertionPoint(op), op.location:
                negative = mlir.arith.ConstantOp(op.results[0].type, -value)
                total = mlir.arith.AddFOp(op.operands[0], negative)
            op.results[0].replace_all_uses_with(total.result)
            context.remark(self.name, op.location, f"a subtraction of {value:g} became an addition")
            op.erase()
'''

_BACKEND = '''

@register_backend
class @CLASS@Backend:
    """Compiles at -O3, and shows the LLVM IR after LLVM's optimizer between the two stages of the native backend."""

    name = "@BACKEND@"
    summary = "this compiler at -O3, with the LLVM IR after LLVM's optimizer as a stage"
    takes = "llvm"
    phases = ("ir", "optimized", "asm")
    reads = ("target",)

    def check(self, code: Code) -> None:
        NATIVE_BACKEND.check(code)

    def compile(self, code: Code, on_phase: Callable[[Snapshot], None] | None = None) -> Artifact:
        def show(phase: Snapshot) -> None:
            assert on_phase is not None
            on_phase(phase)
            if phase.stage.phase == "ir":
                text = optimized_llvm_ir(llvm_ir_of(code), code.recipe.target, 3)
                on_phase(llvm_stage(code, "optimize", "optimized", text))

        recipe = msgspec.structs.replace(code.recipe, opt_level=3)
        return NATIVE_BACKEND.compile(replace(code, recipe=recipe), show if on_phase else None)
'''

_PRESET_AND_EXPORTER = '''

@preset("@NAME@-upstream", "MLIR's own passes, after the pass @NAME@")
def steps() -> list[PassStep]:
    upstream = list(presets()["upstream"].recipe.steps)
    index = next(i for i, step in enumerate(upstream) if step.name == "one-shot-bufferize")
    return [*upstream[:index], PassStep("@NAME@", phase="fused"), *upstream[index:]]


@exporter("@NAME@-nodes")
def write_nodes(program: CompiledProgram, folder: Path, name: str) -> list[str]:
    """Writes how each node was lowered."""
    rows = {assignment.node: assignment.lowering for assignment in program.assignments}
    (folder / f"{name}.nodes.json").write_text(json.dumps(rows, indent=2))
    return [f"{name}.nodes.json"]
'''

_OP_TEST = """

@torch.library.custom_op("@MODULE@::apply", mutates_args=())
def apply(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * (x + torch.sqrt(x * x + 4))


apply.register_fake(torch.empty_like)


def test_the_op_is_compiled_and_equals_eager() -> None:
    (graph,) = capture_program(lambda x: apply(x) + 1, torch.randn(4, 5)).graphs
    compiled = graph.compile()
    assert {assignment.lowering for assignment in compiled.assignments} == {"linalg"}
    assert compiled.compare(1).ok
"""

_PASS_TEST = """

def test_the_pass_rewrites_a_subtraction() -> None:
    (graph,) = capture_program(lambda x: x - 3.0, torch.randn(8)).graphs
    recipe = graph.recipe("upstream")
    index = next(i for i, step in enumerate(recipe.steps) if step.name == "one-shot-bufferize")
    steps = (*recipe.steps[:index], PassStep("@NAME@", phase="fused"), *recipe.steps[index:])
    compiled = graph.compile(msgspec.structs.replace(recipe, steps=steps))
    remarks = [text for name, _, text in compiled.remarks if name == "@NAME@"]
    assert remarks == ["a subtraction of 3 became an addition"]
    assert "arith.subf" not in compiled.text("@NAME@")
    assert compiled.compare(1).ok
"""

_BACKEND_TEST = """

def test_the_backend_adds_its_stage() -> None:
    (graph,) = capture_program(lambda x: torch.relu(x @ x), torch.randn(8, 8)).graphs
    compiled = graph.compile(msgspec.structs.replace(graph.recipe(), backend="@BACKEND@"))
    assert [stage.phase for stage in compiled.stages[-3:]] == ["ir", "optimized", "asm"]
    assert "define" in compiled.text("optimize")
    assert compiled.compare(1).ok
"""

_PANE_TEST = """

def test_the_pane_counts_the_nodes() -> None:
    chosen = {"a": "linalg", "b": "eager", "c": "linalg"}
    view = PaneView(assignments={node: Assignment(node, name) for node, name in chosen.items()})
    pane = @CLASS@Pane()
    texts = ["".join(text for text, _ in line.cells) for line in pane.lines(view, 80)]
    assert texts == ["     1 eager", "     2 linalg"]
    assert [line.node for line in pane.lines(view, 80)] == ["b", "a"]
    pane.press(view, "z")
    assert [line.node for line in pane.lines(view, 80)] == ["a", "b"]
"""

_PLUGIN_TEST = """

def test_the_preset_and_the_exporter_are_registered(tmp_path: Path) -> None:
    (graph,) = capture_program(lambda x: x - 3.0, torch.randn(8)).graphs
    compiled = graph.compile(graph.recipe("@NAME@-upstream"))
    assert compiled.compare(1).ok
    assert compiled.export(tmp_path, ["@NAME@-nodes"], name="net") == ["README.md", "net.nodes.json"]
    assert json.loads((tmp_path / "net.nodes.json").read_text()) == {"sub.0": "linalg"}
"""

_PANE = '''

class @CLASS@Pane(Pane):
    """Counts the nodes that each registry lowers. Enter goes to the first node of a line."""

    title = "@NAME@"
    keys: ClassVar[dict[str, str]] = {"z": "reverse the order"}
    reverse = False

    def lines(self, view: PaneView, width: int) -> list[PaneLine]:
        nodes: dict[str, list[str]] = {}
        for node, assignment in view.assignments.items():
            nodes.setdefault(assignment.lowering, []).append(node)
        lines = []
        for name in sorted(nodes, key=lambda name: len(nodes[name]), reverse=self.reverse):
            role = "warn" if name == "eager" else "ok"
            lines.append(PaneLine(((f"{len(nodes[name]):>6} ", "number"), (name, role)), nodes[name][0]))
        return lines

    def press(self, view: PaneView, key: str) -> None:
        self.reverse = not self.reverse
'''


class _PluginContents(NamedTuple):
    """The contents of a plug-in: its modules, by the suffix of their name, its test, and the end of its README.

    A module and the test consist of several texts.
    """

    modules: dict[str, list[str]]
    tests: list[str]
    readme_end: str


_CONTENTS_OF_KIND = {
    "op": _PluginContents(
        {"": [_OP]}, [_OP_TEST], "`@MODULE@.py` lowers the op `@MODULE@::apply`, which the test defines."
    ),
    "pass": _PluginContents(
        {"": [_PASS]},
        [_PASS_TEST],
        "A recipe names the pass `@NAME@`; `buddy-tui passes @NAME@` shows its option.",
    ),
    "backend": _PluginContents({"": [_BACKEND]}, [_BACKEND_TEST], "`--backend @BACKEND@` selects the backend."),
    "pane": _PluginContents({_PANE_SUFFIX: [_PANE]}, [_PANE_TEST], "`g A` shows the pane in the workbench."),
    "plugin": _PluginContents(
        {"": [_OP, _PASS, _BACKEND, _PRESET_AND_EXPORTER], _PANE_SUFFIX: [_PANE]},
        [_OP_TEST, _PASS_TEST, _BACKEND_TEST, _PANE_TEST, _PLUGIN_TEST],
        "It has an op, the pass `@NAME@`, the backend `@BACKEND@`, the preset `@NAME@-upstream` (`--preset`), the\n"
        "export kind `@NAME@-nodes` (`buddy-tui export --kind`) and a pane of the workbench (`g A`).",
    ),
}
# The import that makes a name available. Names in `_API_NAMES` come from `buddy.api`, and are imported together.
_IMPORT_OF_NAME = {
    "json": "import json", "msgspec": "import msgspec", "torch": "import torch",
    "Callable": "from collections.abc import Callable", "dataclass": "from dataclasses import dataclass",
    "replace": "from dataclasses import replace", "Path": "from pathlib import Path", "Any": "from typing import Any",
    "ClassVar": "from typing import ClassVar",
}  # fmt: skip
_API_NAMES = (
    "NATIVE_BACKEND", "Artifact", "Assignment", "Code", "CompiledProgram", "ElementwiseOp", "MlirPass", "Op", "Pane",
    "PaneLine", "PaneView", "PassContext", "PassStep", "Snapshot", "SymbolTable", "capture_program", "exporter",
    "find_ops", "llvm_ir_of", "llvm_stage", "lower_expression", "lowering", "mlir", "optimized_llvm_ir", "preset",
    "presets", "register_backend", "register_pass", "scalar",
)  # fmt: skip
# The names from the standard library, and those from other packages: each is a group of imports.
_STANDARD_NAMES = ("json", "Callable", "dataclass", "replace", "Path", "Any", "ClassVar")
_PACKAGE_NAMES = ("msgspec", "torch")


# ---- the files of a plug-in ------------------------------------------------------------------------------------------


def plugin_files(kind: str, name: str) -> dict[str, str]:
    """Returns the texts of a plug-in's files by their names."""
    module = name.replace("-", "_")
    replacements = {
        "@NAME@": name,
        "@MODULE@": module,
        "@CLASS@": "".join(word.capitalize() for word in name.split("-")),
        "@BACKEND@": f"{name}-o3",
    }

    def fill_placeholders(text: str) -> str:
        for placeholder, replacement in replacements.items():
            text = text.replace(placeholder, replacement)
        return text

    modules, tests, readme_end = _CONTENTS_OF_KIND[kind]
    test_imports = []
    if "" in modules:
        test_imports.append(f"import {module}  # noqa: F401  (registers its contents)")
    if _PANE_SUFFIX in modules:
        test_imports.append(f"from {module}{_PANE_SUFFIX} import @CLASS@Pane")
    project = _PYPROJECT.replace("@ENTRY_POINTS@", "\n".join(_ENTRY_POINTS[suffix] for suffix in modules))
    project = project.replace("@MODULES@", ", ".join(f'"{module}{suffix}"' for suffix in modules))
    readme = _README.replace("@TRY@", "".join(_TRY_COMMANDS[suffix] for suffix in modules))
    readme = readme.replace("@WHAT@", readme_end)
    sources = {
        f"{module}{suffix}.py": _with_imports(f'"""{_TITLES[suffix]} {name}."""', "".join(parts))
        for suffix, parts in modules.items()
    }
    test = _with_imports(f'"""Tests of the plug-in {name}."""', "".join(tests), test_imports)
    texts = {"pyproject.toml": project, "README.md": readme, **sources, f"test_{module}.py": test}
    return {file: fill_placeholders(text) for file, text in texts.items()}


def _with_imports(docstring: str, body: str, own_imports: Sequence[str] = ()) -> str:
    """Returns a module with the imports that its body needs; `own_imports` are those of the plug-in's own modules.

    Imports are in the order of Ruff's formatter: the standard library, other packages, then `buddy.api` and the own
    modules.
    """
    # The names in the body, without attributes and the starts of strings.
    used = set(re.findall(r"(?<![\w.\"])\w+", re.sub("@[A-Z]+@", "x", body)))
    api_names = [name for name in _API_NAMES if name in used]
    api_import = f"from buddy.api import {', '.join(api_names)}"
    if len(api_import) > 120:
        api_import = "\n".join(["from buddy.api import (", *(f"    {name}," for name in api_names), ")"])
    groups = [
        [_IMPORT_OF_NAME[name] for name in _STANDARD_NAMES if name in used],
        [_IMPORT_OF_NAME[name] for name in _PACKAGE_NAMES if name in used],
        [*own_imports, api_import],
    ]
    import_texts = ["\n".join(sorted(group, key=_import_order)) for group in groups if group]
    head = "\n\n".join([docstring, "from __future__ import annotations", *import_texts])
    # Two names from the same module are imported together.
    head = head.replace("dataclass\nfrom dataclasses import replace", "dataclass, replace")
    head = head.replace("Any\nfrom typing import ClassVar", "Any, ClassVar")
    return f"{head}\n{body}"


def _import_order(line: str) -> tuple[bool, str]:
    """The sorting key of imports: `import x` before `from x import y`, then by name."""
    return line.startswith("from"), line


# ---- the verb --------------------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="buddy-tui new", description=VERBS["new"], epilog=_EPILOG)
    parser.add_argument("kind", choices=KINDS, help="what the plug-in adds")
    parser.add_argument("name", metavar="NAME", help="the name of the package")
    parser.add_argument("-o", "--output", metavar="DIR", help="the folder to write (default: NAME); it must not exist")
    return parser


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(list(words))
    folder, name, console = Path(options.output or options.name), options.name, Console()
    if problem := _name_error(name):
        console.error(Diagnostic(problem, f"the name {name!r}", "choose another name, such as my-op"))
        return USAGE_ERROR
    try:
        folder.mkdir(parents=True)
        for file, text in plugin_files(options.kind, name).items():
            (folder / file).write_text(text, "utf-8")
    except FileExistsError:
        console.error(Diagnostic(f"{folder} exists", "the new plug-in", "name another folder (-o)"))
        return USAGE_ERROR
    except OSError as error:
        console.error(Diagnostic(f"{error.filename} cannot be written: {error.strerror}", "the new plug-in"))
        return FAILURE
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    print(f"test it: cd {folder} && python -m pytest")
    return 0


def _name_error(name: str) -> str:
    """The reason why a plug-in cannot have a name; an empty string if it can."""
    if not _NAME.fullmatch(name):
        return "a name has lower-case letters, digits and hyphens, and begins with a letter"
    if keyword.iskeyword(name):
        return "a module cannot have the name of a keyword of Python"
    return "a module of this name is installed" if find_spec(name.replace("-", "_")) is not None else ""

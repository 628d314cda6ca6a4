"""`buddy-tui cache export` and `import`: code that one machine compiled is not compiled by another one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
# A program that uses `torch.compile`, and reports how often the compiler ran.
SCRIPT = """\
import torch
from buddy.compiler.driver import compile_graph

runs = []
compile_one = compile_graph.compile_graph
compile_graph.compile_graph = lambda *given: runs.append(1) or compile_one(*given)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
x = torch.randn(3, 8)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(model, backend="buddy")(x), model(x))
print("compilations:", len(runs))
"""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A function that moves to another machine: another home, and folders of its own for settings and caches."""
    monkeypatch.delenv("BUDDY_CACHE", raising=False)

    def go(name: str) -> Path:
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(home))
        for kind in ("CONFIG", "STATE", "CACHE", "DATA"):
            monkeypatch.setenv(f"XDG_{kind}_HOME", str(home / kind.lower()))
        return home / "cache" / "buddy-tui"

    return go


def entries(cache: Path) -> list[str]:
    names = ("objects", "programs", "compilations")
    return sorted(str(path.relative_to(cache)) for name in names for path in (cache / name).glob("*"))


@pytest.mark.slow
def test_a_program_that_was_compiled_elsewhere_is_run_without_compiling(
    cli: Run, places: Callable[[str], Path], tmp_path: Path
) -> None:
    archive, key = tmp_path / "archive", tmp_path / "key"
    cache = places("ci")
    program = ("export", archive, "--program", "samples/mlp.py", "--key", key)
    exported = cli("cache", *program, "--json")
    assert exported.returncode == 0, exported.stderr
    assert entries(cache) == [], "the program is compiled in a cache of its own"
    facts = json.loads(exported.stdout)
    assert facts["caches"]["compilations"]["files"] == 1
    assert facts["caches"]["objects"]["files"] > 1

    cache = places("container")
    refused = cli("cache", "import", archive)
    assert refused.returncode == 1
    assert "nothing shows who wrote it" in refused.stderr
    assert entries(cache) == []
    imported = cli("cache", "import", archive, "--key", key, "--json")
    assert imported.returncode == 0, imported.stderr
    assert json.loads(imported.stdout) == {"stored": facts["caches"], "rejected": {}}
    before = entries(cache)
    ran = json.loads(cli("run", "samples/mlp.py", "--json", "--repeats", "2").stdout)
    assert ran["ok"]
    assert set(ran["seconds"]) - {"torch"} == {"script", "capture", "run"}, "a compilation has a time of its own"
    assert entries(cache) == before


@pytest.mark.slow
def test_torch_compile_uses_code_that_was_compiled_elsewhere(
    cli: Run, run_warm: Run, places: Callable[[str], Path], tmp_path: Path
) -> None:
    script, archive = tmp_path / "script.py", tmp_path / "archive"
    script.write_text(SCRIPT)
    places("ci")
    assert run_warm(str(script)).stdout == "compilations: 1\n"
    exported = cli("cache", "export", archive, "--json")
    sha256 = json.loads(exported.stdout)["sha256"]

    cache = places("container")
    imported = cli("cache", "import", archive, "--sha256", sha256)
    assert imported.returncode == 0, imported.stderr
    before = entries(cache)
    assert run_warm(str(script)).stdout == "compilations: 0\n"
    assert entries(cache) == before
    places("without")
    assert run_warm(str(script)).stdout == "compilations: 1\n"


def test_wrong_command_lines_are_named(cli: Run, places: Callable[[str], Path], tmp_path: Path) -> None:
    places("here")
    for words, message in [
        (["export"], "export needs the FILE"),
        (["import", "x", "--program", "y"], "--program is an option of `buddy-tui cache export FILE`"),
        (["export", "x", "--trust"], "--trust is an option of `buddy-tui cache import FILE`"),
        (["--key", "x"], "--key is an option of"),
        (["import", "x", "--clear"], "--clear removes all entries"),
    ]:
        done = cli("cache", *words)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    done = cli("cache", "export", tmp_path / "x")
    assert (done.returncode, "has nothing to export" in done.stderr) == (1, True)
    done = cli("cache", "import", tmp_path / "missing")
    assert (done.returncode, "cannot be read: No such file" in done.stderr) == (1, True)
    done = cli("cache", "export", tmp_path / "x", "--program", "no/such.py")
    assert done.returncode == 2
    assert "no/such.py" in done.stderr
    assert not (tmp_path / "x").exists()

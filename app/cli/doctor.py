"""`buddy-tui doctor`: shows what is installed, the machine and the terminal, and tests the engine.

The output can be pasted into a public bug report. It contains no host name and no token; it lists only the environment
variables named in this module, and writes `~` for the home folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from buddy.app.cli import FAILURE, VERBS, arguments, run
from buddy.app.cli.console import Console
from buddy.app.cli.headless import Failure, Headless, run_with_engine
from buddy.app.session.client import RequestFailed
from buddy.app.workspace.settings import settings_path
from buddy.app.workspace.workspace import default_store
from buddy.compiler.protocol import ListPasses
from buddy.compiler.support import disk_cache
from buddy.compiler.support.target import cores, host, host_features

Facts = list[tuple[str, str]]

PACKAGES = ("textual", "textual-plot", "msgspec", "pygments", "capstone", "pyelftools")
# The package of each optional part.
PARTS = {
    "samples": "transformers",
    "blas": "scipy-openblas32",
    "bench": "matplotlib",
    "onnx": "onnx",
    "iree": "iree-base-compiler",
    "cuda": "cuda-bindings",
    "web": "textual-serve",
    "cluster": "distributed",
    "coverage": "expecttest",
    "fuzz": "hypothesis",
}
_TERMINALS = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL")
_OURS = ("BUDDY_CACHE", "BUDDY_TUI_STATE", "BUDDY_TUI_CONFIG", "BUDDY_MLIR_PACKAGE", "BUDDY_MLIR_OPT", "BUDDY_MEMORY")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")
# The CPU flags that affect the choice of kernels, of about a hundred that Linux lists.
_FEATURES = re.compile(r"sse4_2|avx.*|fma|f16c|amx_.*|asimd.*|sve.*|bf16|i8mm|fphp|v")


def installation_facts() -> Facts:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        ("buddy-tui", f"{version('buddy-tui')}, {abbreviate_home(Path(__file__).resolve().parents[2])}"),
        ("Python", f"{platform.python_version()}, {abbreviate_home(sys.executable)}"),
        ("system", f"{platform.platform()}, {memory:.1f} GiB of memory"),
        ("with", ", ".join(f"{name} {version(name)}" for name in PACKAGES)),
    ]


def processor() -> Facts:
    """The processor, its features and the number of threads for programs. The load is the one-minute average."""
    machine, *flags = host_features().split()
    known = " ".join(flag for flag in flags if _FEATURES.fullmatch(flag))
    load = f", load {os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else ""
    limit = _quota()
    return [
        ("CPU", _model() or machine),
        ("features", f"{machine}: {known or 'none that has kernels'}"),
        ("kernels", f"for {host().name}: vectors of {host().vector_bytes} bytes, {host().l1 >> 10} KiB of L1 cache"),
        ("threads", f"{cores()} of {os.cpu_count()} cores{limit}{load}; {environment_variables(_THREADS)}"),
    ]


def _model() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return found[1].strip() if found else ""
    return ""


def _quota() -> str:
    """The CPU limit of the control group (cgroup v2), as a suffix of a text; empty without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            return f", limited to {int(quota) / int(period):g} cores by cgroup"
    return ""


def terminal() -> Facts:
    size = shutil.get_terminal_size()
    signs = (("tmux", "TMUX"), ("screen", "STY"), ("ssh", "SSH_CONNECTION"))
    inside = [name for name, sign in signs if sign in os.environ]
    kind = "a terminal" if sys.stdout.isatty() else "no terminal"
    encoding = str(sys.stdout.encoding)
    utf8 = "" if encoding.lower().replace("-", "") == "utf8" else " (not UTF-8: drawn in ASCII)"
    return [
        (
            "terminal",
            f"{kind}, {size.columns}x{size.lines}, {encoding}{utf8}, in {' and '.join(inside) or 'no multiplexer'}",
        ),
        ("features", ", ".join(_abilities("tmux" in inside))),
        ("set", environment_variables((*_TERMINALS, *_OURS))),
    ]


def _abilities(in_tmux: bool) -> list[str]:
    """The features of the terminal, by its environment variables and terminfo."""
    try:
        import curses

        curses.setupterm(os.environ.get("TERM") or "dumb", sys.__stdout__.fileno() if sys.__stdout__ else 1)
        colours = curses.tigetnum("colors")
        mouse, copies = bool(curses.tigetstr("kmous")), bool(curses.tigetstr("Ms"))
    except Exception:  # no terminfo, or no entry for this terminal
        colours, mouse, copies = 0, False, False
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        colours = 1 << 24
    colour_text = f"{colours:,} colours" if colours > 0 else "colours unknown"
    copying = "copying by OSC 52" if copies else "copying by OSC 52 unknown (not in terminfo)"
    copying = "copying by tmux buffers" if in_tmux else copying
    return [colour_text, "mouse" if mouse else "mouse unknown", copying]


def package_facts() -> Facts:
    return [(name, version(package)) for name, package in PARTS.items()]


def folders() -> Facts:
    found = [("settings", settings_path()), ("state", default_store()), ("cache", disk_cache.folder())]
    facts = [(name, f"{abbreviate_home(path)}, {_free(Path(path))}") for name, path in found]
    why = disk_cache.problem()
    return [*facts, ("", f"CACHE DISABLED: {abbreviate_home(why)}")] if why else facts


def _free(path: Path) -> str:
    """The free space of an existing folder, or of the place where it would be created."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    writable = "" if os.access(there, os.W_OK) else ", NOT WRITABLE"
    return f"{shutil.disk_usage(there).free / 2**30:.1f} GiB free{writable}"


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def environment_variables(names: Sequence[str]) -> str:
    """Those of these environment variables that are set."""
    return (
        ", ".join(f"{name}={abbreviate_home(os.environ[name])}" for name in names if name in os.environ) or "none set"
    )


def abbreviate_home(text: object) -> str:
    """`text` with `~` for the home folder, whose path contains the user's name."""
    home = str(Path.home()).rstrip("/")
    return re.sub(rf"{re.escape(home)}(?=/|$|[\s,:;'\"])", "~", str(text)) if home else str(text)


SELF_TEST = "buddy.compiler.support.self_test:model"
# Seconds. The program compiles in one second, and importing torch takes a few.
SOON = 10.0


class _Findings:
    """Facts by title, in order. They are printed at once, or at the end as JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._found: dict[str, dict[str, str]] = {}
        self.seconds = 0.0

    def add(self, title: str, facts: Facts) -> None:
        found = self._found[title] = {}
        for name, text in facts:
            # A fact without a title continues the previous one.
            key = name or list(found)[-1]
            found[key] = f"{found[key]}; {text}" if key in found else text
        if not self._as_json:
            print(title)
            for name, text in facts:
                print(f"  {name:<10} {text}")
            sys.stdout.flush()

    def end(self, code: int) -> None:
        if self._as_json:
            summary = {"ok": code == 0, "self_test_seconds": round(self.seconds, 2) or None}
            print(json.dumps({**summary, **self._found}, indent=2))


def parser() -> arguments.Parser:
    found = arguments.Parser("doctor", VERBS["doctor"])
    found.add_argument("--json", action="store_true", help="print one JSON object to stdout, everything else to stderr")
    arguments.add_engine_options(found)
    return found


def main(words: Sequence[str]) -> int:
    options = parser().parse_args(words)
    found = _Findings(options.json)
    found.add("here", installation_facts())
    found.add("processor", processor())
    found.add("terminal", terminal())
    found.add("folders", folders())
    found.add("optional parts", package_facts())
    console = Console(plain=True, stdout_is_data=options.json)
    code = run_with_engine(options, console, lambda engine: _engine(engine, options, found))
    found.end(code)
    return code


async def _engine(engine: Headless, options: argparse.Namespace, found: _Findings) -> int:
    """The facts that the engine reports, and the result of a small program from capture to comparison."""
    welcome = engine.client.welcome
    assert welcome is not None
    packages = ", ".join(f"{name} {version}" for name, version in welcome.packages.items())
    # The host name and the command may be confidential.
    where = (
        "on another machine, over ssh"
        if options.remote
        else "started by --engine"
        if options.engine
        else "a local process"
    )
    facts = [("engine", where), ("buddy-tui", welcome.engine), ("with", packages)]
    facts += [("CPU", f"{welcome.target}, {welcome.cores} cores")]
    facts += [("", "differs from the local version")] * (welcome.engine != version("buddy-tui"))
    found.add("engine", facts)
    found.add("MLIR", await _mlir(engine))
    started = time.monotonic()
    try:
        text, ok = await _self_test(engine, options)
    except Failure as failure:
        engine.console.error(failure.diagnostic, "the self-test")
        text, ok = "FAILED", False
    engine.console.done()
    found.seconds = time.monotonic() - started
    slow = f"; usually below {SOON:g} s, so the machine is busy or slow" if found.seconds > SOON else ""
    found.add("self-test", [("result", f"{text}, {found.seconds:.1f} s{slow}")])
    return 0 if ok else FAILURE


async def _mlir(engine: Headless) -> Facts:
    """The MLIR bindings that the engine uses, and the passes and dialects that they register."""
    try:
        found = await engine.client.request(ListPasses(0))
    except RequestFailed as failed:
        return [("bindings", str(failed.diagnostic))]
    there = found.bindings
    if there is None:
        return [("bindings", note) for note in found.notes]
    why = "named by BUDDY_MLIR_PACKAGE" if there.named else "from torch-mlir, because BUDDY_MLIR_PACKAGE is not set"
    facts = [("bindings", f"{there.package} {there.version} in {abbreviate_home(there.folder)}, {why}")]
    facts += [("passes", f"{len(found.passes)}, {sum(item.ours for item in found.passes)} of them from buddy-tui")]
    facts += [("dialects", f"{len(found.dialects)}: {', '.join(item.name for item in found.dialects)}")]
    tool = abbreviate_home(there.tool) if there.tool else "not in PATH, and BUDDY_MLIR_OPT is not set"
    return [*facts, ("mlir-opt", there.tool_problem or tool)]


async def _self_test(engine: Headless, options: argparse.Namespace) -> tuple[str, bool]:
    """Compile, run and compare. Returns the result as text, and whether it is OK. Raises `Failure`."""
    words = [SELF_TEST, *arguments.engine_words(options)]
    (recipe,) = await engine.program(run.parser().parse_args(words), ())
    compilation = await engine.run(recipe, 3, 60.0)
    assert compilation.report is not None
    ok = compilation.report.ok
    verdict = "matches eager" if ok else "MISMATCH with eager"
    return f"{len(compilation.stages)} stages, {verdict}", ok

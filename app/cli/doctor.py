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
from buddy.app.session.pane_plugins import LOAD_SECONDS, PaneCallError, PaneThread, find_panes
from buddy.app.workspace.settings import settings_path
from buddy.app.workspace.workspace import default_store
from buddy.compiler.protocol import ListPasses, Passes
from buddy.compiler.protocol.environment import VARIABLES, EnvironmentVariableError, check_variables, torch_warning
from buddy.compiler.support import disk_cache
from buddy.compiler.support.target import cores, host, host_features, measured_rates, prefers_bf16x3

# The lines of a section: names and texts. A fact without a name continues the one before it.
Facts = list[tuple[str, str]]

PACKAGES = ("textual", "textual-plot", "msgspec", "pygments", "capstone", "pyelftools")
# The extras of the wheel, as in `pip install 'buddy-tui[bench]'`, and the package that each installs.
EXTRAS = {
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
    "mcp": "mcp",
    "runtimes": "onnxruntime",
    "zentorch": "zentorch",
    "docs": "mkdocs-material",
}
_TERMINAL_VARIABLES = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")
# The CPU flags that affect the choice of kernels. Linux lists about a hundred flags.
_KERNEL_FEATURES = re.compile(r"sse4_2|avx.*|fma|f16c|amx_.*|asimd.*|sve.*|bf16|i8mm|fphp|v")


# ---- facts about this machine ---------------------------------------------------------------------------------------


def installation_facts() -> Facts:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        ("buddy-tui", f"{package_version('buddy-tui')}, {abbreviate_home(Path(__file__).resolve().parents[2])}"),
        ("Python", f"{platform.python_version()}, {abbreviate_home(sys.executable)}"),
        ("system", f"{platform.platform()}, {memory:.1f} GiB of memory"),
        ("with", ", ".join(f"{name} {package_version(name)}" for name in PACKAGES)),
    ]


def processor_facts() -> Facts:
    """The processor, its features, and the threads that programs may use. The load is the average of one minute."""
    machine, *flags = host_features().split()
    kernel_flags = " ".join(flag for flag in flags if _KERNEL_FEATURES.fullmatch(flag))
    load = f", load {os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else ""
    return [
        ("CPU", _cpu_model() or machine),
        ("features", f"{machine}: {kernel_flags or 'none that has kernels'}"),
        ("kernels", f"for {host().name}: vectors of {host().vector_bytes} bytes, {host().l1 >> 10} KiB of L1 cache"),
        ("", f"products of narrow elements by {', '.join(host().dot_instructions) or 'multiply-adds'}{_rates()}"),
        ("", f"products of float32, if torch's precision of them is high: {_high_precision()}"),
        ("threads", f"{cores()} of {os.cpu_count()} cores{_cpu_limit()}{load}; {variables_text(_THREAD_VARIABLES)}"),
    ]


def _rates() -> str:
    """The measured rates of instructions, as "; vdpbf16ps 110, vfmadd 55 products of bfloat16 per ns", or ""."""
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in measured_rates(host()).items())
    return f"; {rates} products of bfloat16 per ns" if rates else ""


def _high_precision() -> str:
    """The precision that `torch.set_float32_matmul_precision("high")` selects on this machine."""
    rates = measured_rates(host())
    if prefers_bf16x3(rates):
        return "bf16x3 for frozen weights"
    return "f32, which is faster than bf16x3" if rates else "f32, without products of bfloat16"


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return match[1].strip() if match else ""
    return ""


def _cpu_limit() -> str:
    """The CPU limit of the control group (cgroup v2), as ", limited to 2 cores by cgroup"; empty without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            return f", limited to {int(quota) / int(period):g} cores by cgroup"
    return ""


def terminal_facts() -> Facts:
    """The terminal, what it can do, and the environment variables that affect it or this program."""
    size = shutil.get_terminal_size()
    variables = (("tmux", "TMUX"), ("screen", "STY"), ("ssh", "SSH_CONNECTION"))
    inside = [name for name, variable in variables if variable in os.environ]
    kind = "a terminal" if sys.stdout.isatty() else "no terminal"
    encoding = str(sys.stdout.encoding)
    utf8 = "" if encoding.lower().replace("-", "") == "utf8" else " (not UTF-8: drawn in ASCII)"
    return [
        (
            "terminal",
            f"{kind}, {size.columns}x{size.lines}, {encoding}{utf8}, in {' and '.join(inside) or 'no multiplexer'}",
        ),
        ("features", ", ".join(_terminal_features("tmux" in inside))),
        ("set", variables_text((*_TERMINAL_VARIABLES, *VARIABLES))),
        *_misspelt_variables(),
    ]


def _misspelt_variables() -> Facts:
    """The error about environment variables with unknown names, if any."""
    try:
        check_variables()
    except EnvironmentVariableError as misspelt:
        return [("misspelt", str(misspelt))]
    return []


def _terminal_features(in_tmux: bool) -> list[str]:
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


def extras_facts() -> Facts:
    """The version of the package of each extra, or that it is not installed."""
    return [(name, package_version(package)) for name, package in EXTRAS.items()]


def folder_facts() -> Facts:
    """The folders that this program writes to, and why the cache is disabled if it is."""
    paths = [("settings", settings_path()), ("state", default_store()), ("cache", disk_cache.folder())]
    facts = [(name, f"{abbreviate_home(path)}, {_free_space(Path(path))}") for name, path in paths]
    problem = disk_cache.find_problem()
    return [*facts, ("", f"CACHE DISABLED: {abbreviate_home(problem)}")] if problem else facts


def _free_space(path: Path) -> str:
    """The free space at `path`, or at its first ancestor that exists, and whether the user may write there."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    writable = "" if os.access(existing, os.W_OK) else ", NOT WRITABLE"
    return f"{shutil.disk_usage(existing).free / 2**30:.1f} GiB free{writable}"


def package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def variables_text(names: Sequence[str]) -> str:
    """The environment variables among `names` that are set, as "NAME=value, …", or "none set"."""
    assignments = [f"{name}={abbreviate_home(os.environ[name])}" for name in names if name in os.environ]
    return ", ".join(assignments) or "none set"


def abbreviate_home(text: object) -> str:
    """`text` with `~` for the home folder, whose path contains the user's name."""
    home = str(Path.home()).rstrip("/")
    return re.sub(rf"{re.escape(home)}(?=/|$|[\s,:;'\"])", "~", str(text)) if home else str(text)


# ---- the report, with the facts of the engine ------------------------------------------------------------------------

# The source of the self-test.
SELF_TEST = "buddy.compiler.support.self_test:model"
# The self-test usually takes less than this: importing torch takes a few seconds, and compiling the program one.
USUAL_SECONDS = 10.0


class _Report:
    """The sections of the output. A section is printed when it is added; as JSON, all are printed at the end.

    `self_test_seconds` is how long the self-test took, 0 before it has run.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._sections: dict[str, dict[str, str]] = {}
        self.self_test_seconds = 0.0

    def add(self, title: str, facts: Facts) -> None:
        """Adds a section."""
        section = self._sections[title] = {}
        for name, text in facts:
            # A fact without a name continues the previous one.
            key = name or list(section)[-1]
            section[key] = f"{section[key]}; {text}" if key in section else text
        if not self._as_json:
            print(title)
            for name, text in facts:
                print(f"  {name:<10} {text}")
            sys.stdout.flush()

    def end(self, code: int) -> None:
        """Prints the sections as JSON, if they were not printed before. `code` is the exit code of the verb."""
        if self._as_json:
            summary = {"ok": code == 0, "self_test_seconds": round(self.self_test_seconds, 2) or None}
            print(json.dumps({**summary, **self._sections}, indent=2))


def make_parser() -> arguments.Parser:
    parser = arguments.Parser("doctor", VERBS["doctor"])
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object to stdout, everything else to stderr"
    )
    arguments.add_engine_options(parser)
    return parser


def main(words: Sequence[str]) -> int:
    options = make_parser().parse_args(words)
    report = _Report(options.json)
    report.add("here", installation_facts())
    report.add("processor", processor_facts())
    report.add("terminal", terminal_facts())
    report.add("folders", folder_facts())
    report.add("optional parts", extras_facts())
    console = Console(plain=True, stdout_is_data=options.json)
    code = run_with_engine(options, console, lambda engine: _test_engine(engine, options, report))
    report.end(code)
    return code


async def _test_engine(engine: Headless, options: argparse.Namespace, report: _Report) -> int:
    """Adds the facts that the engine reports, and the result of the self-test, to `report`. Returns the exit code."""
    welcome = engine.client.welcome
    assert welcome is not None
    packages = ", ".join(f"{name} {version}" for name, version in welcome.packages.items())
    facts = [("engine", _location_text(options)), ("buddy-tui", welcome.engine), ("with", packages)]
    facts.append(("CPU", f"{welcome.target}, {welcome.cores} cores"))
    if welcome.engine != package_version("buddy-tui"):
        facts.append(("", "differs from the local version"))
    if untested_torch := torch_warning(welcome.packages.get("torch", "")):
        facts.append(("", untested_torch))
    report.add("engine", facts)
    try:
        catalogue = await engine.client.request(ListPasses(0))
    except RequestFailed as failed:
        report.add("MLIR", [("bindings", str(failed.diagnostic))])
    else:
        report.add("MLIR", _mlir_facts(catalogue))
        report.add("plug-ins", [*_plugin_facts(catalogue), *await _pane_facts()])
    started = time.monotonic()
    try:
        text, ok = await _self_test(engine, options)
    except Failure as failure:
        engine.console.error(failure.diagnostic, "the self-test")
        text, ok = "FAILED", False
    engine.console.clear_progress()
    seconds = report.self_test_seconds = time.monotonic() - started
    is_slow = seconds > USUAL_SECONDS
    slow = f"; usually below {USUAL_SECONDS:g} s, so the machine is busy or slow" if is_slow else ""
    report.add("self-test", [("result", f"{text}, {seconds:.1f} s{slow}")])
    return 0 if ok else FAILURE


def _location_text(options: argparse.Namespace) -> str:
    """Where the engine runs, without the host name and the command, which may be confidential."""
    if options.remote:
        return "on another machine, over ssh"
    return "started by --engine" if options.engine else "a local process"


def _plugin_facts(catalogue: Passes) -> Facts:
    """The plug-ins of installed packages: what each registers, or its error."""
    facts = []
    for plugin in catalogue.plugins:
        contents = ", ".join(plugin.contents) or "registers nothing"
        facts.append((plugin.name, f"FAILED: {abbreviate_home(plugin.problem)}" if plugin.problem else contents))
    return facts or [("installed", "none (entry points buddy.plugins)")]


async def _pane_facts() -> Facts:
    """The panes of plug-ins on this machine, even if the engine runs on another one. Imports each pane in a thread."""
    sources, problems = find_panes()
    facts = []
    for source in sources:
        thread = PaneThread()
        try:
            await thread.call(source.load, LOAD_SECONDS)
            facts.append((source.origin, f"pane {source.name}"))
        except PaneCallError as failed:
            facts.append((source.origin, f"FAILED: {abbreviate_home(source.diagnose(failed.error))}"))
        finally:
            thread.stop()
    return [*facts, *(("left out", abbreviate_home(problem)) for problem in problems)]


def _mlir_facts(catalogue: Passes) -> Facts:
    """The MLIR bindings that the engine uses, the passes and dialects, and mlir-opt."""
    bindings = catalogue.bindings
    if bindings is None:
        return [("bindings", note) for note in catalogue.notes]
    origin = "set by BUDDY_MLIR_PACKAGE" if bindings.named else "from torch-mlir, because BUDDY_MLIR_PACKAGE is not set"
    facts = [("bindings", f"{bindings.package} {bindings.version} in {abbreviate_home(bindings.folder)}, {origin}")]
    n_ours = sum(info.ours for info in catalogue.passes)
    facts += [("passes", f"{len(catalogue.passes)}, {n_ours} of them from buddy-tui")]
    facts += [("dialects", f"{len(catalogue.dialects)}: {', '.join(dialect.name for dialect in catalogue.dialects)}")]
    tool = abbreviate_home(bindings.tool) if bindings.tool else "not in PATH, and BUDDY_MLIR_OPT is not set"
    return [*facts, ("mlir-opt", bindings.tool_problem or tool)]


async def _self_test(engine: Headless, options: argparse.Namespace) -> tuple[str, bool]:
    """Compiles and runs a small program. Returns the result as text, and whether it matches eager. Raises `Failure`."""
    words = [SELF_TEST, *arguments.engine_words(options)]
    (recipe,) = await engine.open_program(run.make_parser().parse_args(words), ())
    compilation = await engine.run(recipe, 3, 60.0)
    assert compilation.report is not None
    ok = compilation.report.ok
    verdict = "matches eager" if ok else "MISMATCH with eager"
    return f"{len(compilation.stages)} stages, {verdict}", ok

"""The facts of `buddy-tui doctor` that need no engine: packages, processor, threads, terminal, folders.

They can be published: only the environment variables listed here are read, and `~` replaces the home folder.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from buddy.app.workspace.settings import settings_path
from buddy.app.workspace.workspace import default_store
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

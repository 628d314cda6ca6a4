"""What `buddy-tui doctor` finds out on this side, without an engine: packages, processor, threads, terminal, folders.

Made to be shown to strangers: of the environment there is nothing but what is named here, and the home folder is `~`.
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
# What each optional part needs.
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
# What decides which kernels are made, of the hundred flags that Linux lists.
_FEATURES = re.compile(r"sse4_2|avx.*|fma|f16c|amx_.*|asimd.*|sve.*|bf16|i8mm|fphp|v")


def here() -> Facts:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        ("buddy-tui", f"{version('buddy-tui')}, {short(Path(__file__).resolve().parents[2])}"),
        ("Python", f"{platform.python_version()}, {short(sys.executable)}"),
        ("system", f"{platform.platform()}, {memory:.1f} GiB of memory"),
        ("with", ", ".join(f"{name} {version(name)}" for name in PACKAGES)),
    ]


def processor() -> Facts:
    """The processor, what it can do, and how many threads there are for programs; the load is that of a minute."""
    machine, *flags = host_features().split()
    known = " ".join(flag for flag in flags if _FEATURES.fullmatch(flag))
    load = f", load {os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else ""
    limit = _quota()
    return [
        ("CPU", _model() or machine),
        ("features", f"{machine}: {known or 'none that kernels are made for'}"),
        ("kernels", f"for {host().name}: vectors of {host().vector_bytes} bytes, {host().l1 >> 10} KiB of first cache"),
        ("threads", f"{cores()} of {os.cpu_count()} cores{limit}{load}; {named(_THREADS)}"),
    ]


def _model() -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        return found[1].strip() if found else ""
    return ""


def _quota() -> str:
    """How much of the cores a control group (cgroup v2) leaves, where it limits them."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            return f", limited to {int(quota) / int(period):g} cores' time"
    return ""


def terminal() -> Facts:
    size = shutil.get_terminal_size()
    signs = (("tmux", "TMUX"), ("screen", "STY"), ("ssh", "SSH_CONNECTION"))
    inside = [name for name, sign in signs if sign in os.environ]
    kind = "a terminal" if sys.stdout.isatty() else "no terminal"
    encoding = str(sys.stdout.encoding)
    utf8 = "" if encoding.lower().replace("-", "") == "utf8" else " (no UTF-8: drawn with ASCII alone)"
    return [
        (
            "terminal",
            f"{kind}, {size.columns}x{size.lines}, {encoding}{utf8}, in {' and '.join(inside) or 'nothing else'}",
        ),
        ("able to", ", ".join(_abilities("tmux" in inside))),
        ("set", named((*_TERMINALS, *_OURS))),
    ]


def _abilities(in_tmux: bool) -> list[str]:
    """What the terminal says of itself, and terminfo of its name."""
    try:
        import curses

        curses.setupterm(os.environ.get("TERM") or "dumb", sys.__stdout__.fileno() if sys.__stdout__ else 1)
        colours = curses.tigetnum("colors")
        mouse, copies = bool(curses.tigetstr("kmous")), bool(curses.tigetstr("Ms"))
    except Exception:  # no terminfo, or not of this terminal
        colours, mouse, copies = 0, False, False
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        colours = 1 << 24
    told = f"{colours:,} colours" if colours > 0 else "colours unknown"
    copying = "copying by OSC 52" if copies else "copying by OSC 52 unknown (terminfo says nothing)"
    copying = "copying by tmux's buffers" if in_tmux else copying
    return [told, "a mouse" if mouse else "a mouse unknown", copying]


def parts() -> Facts:
    return [(name, version(package)) for name, package in PARTS.items()]


def folders() -> Facts:
    found = [("settings", settings_path()), ("state", default_store()), ("cache", disk_cache.folder())]
    told = [(name, f"{short(path)}, {_free(Path(path))}") for name, path in found]
    why = disk_cache.problem()
    return [*told, ("", f"NOTHING IS CACHED: {short(why)}")] if why else told


def _free(path: Path) -> str:
    """How much room there is where a folder is, or would be made."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    writable = "" if os.access(there, os.W_OK) else ", NOT WRITABLE"
    return f"{shutil.disk_usage(there).free / 2**30:.1f} GiB free{writable}"


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def named(names: Sequence[str]) -> str:
    """These variables of the environment, as far as they are set."""
    return ", ".join(f"{name}={short(os.environ[name])}" for name in names if name in os.environ) or "nothing is set"


def short(text: object) -> str:
    """A text with `~` for the home folder, which holds the user's name."""
    home = str(Path.home()).rstrip("/")
    return re.sub(rf"{re.escape(home)}(?=/|$|[\s,:;'\"])", "~", str(text)) if home else str(text)

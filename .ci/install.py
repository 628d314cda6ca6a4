"""Installs buddy-tui from this tree: `install.py EXTRAS`, into the environment of the Python that runs it.

If `requirements.lock` is for this Python and system, its files are installed, each checked by its hash. If some of them
cannot be downloaded, or the lock is for another Python, pip chooses within the ranges of `pyproject.toml`, and the
reason is printed. A file with another hash than the lock's aborts the installation: its content is unknown.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
LOCK = ROOT / "requirements.lock"
# pip's message for a file with another hash than expected.
OTHER_FILE = "DO NOT MATCH THE HASHES"


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: install.py EXTRAS, such as samples,dev", file=sys.stderr)
        return 2
    why = not_by_lock()
    if not why:
        return pip("--no-deps", "--no-build-isolation", "--editable", ".")
    if why == OTHER_FILE:
        print("a file is not the one that requirements.lock names by its hash: nothing is installed", file=sys.stderr)
        return 1
    print(f"== within the ranges of pyproject.toml, not by requirements.lock: {why}", flush=True)
    return pip("--editable", f".[{sys.argv[1]}]")


def not_by_lock() -> str:
    """Installs the files of the lock; returns "" on success, else the reason."""
    made_for = re.search(r"on Python (\d+\.\d+) and Linux x86-64", LOCK.read_text("utf-8"))
    here = f"{sys.version_info[0]}.{sys.version_info[1]}", sys.platform, platform.machine()
    if made_for is None or here != (made_for[1], "linux", "x86_64"):
        return f"it is for Python {made_for[1] if made_for else '(which, it does not say)'} on Linux x86-64"
    command = [*PIP, "--require-hashes", "--no-deps", "-r", str(LOCK)]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if not done.returncode:
        return ""
    print(done.stderr, file=sys.stderr, end="")
    told = done.stderr.strip().splitlines() or ["pip failed"]
    return OTHER_FILE if OTHER_FILE in done.stderr else told[-1]


def pip(*words: str) -> int:
    return subprocess.run([*PIP, *words], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

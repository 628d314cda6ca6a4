"""Writes `requirements.lock`: the result of `pip install '.[samples,dev]'`, each file by its hash.

Run by `make lock`.

uv resolves against its configured index. torch is the CPU build, which pip has to find: the package index has CUDA
builds, which need gigabytes of other packages. Packages that only these need are left out.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PYTHON, PLATFORM = "3.11", "x86_64-manylinux_2_28"
# The newest version with a build for CPUs where the lock is made.
TORCH = "torch==2.13.0"
# The dependencies of torch's CUDA builds.
CUDA = re.compile(r"(nvidia-|cuda-|triton\b)")
HEADING = f"""\
# What buddy-tui and its extras `samples` and `dev` need, on Python {PYTHON} and Linux x86-64; `make lock` renews it.
#     pip install --require-hashes --no-deps -r requirements.lock
# installs just these files, or none. torch is the build for CPUs alone: where pip's own index lacks it, tell pip of the
# one that PyTorch's site names for CPUs, or of a folder with the file. `--no-deps`, since nothing is left to be chosen.
"""
ELSEWHERE = f"the lock is for Python {PYTHON} on Linux x86-64, and pip tells of torch's file for that there alone"
NO_UV = "there is no uv: the package index that pip asks has to have it"
NO_CPU = "pip finds no build of torch for CPUs: set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to where PyTorch has them"


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: lock.py FOLDER-OF-UV", file=sys.stderr)
        return 2
    uv = Path(sys.argv[1]) / "uv"
    here = f"{sys.version_info[0]}.{sys.version_info[1]}", sys.platform, platform.machine()
    why = ELSEWHERE if here != (PYTHON, "linux", "x86_64") else "" if uv.exists() else NO_UV
    if why:
        print(why, file=sys.stderr)
        return 1
    version, sha256 = torch_for_cpus()
    if not version.endswith("+cpu"):
        print(NO_CPU, file=sys.stderr)
        return 1
    try:
        pins = parts(resolved(uv, f"torch=={version.partition('+')[0]}"))
    except subprocess.CalledProcessError:  # uv has printed the reason
        return 1
    kept = {name: lines for name, lines in pins.items() if not CUDA.match(name)}
    kept["torch"] = [f"torch=={version} \\", f"    --hash=sha256:{sha256}"]
    text = HEADING + "".join(f"{line}\n" for lines in kept.values() for line in lines)
    LOCK.write_text(text, encoding="utf-8")
    print(f"{LOCK.name}: {len(kept)} packages")
    return 0


def resolved(uv: Path, constraint: str) -> str:
    """The output of uv, without the address of the index. Raises `CalledProcessError`."""
    words = ["pip", "compile", "pyproject.toml", "--extra", "samples", "--extra", "dev", "--quiet", "--upgrade"]
    words += ["--python-version", PYTHON, "--python-platform", PLATFORM, "--generate-hashes", "--no-annotate"]
    words += ["--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    words += ["--constraint", "-"]
    done = subprocess.run([uv, *words], cwd=ROOT, check=True, input=constraint, stdout=subprocess.PIPE, text=True)
    return done.stdout


def parts(text: str) -> dict[str, list[str]]:
    """The lines of each requirement, by its name."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith(("#", " ")):
            lines = found.setdefault(line.partition("==")[0], [])
        if line and not line.startswith("#"):
            lines.append(line)
    return found


def torch_for_cpus() -> tuple[str, str]:
    """The version and hash of the build of `TORCH` that pip would install here; empty if it finds none."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
    done = subprocess.run([*command, "--report", "-", TORCH], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return "", ""
    (item,) = json.loads(done.stdout)["install"]
    return item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"]


if __name__ == "__main__":
    sys.exit(main())

"""`requirements.lock` covers what the project depends on, by hash; what it names is installed, and nothing else."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

packaging = pytest.importorskip("packaging.requirements", reason="pytest brings it along")

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "requirements.lock").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINUX = {"python_version": "3.11", "python_full_version": "3.11.0", "sys_platform": "linux", "extra": ""}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, tuple[str, list[str]]]:
    """By name, the version and the hashes."""
    found: dict[str, tuple[str, list[str]]] = {}
    for block in re.split(r"\n(?=\S)", "\n".join(line for line in TEXT.splitlines() if not line.startswith("#"))):
        head, *hashes = [line.strip(" \\") for line in block.strip().splitlines()]
        name, _, version = head.partition("==")
        found[plain(name)] = version, hashes
    return found


def test_every_line_is_a_version_or_a_hash_of_it() -> None:
    assert len(pins()) > 50
    for name, (version, hashes) in pins().items():
        assert re.fullmatch(r"[\w.+]+", version), name
        assert hashes, f"{name} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), name


def test_it_says_nothing_of_where_files_come_from() -> None:
    assert "://" not in TEXT
    assert not re.search(r"^\s*--(?!hash)", TEXT, re.MULTILINE)


def test_the_lock_covers_what_the_project_depends_on_within_its_bounds() -> None:
    extras = PROJECT["optional-dependencies"]
    locked = pins()
    for text in [*PROJECT["dependencies"], *extras["samples"], *extras["dev"]]:
        wanted = packaging.Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate(LINUX):
            version, _ = locked.get(plain(wanted.name), ("", []))
            assert version, f"{wanted.name} is not in the lock: make lock"
            assert wanted.specifier.contains(version), f"{wanted.name} {version} is not {wanted.specifier}: make lock"


def test_torch_is_the_build_for_cpus_and_what_only_cuda_needs_is_left_out() -> None:
    assert pins()["torch"][0].endswith("+cpu")
    assert not [name for name in pins() if name.startswith(("nvidia-", "cuda-")) or name == "triton"]


def test_a_lock_is_not_renewed_where_its_files_are_not_told_of(tmp_path: Path) -> None:
    """torch's file for another Python would have been named, by its hash."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    other = "import runpy, sys; sys.version_info = (3, 12, 0); sys.argv[0] = 'lock.py'"
    script = str(tmp_path / ".ci" / "lock.py")
    for before in (other, "import runpy, sys"):
        words = [sys.executable, "-c", f"{before}; runpy.run_path({script!r}, run_name='__main__')", str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert not (tmp_path / "requirements.lock").exists()
    if (*sys.version_info[:2], sys.platform, platform.machine()) == (3, 11, "linux", "x86_64"):
        assert "no uv" in done.stderr


# ---- installing by it ----------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a package of its own to depend on, in a folder beside it."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "little"\nversion = "1"\n[tool.setuptools]\npackages = []\n'
    )
    (tmp_path / "files").mkdir()
    with zipfile.ZipFile(tmp_path / "files" / "needed_thing-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("needed_thing.py", "")
        wheel.writestr("needed_thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: needed-thing\nVersion: 1\n")
        wheel.writestr(
            "needed_thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("needed_thing-1.dist-info/RECORD", "")
    return tmp_path


def install(project: Path, lock: str, python: str = "") -> subprocess.CompletedProcess[str]:
    """Install by `lock` as far as pip goes without installing anything."""
    here = python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    (project / "requirements.lock").write_text(f"# on Python {here} and Linux x86-64\n{lock}")
    words = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project / "files")}
    words |= {"PIP_DRY_RUN": "1", "PIP_IGNORE_INSTALLED": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    command = [sys.executable, str(project / ".ci" / "install.py"), "dev"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **words}, timeout=300)


def locked(project: Path) -> str:
    content = next((project / "files").iterdir()).read_bytes()
    return f"needed-thing==1 \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"


on_linux = pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="the lock is for Linux")


@on_linux
@pytest.mark.slow
def test_files_of_the_lock_are_installed_and_others_refused(project: Path) -> None:
    good = install(project, locked(project))
    assert good.returncode == 0, good.stderr
    assert "within the ranges" not in good.stdout
    other = re.sub(r"sha256:\w", "sha256:" + ("0" if "sha256:1" in locked(project) else "1"), locked(project))
    bad = install(project, other)
    assert bad.returncode == 1
    assert "requirements.lock" in bad.stderr.splitlines()[-1]
    assert "nothing is installed" in bad.stderr


@on_linux
@pytest.mark.slow
def test_where_the_lock_does_not_apply_it_is_said_and_the_ranges_do(project: Path) -> None:
    elsewhere = install(project, locked(project), python="2.7")
    assert "it is for Python 2.7" in elsewhere.stdout
    assert elsewhere.returncode == 0, elsewhere.stderr
    gone = install(project, f"not-to-be-had==1 --hash=sha256:{'0' * 64}\n")
    assert "not by requirements.lock" in gone.stdout
    assert gone.returncode == 0, gone.stderr

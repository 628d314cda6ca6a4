"""What is told of an installation, and that the small program it tries really goes the whole way."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from buddy.app.cli.doctor import EXTRAS, abbreviate_home
from buddy.app.cli.new import plugin_files

ROOT = Path(__file__).resolve().parents[2]


def doctor(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "buddy.app.cli", "doctor", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, **variables}
    )


SECRETS = {"API_TOKEN": "do-not-tell", "AWS_SECRET_ACCESS_KEY": "nor-this", "SSH_CONNECTION": "10.9.8.7 1 10.9.8.6 22"}


@pytest.mark.slow
def test_a_whole_installation_is_told_of_and_tried() -> None:
    done = doctor(**SECRETS, TERM="xterm-256color", COLORTERM="truecolor")
    assert done.returncode == 0, done.stderr
    assert re.search(r"result +\d+ stages, matches eager, [\d.]+ s", done.stdout)
    facts = (
        "Python     3",
        "none (entry points buddy.plugins)",
        "torch 2",
        "CPU  ",
        "features  ",
        "threads  ",
        "TERM=xterm-256color",
        "web  ",
        "OSC 52",
    )
    for fact in (*facts, "16,777,216 colours", "in ssh", "none (entry points buddy.plugins)"):
        assert fact in done.stdout
    for secret in ("do-not-tell", "nor-this", "10.9.8.7"):
        assert secret not in done.stdout + done.stderr
    assert not re.search(rf"\b{re.escape(platform.node() or '?')}\b", done.stdout), "the name of this machine"
    assert str(Path.home()) + "/" not in done.stdout


@pytest.mark.slow
def test_installed_plugins_are_listed_and_a_broken_one_stops_nothing(tmp_path: Path) -> None:
    written = plugin_files("plugin", "one-of-each")
    (tmp_path / "one_of_each_pane.py").write_text(written["one_of_each_pane.py"])
    texts = {
        "one-of-each": written["one_of_each.py"],
        "endless": "while True:\n    try:\n        open('/dev/null').close()\n    except Exception:\n        pass\n",
        "newer": "import buddy.api\nbuddy.api.require_api(99)\n",
        "newest": "from buddy.api import something_new\n",
        "twice": written["one_of_each.py"].replace("OneOfEach", "Twice").replace("one_of_each::", "twice::"),
    }
    for name, text in texts.items():
        module, folder = name.replace("-", "_"), tmp_path / f"{name.replace('-', '_')}-0.1.dist-info"
        (tmp_path / f"{module}.py").write_text(text)
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        pane = {"one-of-each": "one_of_each_pane:OneOfEachPane", "newest": "newest:Pane"}.get(name, "")
        points = f"[buddy.plugins]\n{name} = {module}\n" + f"[buddy.panes]\n{name} = {pane}\n" * bool(pane)
        (folder / "entry_points.txt").write_text(points)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = doctor("--json", PYTHONPATH=path, BUDDY_PLUGIN_SECONDS="15")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    contents = found["plug-ins"]["one-of-each 0.1"]
    for part in (
        "op class OneOfEachOp",
        "lowering linalg.OneOfEachOp",
        "MLIR pass one-of-each",
        "backend one-of-each-o3",
    ):
        assert part in contents
    assert "preset one-of-each-upstream" in contents
    assert "exporter one-of-each-nodes" in contents
    assert contents.endswith("; pane one-of-each")
    endless, newest = found["plug-ins"]["endless 0.1"], found["plug-ins"]["newest 0.1"]
    assert "FAILED: plug-in endless 0.1 took too long, and was stopped" in endless
    assert "endless.py:" in endless
    assert "correct the plug-in, or remove it" in endless
    assert "needs a name that this buddy.api does not have" in newest
    assert "the pane newest of newest 0.1" in newest
    assert "update buddy-tui" in newest
    assert "the pass 'one-of-each' is registered twice" in found["plug-ins"]["twice 0.1"]
    assert "FAILED" in found["plug-ins"]["newer 0.1"]
    assert "version 99 of buddy.api is needed" in found["plug-ins"]["newer 0.1"]


def test_as_json_it_is_one_object_even_where_the_engine_fails() -> None:
    done = doctor("--json", "--engine", "no-such-program --token=do-not-tell")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["ok"], found["self_test_seconds"]) == (False, None)
    assert {"here", "processor", "terminal", "folders", "optional parts"} <= set(found)
    assert found["here"]["Python"].startswith("3.")
    assert "do-not-tell" not in done.stdout


def test_every_optional_part_is_told_of() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    extras = set(re.findall(r"^(\w+) = \[", text.partition("\n[")[0], re.MULTILINE))
    assert set(EXTRAS) == extras - {"dev"}


def test_the_home_folder_is_short_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert abbreviate_home("in /home/me/x, /home/me, /home/men/y, '/home/me'") == "in ~/x, ~, /home/men/y, '~'"
    monkeypatch.setenv("HOME", "/")
    assert abbreviate_home("/a") == "/a"


def test_without_an_engine_it_still_tells_what_is_here() -> None:
    done = doctor("--engine", "no-such-program")
    assert done.returncode == 1
    assert "Python     3" in done.stdout
    assert "no-such-program" in done.stderr
    assert "Traceback" not in done.stderr

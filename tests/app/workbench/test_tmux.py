"""Copying in tmux with its default configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buddy.app.workbench.terminal import copy_to_tmux

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
Tmux = Callable[..., str]


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """A separate tmux server without user configuration."""
    socket = tmp_path / "tmux"

    def run(*words: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-S", str(socket), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout

    run("new-session", "-d", "-x", "80", "-y", "24", "sleep 600")
    yield run
    run("kill-server")


def test_copied_text_is_the_newest_tmux_buffer(tmux: Tmux, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", f"{tmp_path / 'tmux'},{os.getpid()},0")
    text = "func.func @é(%0: tensor<4xf32>)\n-w --\n"
    copy_to_tmux(text)
    end = time.monotonic() + 120
    while tmux("show-buffer") != text:
        assert time.monotonic() < end, tmux("list-buffers")
        time.sleep(0.05)


def test_without_tmux_nothing_happens(tmux: Tmux, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    copy_to_tmux("text")
    time.sleep(0.3)
    assert tmux("list-buffers") == ""

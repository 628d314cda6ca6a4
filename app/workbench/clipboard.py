"""Copying inside tmux, which by default keeps a program's OSC 52 to itself but takes text from its own command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

_PATIENCE = 5.0


def offer_to_tmux(text: str) -> None:
    """Give `text` to the tmux that this runs in, if any, as its newest buffer and for the terminal's clipboard."""
    if os.environ.get("TMUX") and not os.environ.get("TEXTUAL_DRIVER"):
        threading.Thread(target=_load, args=(text,), daemon=True).start()


def _load(text: str) -> None:
    """`-w`, which hands the buffer to the terminal, is tmux 3.2's."""
    for option in (["-w"], []):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = ["tmux", "load-buffer", *option, "-"]
            done = subprocess.run(words, input=text.encode(), capture_output=True, timeout=_PATIENCE)
            if done.returncode == 0:
                return

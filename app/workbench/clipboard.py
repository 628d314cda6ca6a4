"""Copying inside tmux, which by default ignores OSC 52 of programs but accepts text by its own command."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

_PATIENCE = 5.0


def offer_to_tmux(text: str) -> None:
    """Copy `text` to the newest buffer of the surrounding tmux, if any, and to the clipboard of the terminal."""
    if os.environ.get("TMUX") and not os.environ.get("TEXTUAL_DRIVER"):
        threading.Thread(target=_load_buffer, args=(text,), daemon=True).start()


def _load_buffer(text: str) -> None:
    """Load a buffer. `-w`, which also copies to the terminal, needs tmux 3.2."""
    for option in (["-w"], []):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = ["tmux", "load-buffer", *option, "-"]
            done = subprocess.run(words, input=text.encode(), capture_output=True, timeout=_PATIENCE)
            if done.returncode == 0:
                return

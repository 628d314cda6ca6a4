"""Replaces ssh: runs the command locally, over a connection that is slow, and that drops or hangs on request.

    buddy-tui --ssh 'python benchmarks/support/far.py FOLDER SECONDS' --remote HOST …

Each direction adds SECONDS. A file `down` in FOLDER drops the connection and refuses new ones, a file `hang` stops all
transfer. The numbers of bytes sent in both directions are written to FOLDER, one file per connection.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

_READ = 1 << 16
_LOOK = 0.02


class Way:
    """One direction: bytes read from `source` are written to `target` after the delay."""

    def __init__(self, source: int, target: int, seconds: float, folder: Path) -> None:
        self._source, self._target, self._seconds, self._folder = source, target, seconds, folder
        self._under_way: queue.Queue[tuple[float, bytes]] = queue.Queue()
        self.count = 0
        self.done = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._write, daemon=True).start()

    def _read(self) -> None:
        data = b"-"
        while data:
            try:
                data = os.read(self._source, _READ)
            except OSError:
                data = b""
            self.count += len(data)
            self._under_way.put((time.monotonic() + self._seconds, data))

    def _write(self) -> None:
        data = b"-"
        while data:
            due, data = self._under_way.get()
            time.sleep(max(0.0, due - time.monotonic()))
            while (self._folder / "hang").exists():
                time.sleep(_LOOK)
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._target, view) :]
            except OSError:
                data = b""
        self.done.set()
        os.close(self._target)


def tell(folder: Path, there: Way, back: Way) -> None:
    """Writes the byte counts to a file, atomically."""
    new = folder / f"{os.getpid()}.new"
    new.write_text(json.dumps({"there": there.count, "back": back.count}))
    new.replace(new.with_suffix(".json"))


def main(folder: Path, seconds: float, command: str) -> int:
    if (folder / "down").exists():
        print("ssh: connect to host far port 22: Network is unreachable", file=sys.stderr)
        return 255
    process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    there = Way(0, os.dup(process.stdin.fileno()), seconds, folder)
    back = Way(process.stdout.fileno(), os.dup(1), seconds, folder)
    process.stdin.close()
    try:
        while not back.done.is_set():
            if (folder / "down").exists():
                print("client_loop: send disconnect: Broken pipe", file=sys.stderr)
                process.kill()
                return 255
            tell(folder, there, back)
            time.sleep(_LOOK)
        return process.wait()
    finally:
        tell(folder, there, back)


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[-1]))

"""`python -m buddy.compiler.engine`: serves one client on stdin and stdout, and exits with it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] = ()) -> int:
    """Serves a client, and returns the exit code.

    The first argument, if there is one, is the path of the log file; without it, the log goes to stderr.
    """
    frames_in, frames_out = _take_standard_streams(arguments[0] if arguments else "")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    from buddy.compiler.engine.connection import Connection
    from buddy.compiler.engine.server import Server
    from buddy.compiler.support.files import ensure_temporary_folder
    from buddy.compiler.support.processes.lifetime import limit_memory

    limit_memory()
    ensure_temporary_folder()

    async def serve() -> int:
        return await Server(Connection(frames_in, frames_out)).serve()

    return asyncio.run(serve())


def _take_standard_streams(log: str) -> tuple[int, int]:
    """Reserves stdin and stdout for frames, and returns copies of their file descriptors.

    All other output of this process, from Python or C, goes to the log: a file with the path `log`, or stderr if it
    is "".
    """
    frames_in, frames_out = os.dup(0), os.dup(1)
    if log:
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log_fd, 2)
        os.close(log_fd)
    null_device = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_device, 0)
    os.close(null_device)
    os.dup2(2, 1)
    return frames_in, frames_out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

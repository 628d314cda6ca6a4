"""An engine that listens on an inherited socket. A relay starts it.

It serves one client over any number of connections, one at a time, and exits when the client requests it, or after some
seconds without a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from pathlib import Path

from buddy.compiler.engine.relay import log_path


def serve_socket(*words: str) -> int:
    """Serves the client; removes the socket's file and the log at an orderly exit.

    The words are the socket's file descriptor, its path, and the seconds without a connection.
    """
    descriptor, path, patience = int(words[0]), Path(words[1]), float(words[2])
    os.set_inheritable(descriptor, False)
    # Independent of the client's log level, and without the script's output: the file is not truncated while the engine
    # runs.
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(message)s")
    from buddy.compiler.engine.resumable_connection import ResumableConnection
    from buddy.compiler.engine.server import Server
    from buddy.compiler.support.processes.limits import take_limits
    from buddy.compiler.support.scratch import ensure_temporary_folder

    take_limits()
    ensure_temporary_folder()

    async def serve() -> int:
        return await Server(ResumableConnection(socket.socket(fileno=descriptor), patience)).serve()

    try:
        code = asyncio.run(serve())
    finally:
        path.unlink(missing_ok=True)
    if code == 0:
        with contextlib.suppress(OSError):
            log_path(path).unlink()
    return code

"""`python -m buddy.compiler.engine.kept FD PATH SECONDS`: an engine that listens on a socket it has been handed.

It serves one client over any number of links, one at a time, and ends when the client says so, or when there has been
no link for that many seconds. A relay starts it.
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


def main(descriptor: int, path: Path, patience: float) -> int:
    """Serve; the socket's file and the log are removed at an orderly end."""
    os.set_inheritable(descriptor, False)
    # Whatever level a client asks for, not what the script prints: nobody cuts this file short while the engine lives.
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    logging.basicConfig(handlers=[handler], format="%(asctime)s %(message)s")
    from buddy.compiler.engine.kept_connection import KeptConnection
    from buddy.compiler.engine.server import Server
    from buddy.compiler.support.processes.limits import take_limits
    from buddy.compiler.support.scratch import have_temporary_folder

    take_limits()
    have_temporary_folder()

    async def serve() -> int:
        return await Server(KeptConnection(socket.socket(fileno=descriptor), patience)).serve()

    try:
        code = asyncio.run(serve())
    finally:
        path.unlink(missing_ok=True)
    if code == 0:
        with contextlib.suppress(OSError):
            log_path(path).unlink()
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))

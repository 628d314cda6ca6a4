"""A process forked from the host, whose program and inputs it has, and spoken to by a socket of its own.

So the host is free for other requests meanwhile, and may even be replaced.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from buddy.compiler.engine.channel import Channel


def fork_to(address: str, types: Any, live: Callable[[Channel], None]) -> None:
    """Fork a process that speaks to the socket `address`; it ends when `live` does, or when nobody listens any more.

    `types` are the messages that it is sent.
    """
    pid = os.fork()
    if pid == 0:
        try:
            # Forked twice, so that nobody here has to wait for it.
            if os.fork() == 0:
                _live(address, types, live)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _live(address: str, types: Any, live: Callable[[Channel], None]) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        live(Channel(connection.fileno(), connection.fileno(), types))

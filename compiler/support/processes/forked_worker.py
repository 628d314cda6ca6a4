"""A process forked from the host, with the host's program and inputs, that communicates over its own socket.

So the host can serve other requests meanwhile, and may even be replaced.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.parent_death import die_with_parent, die_with_socket


def lifetime_socket(address: str) -> str:
    """Returns the socket next to `address` without messages: a process ends with the one that listens there."""
    return os.path.join(os.path.dirname(address), "line")


def fork_to(address: str, types: Any, live: Callable[[Channel], None]) -> None:
    """Forks a process that serves the socket `address`; it ends when `live` does, or when nobody listens any more.

    `types` are the messages that it receives.
    """
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
            with _line(address):
                # Forked twice, so that this process does not have to wait for it.
                if os.fork() == 0:
                    _live(address, types, live)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _line(address: str) -> socket.socket:
    """Makes this process a session leader; returns the connection with which it and its forks end."""
    os.setsid()
    line = socket.socket(socket.AF_UNIX)
    line.connect(lifetime_socket(address))
    die_with_socket(line.fileno(), group=True)
    return line


def _live(address: str, types: Any, live: Callable[[Channel], None]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        live(Channel(connection.fileno(), connection.fileno(), types))

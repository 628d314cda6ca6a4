"""The options with which an engine starts: the host that it runs on, by ssh, and the file of its log (`--log`).

`RemoteHost` makes the ssh commands that start, reach and stop a remote engine, and explains ssh's errors. `LogFile`
appends to the log, and rotates it at a size limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from buddy.compiler.protocol import LogLevel
from buddy.compiler.protocol.resumable_stream import EXIT_UNANSWERED

# ---- a remote engine -------------------------------------------------------------------------------------------------


# How long a remote engine waits for a reconnect: a long network outage, but not so long that a forgotten engine stays.
RECONNECT_SECONDS = 600.0
# The command of buddy-tui on the remote host, unless its path is given.
PROGRAM = "buddy-tui"


@dataclass(frozen=True)
class RemoteHost:
    """An engine on `host`, a host name for ssh.

    `ssh` is the command that connects, each of `options` is passed as `-o`, `program` is the path of buddy-tui on the
    host. Sources are relative to `folder` on the host; an empty text stands for the home folder. The engine exits after
    `reconnect_seconds` without a connection.
    """

    host: str
    ssh: tuple[str, ...] = ("ssh",)
    options: tuple[str, ...] = ()
    program: str = PROGRAM
    folder: str = ""
    reconnect_seconds: float = RECONNECT_SECONDS

    @property
    def key(self) -> str:
        """A text that distinguishes session files of equal paths on different hosts or in different folders."""
        return f"{self.host} {self.folder}"

    def start_command(self, name: str) -> list[str]:
        """Returns the command that starts an engine called `name` on the host, and connects to it."""
        return self._command("--keep", name, "--wait", f"{self.reconnect_seconds:g}")

    def reconnect_command(self, name: str) -> list[str]:
        """Returns the command that reconnects to the engine called `name`."""
        return self._command("--back", name)

    def stop_command(self, name: str) -> list[str]:
        """Returns the command that stops the engine called `name`, even if it is busy."""
        return self._command("--end", name)

    def _command(self, *words: str) -> list[str]:
        """Returns the ssh command that runs `buddy-tui engine` with `words` on the host."""
        # ssh uses the first value of an option, so the user's options come first. BatchMode disables prompts, which
        # the user cannot answer while the workbench is drawn.
        default_options = ("BatchMode=yes", "ConnectTimeout=15")
        options = [word for option in (*self.options, *default_options) for word in ("-o", option)]
        return [*self.ssh, "-T", *options, "--", self.host, shlex.join([self.program, "engine", *words])]

    def explain_exit(self, code: int, stderr: str) -> tuple[str, bool]:
        """Returns the cause of ssh's exit with `code` and what to do, and whether a new attempt would fail too."""
        if code == EXIT_UNANSWERED:
            return f"the engine on {self.host} does not answer", False
        for phrase, problem, todo in _SSH_ERRORS:
            if phrase in stderr:
                return f"{problem.format(self=self)} · {todo.format(self=self)}", True
        # 127 is the exit code of a shell that does not find the command.
        if code == 127 or "not found" in stderr.rpartition("\n")[2]:
            return f"{self.program} not found on {self.host} · {_INSTALL.format(self=self)}", True
        last_line = stderr.rpartition("\n")[2].strip() or f"exit code {code}"
        return f"ssh {self.host}: {last_line}", False


def check_host(text: str) -> str:
    """Returns `text` if it is a valid host argument for ssh. Raises `ValueError` for an option or an invalid host.

    ssh inserts the name into the shell commands of `ProxyCommand` and `Match exec`, and older versions do not check it.
    So shell metacharacters and parts that start with a dash are rejected.
    """
    if not _HOST.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a host: use HOST, USER@HOST, ssh://USER@HOST:PORT or a name in ~/.ssh/config"
        )
    return text


# A user name or a host, which may be a name with letters of any script, an IPv4 or IPv6 address (`[::1]`, with a zone
# such as `%eth0`), and may end with `:PORT`.
_HOST_PART = r"(?!-)[\w.+~%,=:\[\]][\w.+~%,=:\[\]-]*"
_HOST = re.compile(rf"(ssh://)?({_HOST_PART}@)*{_HOST_PART}")
# What to do if the host has no buddy-tui.
_INSTALL = "install it there, or give its path: --remote-program venv/bin/buddy-tui"
# For each phrase in the error output of ssh or buddy-tui: what happened, and what to do.
_SSH_ERRORS = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the host key of {self.host} has changed",
        "find out why; `ssh {self.host}` shows the line in known_hosts",
    ),
    (
        "Host key verification failed",
        "ssh does not know the host key of {self.host} yet",
        "connect once with `ssh {self.host}` and answer its question",
    ),
    (
        "Permission denied (",
        "ssh needs a password or a passphrase for {self.host}, which cannot be entered here",
        "add your key to the agent (`ssh-add`), or share a connection you have opened (docs/how-to/remote.md)",
    ),
    ("Could not resolve hostname", "ssh cannot resolve the host {self.host}", "check the name, or ~/.ssh/config"),
    ("Bad configuration option", "ssh rejects an option", "check --ssh-option and ~/.ssh/config"),
    (
        "unrecognized arguments: --",
        "buddy-tui on {self.host} has another version",
        "install the same version on both sides",
    ),
    (
        "no such option: --",
        "buddy-tui on {self.host} has another version",
        "install the same version on both sides",
    ),
)


# ---- the log ---------------------------------------------------------------------------------------------------------


# The size at which the file is rotated, 8 MiB.
MAX_BYTES = 8 << 20
# The number of old files that are kept: FILE.1, the newest, to FILE.3.
MAX_OLD_FILES = 3


class LogOptions(NamedTuple):
    """The path of the log (`None` without a log file), and the minimum level of its messages."""

    path: Path | None = None
    level: LogLevel = "info"


NO_LOG = LogOptions()


class LogFile:
    """A log file that is open while an engine runs. Several processes may append to it.

    The constructor raises `OSError` if the file cannot be opened. The methods raise no errors.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._file: BinaryIO = self._open_file()

    def _open_file(self) -> BinaryIO:
        """Opens the file at the path to append to it. Raises `OSError`."""
        # Readable only by the user, because errors quote lines of programs.
        return open(self._path, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))

    def write(self, data: bytes) -> None:
        """Appends `data`. Data that cannot be written, for example on a full disk, is dropped."""
        with contextlib.suppress(OSError, ValueError):
            size = self._current_size()
            if size is not None and size + len(data) > self._max_bytes:
                self._rotate()
            self._file.write(data)

    def _current_size(self) -> int | None:
        """Returns the size of the file in bytes; `None` for a device or another special file.

        If another process has rotated or deleted the file, this reopens the file at the path, or creates it.
        """
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        if not self._path.exists() or not os.path.samestat(status, self._path.stat()):
            self._reopen()
            status = os.fstat(self._file.fileno())
        return status.st_size

    def _rotate(self) -> None:
        """Rotates the file, unless another process has just done so, and starts a new one."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                for number in range(MAX_OLD_FILES - 1, 0, -1):
                    if self._numbered(number).exists():
                        self._numbered(number).replace(self._numbered(number + 1))
                self._path.replace(self._numbered(1))
        self._reopen()

    def _reopen(self) -> None:
        """Opens the file that is at the path now, instead of the open one. Raises `OSError`."""
        reopened = self._open_file()
        self._file.close()
        self._file = reopened

    def _numbered(self, number: int) -> Path:
        """Returns the path of old file `number`, 1 for the newest."""
        return self._path.with_name(f"{self._path.name}.{number}")

    def close(self) -> None:
        self._file.close()

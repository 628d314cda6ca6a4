"""A remote host over ssh: the commands for its engine, and explanations of ssh's error messages."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from buddy.compiler.protocol.resuming import UNANSWERED

# Covers a long network outage, but does not keep resources of the host for a day.
PATIENCE = 600.0
PROGRAM = "buddy-tui"


@dataclass(frozen=True)
class RemoteHost:
    """An engine on `host`, a host name for ssh.

    `ssh` is the command that connects, `options` are passed as `-o`, `program` is the path of buddy-tui on the host.
    Sources are relative to `folder` on the host (empty: the home folder). The engine exits after `patience` seconds
    without a connection.
    """

    host: str
    ssh: tuple[str, ...] = ("ssh",)
    options: tuple[str, ...] = ()
    program: str = PROGRAM
    folder: str = ""
    patience: float = PATIENCE

    @property
    def place(self) -> str:
        """A key that distinguishes programs with the same path on different hosts."""
        return f"{self.host} {self.folder}"

    def start_command(self, name: str) -> list[str]:
        """The command that starts an engine called `name` on the host, and connects to it."""
        return self._command("--keep", name, "--wait", f"{self.patience:g}")

    def reconnect_command(self, name: str) -> list[str]:
        """The command that reconnects to that engine."""
        return self._command("--back", name)

    def stop_command(self, name: str) -> list[str]:
        """The command that stops that engine, even if it is busy."""
        return self._command("--end", name)

    def _command(self, *words: str) -> list[str]:
        """The ssh command. The words for the remote shell are quoted; the user's options precede ours."""
        # ssh uses the first value of an option. BatchMode: the user cannot answer prompts while the workbench is drawn.
        ours = ("BatchMode=yes", "ConnectTimeout=15")
        options = [word for option in (*self.options, *ours) for word in ("-o", option)]
        return [*self.ssh, "-T", *options, "--", self.host, shlex.join([self.program, "engine", *words])]

    def explain(self, code: int, stderr: str) -> tuple[str, bool]:
        """The cause of ssh's exit and what to do, and whether the error is permanent."""
        if code == UNANSWERED:
            return f"the engine on {self.host} does not answer", False
        for sign, what, todo in _COMPLAINTS:
            if sign in stderr:
                return f"{what.format(self=self)} · {todo.format(self=self)}", True
        if code == 127 or "not found" in stderr.rpartition("\n")[2]:
            return f"{self.program} not found on {self.host} · {_INSTALL.format(self=self)}", True
        last = stderr.rpartition("\n")[2].strip() or f"exit code {code}"
        return f"ssh {self.host}: {last}", False


def check_host(text: str) -> str:
    """A valid host argument for ssh. Raises `ValueError` for an option or an invalid host.

    ssh inserts the name into the shell commands of `ProxyCommand` and `Match exec`, and older versions do not check it.
    So shell metacharacters and parts that start with a dash are rejected.
    """
    if not _HOST.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a host: use HOST, USER@HOST, ssh://USER@HOST:PORT or a name in ~/.ssh/config"
        )
    return text


# USER@ and the rest: names, addresses, `[::1]`, `%eth0`, `:PORT`; letters of any script.
_PART = r"(?!-)[\w.+~%,=:\[\]][\w.+~%,=:\[\]-]*"
_HOST = re.compile(rf"(ssh://)?({_PART}@)*{_PART}")
_INSTALL = "install it there, or give its path: --remote-program venv/bin/buddy-tui"
_COMPLAINTS = (
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
        "add your key to the agent (`ssh-add`), or share a connection you have opened (docs/remote.md)",
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

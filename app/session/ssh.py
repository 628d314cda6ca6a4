"""A machine that ssh reaches: the commands that lead to an engine there, and what ssh's complaints mean."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from buddy.compiler.protocol.resuming import UNANSWERED

# Long enough for a lunch break's worth of bad network, short enough that a machine is not held for a day.
PATIENCE = 600.0
PROGRAM = "buddy-tui"


@dataclass(frozen=True)
class Remote:
    """An engine on `host`, as ssh understands it.

    `ssh` is the command that reaches it, `options` what is passed on as `-o`, `program` what buddy-tui is called there.
    Sources are relative to `folder` there, the home folder where it is empty. The engine ends when it has been without
    a link for `patience` seconds.
    """

    host: str
    ssh: tuple[str, ...] = ("ssh",)
    options: tuple[str, ...] = ()
    program: str = PROGRAM
    folder: str = ""
    patience: float = PATIENCE

    @property
    def place(self) -> str:
        """What tells programs there from those of the same path elsewhere."""
        return f"{self.host} {self.folder}"

    def start(self, name: str) -> list[str]:
        """The command that starts an engine called `name` there, and links to it."""
        return self._command("--keep", name, "--wait", f"{self.patience:g}")

    def back(self, name: str) -> list[str]:
        """The command that links to that engine again."""
        return self._command("--back", name)

    def end(self, name: str) -> list[str]:
        """The command that ends that engine, whatever it is at."""
        return self._command("--end", name)

    def _command(self, *words: str) -> list[str]:
        """What ssh hands to the shell on the other side is quoted; the user's own options win over ours."""
        # ssh takes the first value of an option. A question could not be answered: the terminal is the workbench's.
        ours = ("BatchMode=yes", "ConnectTimeout=15")
        options = [word for option in (*self.options, *ours) for word in ("-o", option)]
        return [*self.ssh, "-T", *options, "--", self.host, shlex.join([self.program, "engine", *words])]

    def explain(self, code: int, stderr: str) -> tuple[str, bool]:
        """What the end of ssh means and what to do, and whether it lasts until somebody does."""
        if code == UNANSWERED:
            return f"the engine on {self.host} does not answer", False
        for sign, what, todo in _COMPLAINTS:
            if sign in stderr:
                return f"{what.format(self=self)} · {todo.format(self=self)}", True
        if code == 127 or "not found" in stderr.rpartition("\n")[2]:
            return f"there is no {self.program} on {self.host} · {_INSTALL.format(self=self)}", True
        last = stderr.rpartition("\n")[2].strip() or f"exit code {code}"
        return f"ssh {self.host}: {last}", False


def checked_host(text: str) -> str:
    """A host as ssh takes it. Raises `ValueError` for what would be an option, or no host at all.

    ssh puts the name into commands that a user's `ProxyCommand` and `Match exec` hand to a shell, and older ones do so
    without a look at it: so nothing that means something to a shell is let through, and no part that begins as options
    do.
    """
    if not _HOST.fullmatch(text):
        raise ValueError(f"{text!r} is no host: HOST, USER@HOST, ssh://USER@HOST:PORT or a name in ~/.ssh/config")
    return text


# USER@ and the rest: names, addresses, `[::1]`, `%eth0`, `:PORT`; letters of any script.
_PART = r"(?!-)[\w.+~%,=:\[\]][\w.+~%,=:\[\]-]*"
_HOST = re.compile(rf"(ssh://)?({_PART}@)*{_PART}")
_INSTALL = "install it there, or say where it is: --remote-program venv/bin/buddy-tui"
_COMPLAINTS = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the key of {self.host} is not the one ssh knows",
        "find out why; `ssh {self.host}` says which line of known_hosts it is",
    ),
    (
        "Host key verification failed",
        "ssh does not know the key of {self.host} yet",
        "connect once with `ssh {self.host}` and answer its question",
    ),
    (
        "Permission denied (",
        "ssh asks for a password or a passphrase for {self.host}, and here is no place for it",
        "add your key to the agent (`ssh-add`), or share a connection you have opened (docs/remote.md)",
    ),
    ("Could not resolve hostname", "ssh finds no host {self.host}", "check the name, or ~/.ssh/config"),
    ("Bad configuration option", "ssh does not know an option", "check --ssh-option and ~/.ssh/config"),
    (
        "unrecognized arguments: --",
        "the buddy-tui on {self.host} is of another version",
        "use the same version on both sides",
    ),
    (
        "no such option: --",
        "the buddy-tui on {self.host} is of another version",
        "use the same version on both sides",
    ),
)

"""`python -m buddy.compiler.support.processes MODULE FUNCTION PARENT SHAPE …`: runs a function in this new interpreter.

The interpreter ends with the process PARENT, or independently if PARENT is 0. SHAPE says what the function's input is:

- `call`: one MessagePack value from stdin, of the type of the function's parameter; the result goes to stdout.
- `pipes READ WRITE`: a `Channel` over these file descriptors, for the messages that `@serves` names.
- `words WORDS…`: the words as arguments; the result is the exit code.
"""

from __future__ import annotations

import importlib
import os
import sys
import typing
from collections.abc import Callable
from typing import Any

from buddy.compiler.support.processes.lifetime import die_with_parent


def main(arguments: list[str]) -> None:
    module, name, parent, shape, *rest = arguments
    if int(parent):
        die_with_parent(int(parent))
    _forget_current_folder()
    function = getattr(importlib.import_module(module), name)
    if shape == "call":
        answer_call(function)
    elif shape == "pipes":
        serve(function, *map(int, rest))
    else:
        sys.exit(function(*rest))


def answer_call(function: Callable[..., object]) -> None:
    """Reads the argument of `function` from stdin, unless it has no parameter, and writes its result to stdout.

    What the function prints, from Python or C, goes to stderr.
    """
    import msgspec

    types = [type_ for name, type_ in typing.get_type_hints(function).items() if name != "return"]
    data = sys.stdin.buffer.read()
    arguments = [msgspec.msgpack.decode(data, type=type_) for type_ in types]
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        answer.write(msgspec.msgpack.encode(function(*arguments)))


def serve(function: Any, read_fd: int, write_fd: int) -> None:
    """Calls `function` with a channel to the process that started this one."""
    from buddy.compiler.support.files import ensure_temporary_folder
    from buddy.compiler.support.processes.channel import Channel
    from buddy.compiler.support.processes.lifetime import WORKER_OOM_SCORE, raise_oom_score

    for fd in (read_fd, write_fd):
        os.set_inheritable(fd, False)
    raise_oom_score(WORKER_OOM_SCORE)
    ensure_temporary_folder()
    function(Channel(read_fd, write_fd, function.requests))


def _forget_current_folder() -> None:
    """Removes the current folder, whose files may shadow modules, from `sys.path`: Python 3.10 puts it there."""
    if sys.path and sys.path[0] in ("", os.getcwd()) and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]


if __name__ == "__main__":
    main(sys.argv[1:])

"""Checks the environment of this project: misspelt variables, and the version of PyTorch."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping

from buddy.compiler.protocol.errors import BuddyError

PREFIX = "BUDDY_"
# Each variable, with its meaning.
VARIABLES = {
    "BUDDY_BLAS": "`none` disables products by BLAS",
    "BUDDY_CACHE": "the folder of the cache of compiled code",
    "BUDDY_MEMORY": "the GiB of memory that each process of the engine may use",
    "BUDDY_MLIR_OPT": "the mlir-opt whose passes are available too",
    "BUDDY_MLIR_PACKAGE": "the package of the MLIR Python bindings",
    "BUDDY_PLUGIN_SECONDS": "how long the import of a plug-in may take, in seconds (60)",
    "BUDDY_SUMMARY": "0: `torch.compile` logs no line about each model",
    "BUDDY_TUI_CONFIG": "the settings file",
    "BUDDY_TUI_STATE": "the folder of saved recipes and sessions",
    "BUDDY_VERIFY": "1 or warn: the first call of each compiled graph is compared with eager",
}
# Other programs have variables with our prefix: Buddy-MLIR's build has BUDDY_MLIR_BUILD_DIR, for example. These
# similarities (of `difflib`, without the prefix) separate them from misspelt ones.
_SIMILARITY = 0.8
_MLIR_SIMILARITY = 0.9
# The versions of PyTorch that `make matrix` tests; `pyproject.toml` allows one release more.
FIRST_TORCH, LAST_TORCH = (2, 11), (2, 15)


class EnvironmentVariableError(BuddyError, ValueError):
    """An environment variable is almost one of ours: it is misspelt, and would have no effect."""


def check_variables(environment: Mapping[str, str] = os.environ) -> None:
    """Raises `EnvironmentVariableError` for variables that are probably misspelt; names the nearest valid ones."""
    misspelt = {name: near for name in environment if (near := _misspelt_variable(name))}
    if misspelt:
        names = ", ".join(sorted(misspelt))
        is_one = len(misspelt) == 1
        todo = ", ".join(f"did you mean {misspelt[name]}?" for name in sorted(misspelt))
        raise EnvironmentVariableError(
            f"{names} in the environment {'is not a variable' if is_one else 'are not variables'} of buddy-tui",
            todo=f"{todo} (else unset {'it' if is_one else 'them'})",
        )


def _misspelt_variable(name: str) -> str:
    """Returns the variable that `name` probably means; "" if it is one of ours, or another program's."""
    if not name.upper().startswith(PREFIX) or name in VARIABLES:
        return ""
    word = name.upper().removeprefix(PREFIX)
    similarity = _MLIR_SIMILARITY if word.startswith("MLIR_") else _SIMILARITY
    variables = [variable.removeprefix(PREFIX) for variable in VARIABLES]
    # Names that are much longer or shorter than the variable are not similar enough.
    related = [name for name in variables if word.startswith(f"{name}_") or _is_abbreviation(word, name)]
    near = related or difflib.get_close_matches(word, variables, 1, similarity)
    if not near and word.startswith("TUI_"):  # no other program has this prefix
        near = difflib.get_close_matches(word, variables, 1, 0.0)
    return f"{PREFIX}{near[0]}" if near else ""


def _is_abbreviation(word: str, variable: str) -> bool:
    """Whether `word` is the start of a variable, with at least three letters; both are without `PREFIX`."""
    return len(word) > 2 and variable.startswith(word)


def torch_warning(version: str) -> str:
    """Returns a warning about a version of PyTorch, such as "2.16.0+cpu", that was never tested; "" for all others."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        return f"PyTorch {version} has no version number: tested are {_tested()}"
    release = int(match[1]), int(match[2])
    if release < FIRST_TORCH:
        return f"PyTorch {version} is too old: tested are {_tested()}; update it"
    if release > LAST_TORCH:
        return f"PyTorch {version} is newer than those that are tested, {_tested()}: set verify to compare with eager"
    return ""


def _tested() -> str:
    """Returns the tested versions of PyTorch as text, such as "2.11 to 2.15"."""
    first, last = (".".join(map(str, version)) for version in (FIRST_TORCH, LAST_TORCH))
    return f"{first} to {last}"

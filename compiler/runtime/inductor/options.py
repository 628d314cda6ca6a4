"""Lists the settings of Inductor that a recipe may choose by `backend_flags` (`--NAME=VALUE`), and parses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from buddy.compiler.protocol.catalogue import FlagInfo
from buddy.compiler.protocol.worker_messages import InductorFlags
from buddy.compiler.runtime.inductor.program import InductorError

# Prefixes and parts of the names of settings that recipes cannot choose: those by which stages are recorded, those of
# caches, tests, processes and other targets, and private ones.
_RESERVED_PREFIXES = ("trace.", "test_configs.", "rocm.", "cuda.", "halide.", "cutlass.", "aot_inductor", "_")
_RESERVED_PARTS = (
    "TYPE_CHECKING",
    "cache",
    "debug",
    "worker",
    "compile_threads",
    "cpp.threads",
    "TESTING",
    "benchmark_harness",
)
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def settings_of(flags: Sequence[str], threads: int) -> dict[str, object]:
    """Returns the settings of a compilation with `flags`. Raises `InductorError` for an invalid flag."""
    chosen = dict(map(_parse_flag, flags))
    return {
        **chosen,
        # A hit in these caches would skip the passes whose stages are shown.
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        # Worker processes would be forked after torch has used threads.
        "compile_threads": 1,
        "cpp.threads": threads,
        "trace.provenance_tracking_level": 1,
        "benchmark_harness": False,
    }


def flag_problem(flags: Sequence[str]) -> str:
    """Returns the reason why a flag is invalid, "" if all are valid."""
    try:
        for flag in flags:
            _parse_flag(flag)
    except InductorError as error:
        return error.diagnostic.what
    return ""


def flags() -> Iterator[FlagInfo]:
    """Yields the settings that a recipe may choose: those that are true or false, or numbers."""
    for name, default in sorted(_defaults().items()):
        if not _is_reserved(name) and isinstance(default, bool | int | float):
            values = ("true", "false") if isinstance(default, bool) else ()
            yield FlagInfo(name, type(default).__name__, values, f"default {str(default).lower()}")


def describe(chosen: tuple[str, ...]) -> InductorFlags:
    """Returns the settings, and whether `chosen` are valid flags; a one-shot process calls this."""
    return InductorFlags({"torch": str(torch.__version__)}, tuple(flags()), flag_problem(chosen))


def _defaults() -> dict[str, object]:
    from torch._inductor import config

    return dict(config.get_config_copy())


def _is_reserved(name: str) -> bool:
    return name.startswith(_RESERVED_PREFIXES) or any(part in name for part in _RESERVED_PARTS)


def _parse_flag(flag: str) -> tuple[str, object]:
    """Returns the name and the value of `--NAME=VALUE`, or of `--NAME`, which is true. Raises `InductorError`."""
    name, has_value, text = flag.lstrip("-").partition("=")
    name = name.replace("-", "_")
    default = _defaults().get(name)
    if not flag.startswith("--") or not name:
        raise InductorError(f"{flag!r} is not a flag", "the recipe's backend_flags", "write --NAME=VALUE")
    if _is_reserved(name) or not isinstance(default, bool | int | float):
        what = (
            f"{flag} is not allowed"
            if _is_reserved(name)
            else f"{name} is not an Inductor setting with a boolean or numeric default"
        )
        raise InductorError(what, "the recipe's backend_flags", "see the list of flags")
    if isinstance(default, bool):
        value: Any = _BOOLEANS.get(text.lower()) if has_value else True
        expected = "true or false"
    else:
        expected = "a number" if isinstance(default, float) else "a whole number"
        try:
            value = type(default)(text)
        except ValueError:
            value = None
    if value is None:
        raise InductorError(f"{name} is {expected}, not {text!r}", "the recipe's backend_flags", "correct the value")
    return name, value

"""The private parts of TorchDynamo that this project uses. All other modules import them from here.

Functions that PyTorch documents, such as `torch._dynamo.reset`, `disable` and `config`, are called by their own names.
A private part can change in any release of PyTorch, so `PRIVATE_PARTS` says what each is for and which versions have
been tested; `make matrix` looks all of them up in every version, and runs the tests of their users.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch._dynamo import convert_frame, eval_frame, guards
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.exc import RestartAnalysis, TorchDynamoException, UserError, UserErrorType
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.utils import counters

if TYPE_CHECKING:
    from torch._dynamo.types import CacheEntry

__all__ = [
    "PRIVATE_PARTS",
    "GlobalStateSource",
    "GuardBuilder",
    "OptimizedModule",
    "PrivatePart",
    "RestartAnalysis",
    "TorchDynamoException",
    "UserError",
    "UserErrorType",
    "aot_autograd",
    "convert_frame",
    "counters",
    "disable_guard_timing",
    "guards",
    "list_cache_entries",
    "running_compile_call",
]


class PrivatePart(NamedTuple):
    """A name below `torch._dynamo`, its use, and the first and last version of PyTorch that it was tested with."""

    name: str
    use: str
    first: tuple[int, int] = (2, 11)
    last: tuple[int, int] = (2, 15)


PRIVATE_PARTS = (
    PrivatePart("backends.common.aot_autograd", "traces forward and backward graphs of ATen ops"),
    PrivatePart("eval_frame.OptimizedModule", "a module that torch.compile returned, in a script that is captured"),
    PrivatePart("exc.RestartAnalysis", "is not an error of the graph: Dynamo traces the function again"),
    PrivatePart("exc.TorchDynamoException", "is raised as it is, not turned into a graph that runs in eager"),
    PrivatePart("exc.UserError", "a module that torch.export cannot export"),
    PrivatePart("exc.UserErrorType.INVALID_INPUT", "the type of a UserError for an invalid input"),
    PrivatePart("guards.GuardBuilder.DUAL_LEVEL", "compiles again when the level of forward-mode gradients changes"),
    PrivatePart("source.GlobalStateSource", "the state that this guard checks"),
    PrivatePart("utils.counters", "the reasons of graph breaks, for the line about a model"),
    PrivatePart("convert_frame.get_and_maybe_log_recompilation_reasons", "why a function is compiled again"),
    PrivatePart("guards.CheckFunctionManager", "values that guards check, and how often"),
    PrivatePart("guards.get_guard_fail_reason", "the guard that failed"),
    PrivatePart("guards.profile_guard_manager", "takes 0.2 s for each graph, which campaigns skip"),
)


def aot_autograd(**options: Any) -> Callable[..., Any]:
    """Returns TorchDynamo's backend that traces graphs of ATen ops, with `options`.

    Imports the backend at the first use: the import takes long, and a program whose graphs are known needs no backend.
    """
    from torch._dynamo.backends import common

    return cast("Callable[..., Any]", common.aot_autograd(**options))


def running_compile_call() -> tuple[Any, list[Callable[[], None]] | None]:
    """Returns the object of the `torch.compile` call that is running, and the functions that Dynamo calls at its end.

    Returns `None` for both outside of such a call. TorchDynamo calls the functions when the call returns or raises;
    more may be appended to the list. The list is a local variable of the nested function `eval_frame.compile_wrapper`,
    and `None` with a version of PyTorch that has no such variable.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "compile_wrapper" and frame.f_code.co_filename == eval_frame.__file__:
            variables = frame.f_locals
            cleanups = variables.get("cleanups")
            return variables.get("self"), cleanups if isinstance(cleanups, list) else None
    return None, None


def list_cache_entries(entries: CacheEntry | Sequence[CacheEntry] | None) -> Sequence[CacheEntry]:
    """Returns the cache entries of a function, the newest first: a list, or in PyTorch 2.11 the first of a chain."""
    if isinstance(entries, list | tuple):
        return entries
    chain, entry = list[Any](), cast("Any", entries)
    while entry is not None:
        chain.append(entry)
        entry = entry.next
    return chain


def disable_guard_timing() -> None:
    """Disables Dynamo's timing of guards in this process, which flushes the processor's caches and takes 0.2 s."""
    guards.profile_guard_manager = lambda *_: 0.0

"""The compiler and its engine: PyTorch programs in, stages of IR, objects and reports out.

Importing this package imports nothing heavy; each module names what it needs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING

from buddy.compiler.support import hooks, renamed_modules

if TYPE_CHECKING:
    from buddy.compiler.tools.record import Recording
    from buddy.compiler.tools.tune.autotune import TunedRecipe

if __name__ != "buddy.compiler":
    raise ImportError(f"`import {__name__}` would load a second copy of buddy.compiler: write `import buddy.compiler`")

renamed_modules.install()


def _graph_lowering() -> ModuleType:
    from buddy.compiler.driver import modules

    return modules


def _autotuner() -> type[TunedRecipe]:
    from buddy.compiler.tools.tune.autotune import TunedRecipe

    return TunedRecipe


hooks.graph_lowering.provide(_graph_lowering)
hooks.autotuner.provide(_autotuner)


def record() -> AbstractContextManager[Recording]:
    """`with buddy.compiler.record() as session:` around any code: its graphs are then in the session."""
    from buddy.compiler.tools.record import record

    return record()

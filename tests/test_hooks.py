"""Entry points of upper layers, as lower layers ask for them."""

from __future__ import annotations

import pytest

from buddy.compiler.support import hooks
from buddy.compiler.support.hooks import Hook


def test_a_hook_loads_what_was_provided_when_it_is_called() -> None:
    loaded = []
    hook = Hook("a search")
    hook.provide(lambda: loaded.append("now") or sorted)
    assert not loaded
    assert hook()([2, 1]) == [1, 2]


def test_a_hook_that_nothing_provides_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match="nothing provides a search"):
        Hook("a search")()


def test_the_package_provides_every_hook() -> None:
    from buddy.compiler.graph.graph import graph_lowering
    from buddy.compiler.tools.tune.autotune import TunedRecipe

    assert callable(graph_lowering().top_level)
    assert hooks.autotuner() is TunedRecipe
    assert all(found._load is not None for found in vars(hooks).values() if isinstance(found, Hook))

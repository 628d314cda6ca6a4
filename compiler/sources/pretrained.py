"""Hugging Face models without a network: cached weights when present, else built from their config."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

SEED = 0
_MODULE = "transformers.modeling_utils"


@contextmanager
def offline_models(notes: list[str]) -> Iterator[None]:
    """While entered, `from_pretrained` of a model whose weights are not in the local cache builds it from its config.

    What was built so is said in `notes`. Nothing is downloaded unless the user has set `HF_HUB_OFFLINE` to 0.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if _MODULE in sys.modules:
        with _patched(sys.modules[_MODULE], notes):
            yield
        return
    hook = _AfterImport(_MODULE, lambda module: _replace(module, notes))
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        sys.meta_path.remove(hook)
        hook.undo()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `action(module)` once the module `name` has been imported by somebody; `undo` calls what it returned."""

    def __init__(self, name: str, action: Callable[[Any], Callable[[], None]]) -> None:
        self._name = name
        self._action = action
        self._undo: Callable[[], None] = lambda: None

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        spec = next(
            (s for s in (f.find_spec(fullname, path, target) for f in sys.meta_path if f is not self) if s), None
        )
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                self._undo = self._action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def undo(self) -> None:
        self._undo()


@contextmanager
def _patched(module: Any, notes: list[str]) -> Iterator[None]:
    undo = _replace(module, notes)
    try:
        yield
    finally:
        undo()


def _replace(module: Any, notes: list[str]) -> Callable[[], None]:
    """Put the fallback into `PreTrainedModel.from_pretrained`; returns what takes it out."""
    owner = module.PreTrainedModel
    original = owner.__dict__["from_pretrained"]

    def from_pretrained(cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            return original.__get__(None, cls)(name, *args, **kwargs)
        except OSError:
            model = from_config(cls, name, kwargs)
            built = f"{cls.__name__} was built from its config with seed {SEED}"
            notes.append(f"the weights of {name} are not in the local cache: {built}")
            return model

    owner.from_pretrained = classmethod(from_pretrained)
    return lambda: setattr(owner, "from_pretrained", original)


def from_config(cls: Any, name: Any, options: dict[str, Any]) -> Any:
    """A model of class `cls` in eval mode: the cached config of `name` or the class's own, weights from `SEED`."""
    config = options.get("config") or _config(cls, name)
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return cls(config).eval()


def _config(cls: Any, name: Any) -> Any:
    try:
        return cls.config_class.from_pretrained(name)
    except OSError:
        return cls.config_class()

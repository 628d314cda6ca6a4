"""Loads Hugging Face models without a network: with cached weights, or else with random weights from their config."""

from __future__ import annotations

import copy
import importlib
import importlib.abc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    import transformers


# The seed of weights.
SEED = 0
# The fraction of the free memory that a model built from its config may use.
MEMORY_SHARE = 0.5
# Makes a model from a config.
Builder = Callable[..., Any]
# Returns a result in place of a call of `from_pretrained`, from its class, its name and its options.
Fallback = Callable[[Any, str, dict[str, Any]], Any]


@contextmanager
def offline_models(notes: list[str]) -> Iterator[None]:
    """While active, if a model is not in the local cache, `from_pretrained` builds it from its config.

    Adds a note to `notes` for each such model. Nothing is downloaded, unless the user has turned `HF_HUB_OFFLINE` off.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    constants: Any = sys.modules.get("huggingface_hub.constants")
    if constants is not None:  # this module reads the environment only when it is imported
        constants.HF_HUB_OFFLINE = os.environ["HF_HUB_OFFLINE"].upper() in ("1", "ON", "YES", "TRUE")
    hook = _ImportPatcher({name: _make_patch(owner, fallback, notes) for name, (owner, fallback) in _PATCHES.items()})
    with hook.active():
        yield


# ---- fallbacks -------------------------------------------------------------------------------------------------------


def _build_model(cls: type[transformers.PreTrainedModel], name: str, options: dict[str, object]) -> torch.nn.Module:
    """Returns a model of class `cls` in eval mode, with weights from `SEED`."""
    return _build_seeded(cls, options.get("config") or _load_config(cls.config_class, name), options)


def _build_auto_model(cls: type[transformers.AutoModel], name: str, options: dict[str, object]) -> torch.nn.Module:
    return _build_seeded(cls.from_config, options.get("config") or _guess_config(name), options)


def _make_auto_tokenizer(_cls: type, name: str, _options: dict[str, object]) -> object:
    """Returns a tokenizer of the model's class without a vocabulary, to which every word is unknown.

    Raises `LookupError` if no class of the model can be made without one.
    """
    mapping = importlib.import_module("transformers.models.auto.tokenization_auto").TOKENIZER_MAPPING
    entry = mapping[type(_guess_config(name))]
    candidates = entry if isinstance(entry, (tuple, list)) else [entry]
    for candidate in filter(None, candidates):
        try:
            return candidate()
        except (TypeError, ValueError, OSError):  # this class needs a vocabulary
            continue
    raise LookupError("its tokenizer needs a vocabulary")


def _load_config(config_class: type[transformers.PretrainedConfig], name: str) -> transformers.PretrainedConfig:
    """Returns the cached config of `name`, else the defaults of its class."""
    try:
        return config_class.from_pretrained(name)
    except OSError:
        return config_class()


def _guess_config(name: str) -> transformers.PretrainedConfig:
    """Returns the cached config of `name`, else the defaults of the architecture in its name (`bert` in `bert-base`).

    Raises `LookupError` if nothing matches.
    """
    auto = importlib.import_module("transformers.models.auto.configuration_auto")
    try:
        return auto.AutoConfig.from_pretrained(name)
    except (OSError, ValueError):
        architectures = [key for key in auto.CONFIG_MAPPING_NAMES if key in name.lower()]
        if not architectures:
            raise LookupError(f"no known architecture is named in {name!r}") from None
        return auto.CONFIG_MAPPING[max(architectures, key=len)]()


def _build_seeded(build: Builder, config: transformers.PretrainedConfig, options: dict[str, object]) -> torch.nn.Module:
    """Returns the model from `build(config)` in eval mode, with weights drawn from `SEED`.

    As in `from_pretrained`, `options` override attributes of the config with their names; `dtype` is the weights' type.
    Raises `MemoryError` if the weights would take more than `MEMORY_SHARE` of the free memory.
    """
    config = copy.deepcopy(config)
    for name, value in options.items():
        if hasattr(config, name) and name not in ("config", "dtype", "torch_dtype"):
            setattr(config, name, value)
    with torch.device("meta"):
        n_bytes = sum(p.numel() * p.element_size() for p in build(config).parameters())
    if n_bytes > MEMORY_SHARE * _free_memory():
        raise MemoryError(f"built from its config it would take {n_bytes / 1e9:.1f} GB")
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = build(config).eval()
    dtype = options.get("dtype") or options.get("torch_dtype")
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model


def _free_memory() -> int:
    """Returns the number of bytes that programs can allocate; on Linux, this includes the cache of files."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        (available,) = [line for line in lines if line.startswith("MemAvailable:")]
        return int(available.split()[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class _NotCachedError(OSError):
    """No fallback could be built for a model that is not in the local cache."""


# For each module, the class whose `from_pretrained` gets a fallback, and the fallback. Overrides of the method in
# subclasses in the same module get the fallback too: each class of `modeling_auto` has a copy of its base's method.
_PATCHES: dict[str, tuple[str, Fallback]] = {
    "transformers.modeling_utils": ("PreTrainedModel", _build_model),
    "transformers.models.auto.modeling_auto": ("_BaseAutoModelClass", _build_auto_model),
    "transformers.models.auto.tokenization_auto": ("AutoTokenizer", _make_auto_tokenizer),
}


# ---- installation ----------------------------------------------------------------------------------------------------


def _make_patch(owner_name: str, fallback: Fallback, notes: list[str]) -> Callable[[ModuleType], Callable[[], None]]:
    """Returns a function that installs `fallback` in a module's classes, and returns how to undo it."""

    def patch(module: ModuleType) -> Callable[[], None]:
        base = getattr(module, owner_name)
        classes: set[Any] = {
            value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)
        }
        undo = ExitStack()
        for owner in classes:
            if "from_pretrained" in owner.__dict__:
                undo.callback(setattr, owner, "from_pretrained", owner.__dict__["from_pretrained"])
                owner.from_pretrained = _with_fallback(owner.__dict__["from_pretrained"], fallback, notes)
        return undo.close

    return patch


def _with_fallback(original: Any, fallback: Fallback, notes: list[str]) -> classmethod[object, ..., object]:
    """Returns the class method `original`, which calls `fallback` if the model is not found."""

    def from_pretrained(cls: type, name: str | None = None, *args: object, **options: object) -> object:
        try:
            return original.__get__(None, cls)(name, *args, **options)
        except _NotCachedError:  # the fallback in the method of a base class has failed already
            raise
        except (OSError, ValueError) as error:
            return _apply_fallback(cls, name, options, fallback, error, notes)

    return classmethod(from_pretrained)


def _apply_fallback(
    cls: type, name: str | None, options: dict[str, object], fallback: Fallback, error: Exception, notes: list[str]
) -> object:
    """Returns the result of `fallback`, with a note. Raises `_NotCachedError` with the reason if the fallback fails."""
    try:
        result = fallback(cls, str(name), options)
    except (LookupError, MemoryError) as reason:
        raise _NotCachedError(f"{name} is not in the local cache, and {reason}") from error
    is_model = isinstance(result, torch.nn.Module)
    how = f"built from its config with seed {SEED}" if is_model else "made without a vocabulary"
    notes.append(f"{name} is not in the local cache: {type(result).__name__} was {how}")
    return result


class _ImportPatcher(importlib.abc.MetaPathFinder):
    """Patches modules: loaded ones when it becomes active, others when they are imported."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], Callable[[], None]]]) -> None:
        self._patches = patches
        self._undo = ExitStack()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Patches modules in the `with` block, and restores them at its end."""
        with self._undo:
            for name in self._patches:
                if name in sys.modules:
                    self._patch(sys.modules[name])
            sys.meta_path.insert(0, self)
            self._undo.callback(sys.meta_path.remove, self)
            yield

    def _patch(self, module: ModuleType) -> None:
        self._undo.callback(self._patches[module.__name__](module))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._patches:
            return None
        other_finders = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in other_finders)), None)
        if spec is not None and spec.loader is not None:
            original = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                original(module)
                self._patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

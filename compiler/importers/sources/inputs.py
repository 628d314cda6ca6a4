"""Determines which callable of a script is its model, and which values are its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from buddy.compiler.importers.sources.program import source_error

MODEL, INPUTS = "model", "example_inputs"
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def defines_both(names: Mapping[str, Any]) -> bool:
    """Whether a script's globals define what to compile: `model` and `example_inputs`."""
    return callable(names.get(MODEL)) and names.get(INPUTS) is not None


def as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: a mapping is keywords, a tuple or list positional, all else one positional
    argument.
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def call_of(target: Any, inputs: Any, where: str) -> Call:
    """The call that `target` and `inputs` (values, or functions that make them) stand for.

    A function without parameters makes the model (or the pair of model and inputs) if there are inputs to pass. Raises
    `SourceError` if inputs are missing or do not fit.
    """
    values = inputs() if callable(inputs) and not isinstance(inputs, (torch.Tensor, Mapping)) else inputs
    if _is_builder(target, values):
        target = target()
        if isinstance(target, tuple) and len(target) == 2 and callable(target[0]):
            target, values = target
    if not callable(target):
        raise source_error(
            f"{where} is {_article(target)}, which cannot be called", where, "name a module or a function"
        )
    if values is None and not _has_no_parameters(target):
        raise source_error(
            f"{where} needs inputs, and the script neither calls it nor defines `example_inputs`",
            where,
            "define `example_inputs`: a tensor, a tuple, a list, a dict of keyword arguments, or a function of these",
        )
    args, kwargs = as_call(() if values is None else values)
    _check_fits(target, args, kwargs, where)
    return target, args, kwargs


def _is_builder(target: Any, values: Any) -> bool:
    """Whether a plain function or class without parameters makes the model rather than being it."""
    if isinstance(target, torch.nn.Module) or not callable(target):
        return False
    if inspect.isclass(target):
        return issubclass(target, torch.nn.Module)
    return _takes_nothing(target) and values is not None and as_call(values) != ((), {})


def _takes_nothing(target: Callable[..., Any]) -> bool:
    signature = _signature(target)
    return signature is not None and _binds(signature, (), {})


def _has_no_parameters(target: Callable[..., Any]) -> bool:
    signature = _signature(target)
    return signature is not None and not signature.parameters


def _signature(target: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(target.forward if isinstance(target, torch.nn.Module) else target)
    except (TypeError, ValueError):
        return None


def _binds(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _check_fits(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> None:
    signature = _signature(target)
    if signature is not None and not _binds(signature, args, kwargs):
        given = ", ".join([*(_kind(a) for a in args), *(f"{k}={_kind(v)}" for k, v in kwargs.items())])
        raise source_error(
            f"the example inputs ({given}) do not fit {where}{signature}", where, "give one value per parameter"
        )


def _kind(value: Any) -> str:
    return f"tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _article(value: Any) -> str:
    return f"a {type(value).__name__}"

"""Finds the model and the inputs of a script, makes random tensors, and replaces inputs by tensors of other shapes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.protocol.programs import InputShape, parse_input_shape
from buddy.compiler.protocol.source_locations import SourceError, source_error
from buddy.compiler.runtime.captured import random_like
from buddy.compiler.runtime.torch_values import to_torch_dtype

# The globals of a script that define what to compile.
MODEL, INPUTS = "model", "example_inputs"
# A function, its positional and its keyword arguments.
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def defines_both(names: Mapping[str, object]) -> bool:
    """Returns whether a script's globals define what to compile: `model` and `example_inputs`."""
    return callable(names.get(MODEL)) and names.get(INPUTS) is not None


def suspending_kind(target: object) -> str | None:
    """Returns what kind of generator or coroutine a function, or a module's forward, is; `None` if it is neither.

    TorchDynamo traces the body of a coroutine as if the call ran it, and cannot resume it after a graph break.
    """
    function = target.forward if isinstance(target, torch.nn.Module) else target
    if inspect.iscoroutinefunction(function):
        return "a coroutine (async def)"
    return "a generator" if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function) else None


def split_arguments(
    inputs: object,
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Splits inputs into positional and keyword arguments.

    A mapping has keyword arguments, a tuple or list positional ones; any other value is one positional argument.
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def make_call(
    target: torch.nn.Module | Callable[..., object],
    inputs: object,
    where: str,
) -> Call:
    """Returns the call of the model `target` on `inputs`. `inputs` may be a function that returns them.

    `target` may also be a class of modules, or a function that needs no arguments although there are inputs: its result
    is then the model, or a pair of model and inputs. Raises `SourceError` if inputs are missing or do not fit, and for
    generators and coroutines.
    """
    values = inputs() if callable(inputs) and not isinstance(inputs, (torch.Tensor, Mapping)) else inputs
    if _is_builder(target, values):
        target = target()
        if isinstance(target, tuple) and len(target) == 2 and callable(target[0]):
            target, values = target
    if not callable(target):
        raise source_error(
            f"{where} is {_describe_kind(target)}, which cannot be called", where, "name a module or a function"
        )
    if (kind := suspending_kind(target)) is not None:
        todo = "make it a plain function that returns its results, or compile the functions that it calls"
        raise source_error(f"{where} is {kind}, which computes nothing when it is called", where, todo)
    if values is None and not _has_no_parameters(target):
        raise source_error(
            f"{where} needs inputs, and the script neither calls it nor defines `example_inputs`",
            where,
            "define `example_inputs`: a tensor, a tuple, a list, a dict of keyword arguments, or a function of these",
        )
    args, kwargs = split_arguments(() if values is None else values)
    _check_fits(target, args, kwargs, where)
    return target, args, kwargs


def _is_builder(
    target: torch.nn.Module | Callable[..., object],
    values: object,
) -> bool:
    """Returns whether `target` has to be called to get the model.

    This is so for a class of modules, and for a function that needs no arguments although there are inputs.
    """
    if isinstance(target, torch.nn.Module) or not callable(target):
        return False
    if inspect.isclass(target):
        return issubclass(target, torch.nn.Module)
    return _needs_no_arguments(target) and values is not None and split_arguments(values) != ((), {})


def _needs_no_arguments(target: Callable[..., object]) -> bool:
    signature = _signature(target)
    return signature is not None and _can_bind(signature, (), {})


def _has_no_parameters(target: Callable[..., object]) -> bool:
    signature = _signature(target)
    return signature is not None and not signature.parameters


def _signature(target: Callable[..., object]) -> inspect.Signature | None:
    """Returns the signature of a function, or of a module's forward; `None` if it has none."""
    try:
        return inspect.signature(target.forward if isinstance(target, torch.nn.Module) else target)
    except (TypeError, ValueError):
        return None


def _can_bind(signature: inspect.Signature, args: tuple[torch.Tensor, ...], kwargs: dict[str, object]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _check_fits(
    target: Callable[..., object], args: tuple[torch.Tensor, ...], kwargs: dict[str, object], where: str
) -> None:
    """Raises `SourceError` if `target` cannot be called with these arguments."""
    signature = _signature(target)
    if signature is not None and not _can_bind(signature, args, kwargs):
        arguments = ", ".join(
            [*(_describe_type(a) for a in args), *(f"{k}={_describe_type(v)}" for k, v in kwargs.items())]
        )
        raise source_error(
            f"the example inputs ({arguments}) do not fit {where}{signature}", where, "give one value per parameter"
        )


def _describe_type(value: object) -> str:
    return f"tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _describe_kind(value: object) -> str:
    return f"a {type(value).__name__}"


# ---- random tensors --------------------------------------------------------------------------------------------------

SEED = 0
# Random integers are less than this, because a program may use them as positions in a tensor.
_INTEGER_BOUND = 4


def new_generator() -> torch.Generator:
    """Returns a generator of random inputs, seeded with `SEED`."""
    return torch.Generator().manual_seed(SEED)


def random_tensor(shape: tuple[int, ...], dtype: TensorDType, generator: torch.Generator) -> torch.Tensor:
    """Returns a dense tensor of normally distributed floats, integers in [0, 4), or booleans."""
    torch_dtype = to_torch_dtype(dtype)
    if torch_dtype.is_floating_point or torch_dtype.is_complex:
        drawn_dtype = torch_dtype if torch_dtype.is_complex or torch_dtype is torch.float64 else torch.float32
        return torch.randn(shape, generator=generator, dtype=drawn_dtype).to(torch_dtype)
    bound = 2 if torch_dtype is torch.bool else _INTEGER_BOUND
    return torch.randint(bound, shape, generator=generator).to(torch_dtype)


def dtype_of(user_shape: InputShape) -> TensorDType:
    """Returns the dtype that the user sets with a shape, f32 by default. Raises `SourceError` for an unknown one."""
    dtypes = {dtype.value: dtype for dtype in TensorDType}
    if user_shape.dtype and user_shape.dtype not in dtypes:
        names = ", ".join(name for name in dtypes if "<" not in name)
        raise source_error(f"unknown element type {user_shape.dtype}", "the shapes to open with", f"there are {names}")
    return dtypes[user_shape.dtype or "f32"]


# ---- shapes of the user ----------------------------------------------------------------------------------------------

_SHAPE_HINT = "give NAME=4x128, or NUMBER=4x128, of a tensor that the model is called with"


def apply_shapes(
    function: Callable[..., object], args: Sequence[object], kwargs: dict[str, object], shapes: Sequence[str]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Returns the arguments, with those in `shapes` replaced by random tensors of the given shapes.

    Each of `shapes` starts with a parameter's name, or the index of a positional argument. If the dtype is unchanged,
    the new tensor has the distribution of the replaced one. Raises `SourceError`.
    """
    new_args, new_kwargs = list(args), dict(kwargs)
    names = _parameter_names(function)
    generator = new_generator()
    for text in shapes:
        try:
            user_shape = parse_input_shape(text)
        except ValueError as error:
            raise source_error(str(error), "the shapes to capture with", _SHAPE_HINT) from error
        name, dtype = user_shape.name, dtype_of(user_shape)
        position: Any = _position_of(name, names)
        holder, key = (new_kwargs, name) if name in new_kwargs else (new_args, position)
        value = holder[key] if name in new_kwargs or 0 <= position < len(new_args) else None  # type: ignore[index]
        if not isinstance(value, torch.Tensor):
            tensors = ", ".join(_describe_tensors(names, args, kwargs)) or "none"
            raise source_error(f"the model has no tensor argument {name}; with {tensors}", "the shapes", _SHAPE_HINT)
        if not user_shape.dtype or to_torch_dtype(dtype) == value.dtype:
            tensor = random_like(value, user_shape.shape, generator)
        else:
            tensor = random_tensor(user_shape.shape, dtype, generator)
        holder[key] = tensor  # type: ignore[index]
    return tuple(new_args), new_kwargs


def _position_of(name: str, parameter_names: Sequence[str]) -> int:
    """Returns the position of an argument given by its number or its name; -1 for an unknown name."""
    if name.isdigit():
        return int(name)
    return parameter_names.index(name) if name in parameter_names else -1


def shape_error(shapes: Sequence[str], error: BaseException) -> SourceError:
    """Returns the error to raise if the model raises `error` on tensors of the shapes that the user set."""
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    what = f"the model does not accept {' '.join(shapes)}: {type(error).__name__}: {line}"
    return source_error(what, "the shapes to capture with", "give other shapes, or no --shape")


def _parameter_names(function: Callable[..., object]) -> list[str]:
    signature = _signature(function)
    return list(signature.parameters) if signature is not None else []


def _describe_tensors(names: Sequence[str], args: Sequence[object], kwargs: dict[str, object]) -> list[str]:
    """Returns the tensors of a call in the form `x=4x128`; `names` are those of the parameters."""
    pairs = [(names[k] if k < len(names) else str(k), value) for k, value in enumerate(args)]
    return [
        f"{name}={'x'.join(map(str, value.shape))}"
        for name, value in (*pairs, *kwargs.items())
        if isinstance(value, torch.Tensor)
    ]

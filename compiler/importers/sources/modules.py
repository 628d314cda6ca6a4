"""Captures modules from files, and reads files of `torch.save`, which may hold only weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import Parameter

import msgspec
import torch

from buddy.compiler.frontend.capture import callable_name
from buddy.compiler.importers.sources.inputs import dtype_of, new_generator, random_tensor
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.pickles import read_weights
from buddy.compiler.importers.sources.program import CapturedProgram
from buddy.compiler.importers.sources.tape import Tape
from buddy.compiler.protocol.programs import InputShape, check_input_names, find_input_shape, parse_input_shape
from buddy.compiler.protocol.source_locations import SourceError, source_error
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.support.dynamo_internals import TorchDynamoException

_SHAPE_HINT = "give --shape NAME=1x3x224x224 (or NAME=1x128xi64, with an element type) for each tensor"


def capture_module(opening: Opening, module: torch.nn.Module) -> CapturedProgram:
    """Captures a module from a file, on random inputs of the shapes that the user sets. Raises `SourceError`."""
    parameters = _forward_parameters(module)
    optional = {parameter.name for parameter in parameters if parameter.default is not Parameter.empty}
    tensors = make_inputs(opening, [parameter.name for parameter in parameters], optional)
    args, kwargs = _as_call(parameters, tensors)
    return capture_call(opening, module, args, kwargs)


def capture_call(
    opening: Opening, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> CapturedProgram:
    """Captures the graphs of a call, and names them after the file. Raises `SourceError`."""
    from buddy.compiler.importers.sources import with_unique_names

    tape = Tape(skip_calls=lambda: True, frontend=opening.frontend)
    try:
        with tape.running():
            opening.report("capturing")
            tape.capture(function, tuple(args), dict(kwargs))
    except TorchDynamoException as error:
        raise source_error(f"TorchDynamo cannot capture {opening.title}: {error}", opening.title) from error
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        what = f"{opening.title} does not accept these inputs: {type(error).__name__}: {first_line[:300]}"
        raise source_error(what, "the inputs to open with", _SHAPE_HINT) from error
    if not tape.requested:
        where = tape.notes[-1] if tape.notes else opening.title
        raise source_error(f"{opening.title} was read, but no graph of it was captured", where)
    graphs = with_unique_names([_rename(graph, callable_name(function), opening.stem) for graph in tape.requested])
    return CapturedProgram(graphs, [*dict.fromkeys(tape.notes), *_break_notes(opening, graphs)])


def _break_notes(opening: Opening, graphs: Sequence[CapturedGraph]) -> list[str]:
    """Returns notes on graph breaks, each with its reason."""
    reasons = dict.fromkeys(graph.info.break_reason for graph in graphs if graph.info.break_reason)
    count = "1 graph" if len(graphs) == 1 else f"{len(graphs)} graphs"
    prefix = f"{opening.title} is captured as {count}; the code between and after them runs in PyTorch"
    return [f"{prefix}: {reason}" for reason in reasons]


def _rename(graph: CapturedGraph, class_name: str, name: str) -> CapturedGraph:
    """Replaces the class name of the module by `name` in the name of a graph: in a file, the class says little."""
    graph.info = msgspec.structs.replace(graph.info, name=graph.info.name.replace(class_name, name, 1))
    graph.graph.name = graph.info.name
    return graph


def make_inputs(opening: Opening, names: Sequence[str], optional: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Returns random tensors for the parameters `names`, of the shapes that the user sets.

    A parameter in `optional` without a shape gets no tensor. Raises `SourceError` if another parameter has no shape.
    """
    all_shapes = parse_checked_shapes(opening, names)
    generator = new_generator()
    user_shapes = {name: find_input_shape(all_shapes, name, index) for index, name in enumerate(names)}
    missing = [name for name, user_shape in user_shapes.items() if user_shape is None and name not in optional]
    if missing:
        what = f"{opening.title} does not describe its inputs: {', '.join(missing)}"
        options = " ".join(f"--shape {name}=…" for name in missing)
        raise source_error(what, f"forward({', '.join(names)})", f"give {options}, as x=1x3x224x224 or ids=1x128xi64")
    return {
        name: random_tensor(user_shape.shape, dtype_of(user_shape), generator)
        for name, user_shape in user_shapes.items()
        if user_shape is not None
    }


def _as_call(
    parameters: Sequence[Parameter], tensors: Mapping[str, torch.Tensor]
) -> tuple[list[object], dict[str, object]]:
    """Returns the arguments of a call with `tensors`, by parameter. Other parameters get no argument or the default."""
    args: list[object] = []
    kwargs: dict[str, object] = {}
    # Positional-only parameters are passed up to the last one with a tensor.
    last_positional = max(
        (k for k, p in enumerate(parameters) if p.name in tensors and p.kind is Parameter.POSITIONAL_ONLY), default=-1
    )
    for index, parameter in enumerate(parameters):
        name = parameter.name
        if parameter.kind is Parameter.POSITIONAL_ONLY and index <= last_positional:
            args.append(tensors.get(name, parameter.default))
        elif name in tensors and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and len(args) == index:
            args.append(tensors[name])
        elif name in tensors:
            kwargs[name] = tensors[name]
    return args, kwargs


def parse_checked_shapes(opening: Opening, names: Sequence[str]) -> list[InputShape]:
    """Returns the shapes that the user sets. Raises `SourceError`, also if one is not for a parameter in `names`."""
    user_shapes = parse_shapes(opening)
    try:
        check_input_names(user_shapes, names)
    except ValueError as error:
        raise source_error(str(error), "the shapes to open with", _SHAPE_HINT) from error
    return user_shapes


def parse_shapes(opening: Opening) -> list[InputShape]:
    """Returns the shapes that the user sets, without checking the names. Raises `SourceError`."""
    try:
        return [parse_input_shape(text) for text in opening.shapes]
    except ValueError as error:
        raise source_error(str(error), "the shapes to open with", _SHAPE_HINT) from error


def _forward_parameters(module: torch.nn.Module) -> list[Parameter]:
    """Returns the parameters of `forward`, without those that collect any number of arguments."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in parameters if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]


# ---- pickles ---------------------------------------------------------------------------------------------------------

# The maximum number of tensors that an error names.
_MAX_LISTED_TENSORS = 4


def load_pickle(opening: Opening) -> CapturedProgram:
    """Captures a pickled module that the user trusts. Raises `SourceError`, also for a file with weights only."""
    content = read_weights(opening.path, opening.title, opening.trusts)
    if isinstance(content, torch.nn.Module):
        return capture_module(opening, content.eval())
    raise _no_program_error(opening.title, content)


def _no_program_error(title: str, content: object) -> SourceError:
    """Returns the error for a file whose content is no module: it describes the tensors in it."""
    tensors = list(_named_tensors("", content))
    if not tensors:
        what = f"{title} holds a {type(content).__name__}, which is neither weights nor a program"
        return source_error(what, title, "open the script that uses it")
    count = sum(tensor.numel() for _, tensor in tensors)
    listed = ", ".join(f"{name or 'a tensor'} {_describe(tensor)}" for name, tensor in tensors[:_MAX_LISTED_TENSORS])
    remainder = f" and {len(tensors) - _MAX_LISTED_TENSORS} more" if len(tensors) > _MAX_LISTED_TENSORS else ""
    what = f"{title} contains weights but no program: {len(tensors)} tensors, {count:,} numbers ({listed}{remainder})"
    return source_error(what, title, "open the script that defines the model and loads them")


def _named_tensors(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in nested dicts and lists, with their paths."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_tensors(f"{name}.{key}".lstrip("."), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _named_tensors(f"{name}.{index}".lstrip("."), item)


def _describe(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"

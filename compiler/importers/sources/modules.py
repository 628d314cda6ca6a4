"""Captures modules from files, and reads files of `torch.save`, which may hold weights only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch._dynamo.exc import TorchDynamoException

from buddy.compiler.frontend.capture import callable_name
from buddy.compiler.importers.sources.inputs import dtype_of, new_generator, random_tensor
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.pickles import read_weights
from buddy.compiler.importers.sources.program import CapturedProgram, SourceError, source_error
from buddy.compiler.importers.sources.tape import Tape
from buddy.compiler.protocol.programs import ShapeWord, check_names, shape_for, shape_word
from buddy.compiler.runtime.captured import CapturedGraph

_HINT = "give NAME=1x3x224x224, or NAME=1x128xi64 with an element type, for each tensor: --shape"


def capture_module(opening: Opening, module: torch.nn.Module) -> CapturedProgram:
    """The program of a module from a file, on random inputs of the given shapes. Raises `SourceError`."""
    names = [name for name in _parameters(module) if name not in ("args", "kwargs")]
    args = make_inputs(opening, names)
    return capture_call(opening, module, args, {})


def capture_call(
    opening: Opening, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> CapturedProgram:
    """The graphs of a call, named after the file. Raises `SourceError`."""
    from buddy.compiler.importers.sources import with_own_names

    tape = Tape(skip_calls=lambda: True, frontend=opening.frontend)
    try:
        with tape.running():
            opening.tell("capturing")
            tape.capture(function, tuple(args), dict(kwargs))
    except TorchDynamoException as error:
        raise source_error(f"TorchDynamo cannot capture {opening.title}: {error}", opening.title) from error
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        what = f"{opening.title} does not accept these inputs: {type(error).__name__}: {first[:300]}"
        raise source_error(what, "the inputs to open with", _HINT) from error
    if not tape.asked:
        notes = tape.notes[-1] if tape.notes else opening.title
        raise source_error(f"{opening.title} was read, but no graph of it was captured", notes)
    named = with_own_names([_rename(graph, callable_name(function), opening.stem) for graph in tape.asked])
    return CapturedProgram(named, [*dict.fromkeys(tape.notes), *_break_notes(opening, named)])


def _break_notes(opening: Opening, graphs: Sequence[CapturedGraph]) -> list[str]:
    """The notes on graph breaks: no graph contains a branch between two graphs."""
    reasons = dict.fromkeys(graph.info.broke for graph in graphs if graph.info.broke)
    count = "1 graph" if len(graphs) == 1 else f"{len(graphs)} graphs"
    said = f"{opening.title} is captured as {count}; the code between and after them runs in PyTorch"
    return [f"{said}: {reason}" for reason in reasons]


def _rename(graph: CapturedGraph, before: str, name: str) -> CapturedGraph:
    """Names a graph after the file, because the class of its module is meaningless."""
    graph.info = msgspec.structs.replace(graph.info, name=graph.info.name.replace(before, name, 1))
    graph.graph.name = graph.info.name
    return graph


def make_inputs(opening: Opening, names: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Random tensors for the parameters `names`, of the shapes that the user gives. Raises `SourceError`."""
    words = shapes_of(opening, names)
    generator = new_generator()
    found = [shape_for(words, name, place) for place, name in enumerate(names)]
    missing = [name for name, word in zip(names, found, strict=True) if word is None]
    if missing:
        what = f"{opening.title} does not describe its inputs: {', '.join(missing)}"
        options = " ".join(f"--shape {name}=…" for name in missing)
        raise source_error(what, f"forward({', '.join(names)})", f"give {options}, as x=1x3x224x224 or ids=1x128xi64")
    return tuple(random_tensor(word.shape, dtype_of(word), generator) for word in found if word is not None)


def shapes_of(opening: Opening, names: Sequence[str]) -> list[ShapeWord]:
    """The shapes that the user gives for the parameters `names`. Raises `SourceError`."""
    words = shape_words(opening)
    try:
        check_names(words, names)
    except ValueError as error:
        raise source_error(str(error), "the shapes to open with", _HINT) from error
    return words


def shape_words(opening: Opening) -> list[ShapeWord]:
    """The shapes that the user gives, for any parameters. Raises `SourceError`."""
    try:
        return [shape_word(text) for text in opening.shapes]
    except ValueError as error:
        raise source_error(str(error), "the shapes to open with", _HINT) from error


def _parameters(module: torch.nn.Module) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


_SHOWN = 4


def load_weights(opening: Opening) -> CapturedProgram:
    """The program of a pickled module that the user trusts. Raises `SourceError`, also for weights alone."""
    found = read_weights(opening.path, opening.title, opening.trusts)
    if isinstance(found, torch.nn.Module):
        return capture_module(opening, found.eval())
    raise _only_weights(opening.title, found)


def _only_weights(title: str, found: Any) -> SourceError:
    tensors = list(_tensors("", found))
    if not tensors:
        what = f"{title} holds a {type(found).__name__}, which is neither weights nor a program"
        return source_error(what, title, "open the script that uses it")
    count = sum(tensor.numel() for _, tensor in tensors)
    shown = ", ".join(f"{name or 'a tensor'} {_describe(tensor)}" for name, tensor in tensors[:_SHOWN])
    more = f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
    what = f"{title} contains weights but no program: {len(tensors)} tensors, {count:,} numbers ({shown}{more})"
    return source_error(what, title, "open the script that defines the model and loads them")


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dicts and lists, with their paths."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}".lstrip("."), item)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _tensors(f"{name}.{place}".lstrip("."), item)


def _describe(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"

"""Names FX nodes by their module paths and Python lines, and converts the schemas of torch's ops to data.

Names by module paths are stable: they survive a renumbering of the nodes.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from buddy.compiler.graph.node import Parameter, Schema
from buddy.compiler.graph.serialization import to_plain
from buddy.compiler.runtime.torch_values import to_plain_argument

_OWN_FOLDER = Path(__file__).parent.parent
_TORCH_FOLDER = Path(torch.__file__).parent
# With the separator, because the path of torchvision begins with that of torch. The path of this package may contain a
# symbolic link, so both spellings are listed.
_LIBRARY_FOLDERS = tuple(f"{folder}{os.sep}" for folder in (_TORCH_FOLDER, _OWN_FOLDER, _OWN_FOLDER.resolve()))
# A frame in the text of a stack trace.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# The root of a path in Dynamo's spelling, such as `L['self']` (L for locals, G for globals), and a part after the root.
_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")
_PATH_PART = re.compile(r"""\['([^']*)'\]|\["([^"]*)"\]|\[(\d+)\]|\.(\w+)""")
# Roots of Dynamo's paths that names omit: the module itself, and the variables of wrappers around the user's function.
_ROOTS = {"self", "fn", "kwargs"}
# The attributes of `nn.Module` that hold submodules and tensors.
_CONTAINERS = {"_modules", "_parameters", "_buffers"}


class StableNames:
    """Generates `path/target.index`, where the index counts equal targets within one module path."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._taken: set[str] = set()

    def for_op(self, module: str, target: str) -> str:
        """Returns a name such as `encoder.layer.3.attention.self.query/addmm.0`."""
        key = f"{module}/{target}" if module else target
        index = self._counts[key]
        self._counts[key] += 1
        return f"{key}.{index}"

    def for_placeholder(self, base: str) -> str:
        """Returns `base`, with a number appended if the name is taken."""
        name, index = base, 1
        while name in self._taken:
            name, index = f"{base}.{index}", index + 1
        self._taken.add(name)
        return name


def module_path(node: torch.fx.Node) -> str:
    """Returns the path of the innermost `nn.Module` that created `node`; "" for the root and for plain functions."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return _to_dotted(_ROOT.sub("", path))


def node_title(node: torch.fx.Node) -> str:
    """Returns the name of an FX node in a message: the module path, then the node's own name."""
    module = module_path(node)
    return f"{module}/{node.name}" if module else str(node.name)


def _to_dotted(path: str) -> str:
    """Converts `layer['0'].dense` to `layer.0.dense`."""
    return _PATH_PART.sub(lambda match: f".{match[match.lastindex or 0]}", path).lstrip(".")


def python_line(node: torch.fx.Node) -> str:
    """Returns `file:line` of the innermost frame of `node` outside of torch and of this package; "" without one."""
    frames = python_frames(node)
    return frames[-1] if frames else ""


def python_frames(node: torch.fx.Node) -> list[str]:
    """Returns `file:line` of each frame of `node` outside of torch and of this package, the outermost call first."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return [f"{file}:{line}" for file, line in frames if not is_library(file)]


def is_library(file: str) -> bool:
    """True if a Python file belongs to torch or to this package, rather than to the user or the model."""
    return file.startswith(_LIBRARY_FOLDERS)


def source_name(spelling: str) -> str:
    """Converts Dynamo's `L['self']._modules['encoder']._parameters['weight']` to `encoder.weight`."""
    parts = [match[match.lastindex or 0] for match in _PATH_PART.finditer(spelling)]
    if len(parts) > 1 and parts[0] in _ROOTS:
        parts = parts[1:]
    return ".".join(part for part in parts if part and part not in _CONTAINERS) or spelling


@cache
def schema_of(target: Callable[..., object] | str) -> Schema | None:
    """Returns the schema of an FX target that is a torch op.

    Returns None for other targets, and if a default value cannot be converted to a plain value.
    """
    if not isinstance(target, torch._ops.OpOverload):
        return None
    schema = target._schema
    try:
        parameters = tuple(
            Parameter(argument.name, str(argument.type), _default(argument)) for argument in schema.arguments
        )
    except TypeError:
        return None
    return Schema(parameters, tuple(str(result.type) for result in schema.returns))


def _default(argument: torch.Argument) -> object:
    """Returns the default value of an argument as a plain value. Raises `TypeError` if it has no plain form."""
    value = argument.default_value
    if isinstance(value, list):
        return [to_plain(to_plain_argument(item)) for item in value]
    return to_plain(to_plain_argument(value))

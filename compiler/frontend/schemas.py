"""The schemas of torch's ops as plain data."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from buddy.compiler.graph.schema import Parameter, Schema
from buddy.compiler.graph.serialize import plain
from buddy.compiler.runtime.torch_values import plain_argument


@cache
def schema_of(target: Any) -> Schema | None:
    """The schema of an FX target that is a torch op; None for anything else and for defaults without a plain form."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    found = target._schema
    try:
        parameters = tuple(Parameter(a.name, str(a.type), _default(a)) for a in found.arguments)
    except TypeError:
        return None
    return Schema(parameters, tuple(str(result.type) for result in found.returns))


def _default(argument: Any) -> Any:
    value = argument.default_value
    return [plain(plain_argument(item)) for item in value] if isinstance(value, list) else plain(plain_argument(value))

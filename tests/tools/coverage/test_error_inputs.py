"""PyTorch's own database of calls that eager refuses: compiled code refuses them, with an error of the same type."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

import buddy.compiler.frontend  # noqa: F401  (registers the back end)
from buddy.compiler.tools.coverage.samples import op_infos
from tests.support.tiers import sampled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]

PARTS = 16
# TorchDynamo or AOTAutograd compute these: they resize, or convert to, what a caller passes as `out`.
BY_PYTORCH = {("aminmax", 3), ("cat", 7), ("complex", 2), ("multinomial", 2), ("take", 2)}
# For these TorchDynamo raises an IndexError while it traces, where eager raises a RuntimeError.
OF_ANOTHER_TYPE = {("cat", 12), ("narrow_copy", 1)}


def refused(part: int) -> Iterator[tuple[str, int, Any, Any]]:
    """The calls of part `part` that eager refuses: name, number, call and error."""
    names = [name for name, entry in sorted(op_infos().items()) if entry.error_inputs_func is not None]
    for name in names[part::PARTS]:
        entry = op_infos()[name]
        for number, given in enumerate(entry.error_inputs("cpu")):
            sample = given.sample_input

            def call(entry: Any = entry, sample: Any = sample) -> Any:
                return entry.op(sample.input, *sample.args, **sample.kwargs)

            try:
                call()
            except Exception as error:
                yield name, number, call, error


@pytest.mark.parametrize("part", sampled(list(range(PARTS)), [3], "a sixteenth of these always runs"))
@pytest.mark.timeout(900)
def test_what_eager_refuses_is_refused(part: int) -> None:
    others = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, number, call, error in refused(part):
            torch._dynamo.reset()
            try:
                torch.compile(call, backend="buddy")()
            except Exception as found:
                found = getattr(found, "inner_exception", found)
                # What an op says of shapes and words it says while TorchDynamo traces, which wraps it.
                known = (name, number) in OF_ANOTHER_TYPE
                if not known and not isinstance(found, (type(error), TorchDynamoException)):
                    others.append(f"{name}[{number}]: {found!r:.200} instead of {error!r:.200}")
            else:
                if (name, number) not in BY_PYTORCH:
                    others.append(f"{name}[{number}] is computed; eager raises {error!r}")
    assert not others, "\n".join(others)

"""Assertions about the form of a tensor, which programs of `torch.export` hold, are true of what is compiled."""

from __future__ import annotations

import pytest
import torch

import buddy.compiler.frontend  # noqa: F401  (registers the back end)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Widened(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float64).sin() + 1


def test_a_module_of_an_exported_program_is_compiled() -> None:
    x = torch.linspace(-2, 2, 7)
    exported = torch.export.export(Widened(), (x,)).module()
    assert "_assert_tensor_metadata" in exported.code
    compiled = torch.compile(exported, backend="buddy", fullgraph=True, options={"fallback": "error"})
    torch.testing.assert_close(compiled(x), Widened()(x))


def test_a_form_that_was_not_exported_is_refused_as_in_eager() -> None:
    exported = torch.export.export(Widened(), (torch.ones(7),)).module()
    compiled = torch.compile(exported, backend="buddy")
    compiled(torch.ones(7))
    for run in (exported, compiled):
        with pytest.raises(Exception, match=r"dtype|type"):
            run(torch.ones(7, dtype=torch.float16))

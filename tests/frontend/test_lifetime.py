"""What a compiled call returned dies with its last name: nothing holds it until Python looks for garbage."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def in_eager_between(x: torch.Tensor) -> torch.Tensor:
    return torch.histogram(x.sigmoid(), 4)[0] + x.sum()


PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "one result": lambda x: x.relu(),
    "results and their views": lambda x: (x.relu(), x.relu()[1:], x.t(), x),
    "other strides": lambda x: (x + 1).t().clone(memory_format=torch.preserve_format),
    "counted sizes": lambda x: x[x > 0],
    "an op in eager": in_eager_between,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_die_with_their_last_name(name: str, no_collector: None) -> None:
    x = torch.randn(8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(PROGRAMS[name], backend="buddy")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        compiled(x)
        gc.collect()
        results = compiled(x)
        found = [weakref.ref(r) for r in (results if isinstance(results, tuple) else (results,)) if r is not x]
        del results
        assert all(reference() is None for reference in found)


def test_gradients_and_what_is_saved_for_them_die_too(no_collector: None) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)), torch.randn(4, 8)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="buddy")
    compiled(x).sum().backward()
    model.zero_grad()
    gc.collect()
    result = compiled(x)
    result.sum().backward()
    found = [weakref.ref(result), *(weakref.ref(p.grad) for p in model.parameters() if p.grad is not None)]
    assert len(found) == 5
    del result
    model.zero_grad()
    assert all(reference() is None for reference in found)

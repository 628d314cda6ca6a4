"""Loads the scripts of subjects, flattens their models for exporters, and converts them to other precisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from buddy.compiler.importers.sources.inputs import INPUTS, MODEL, make_call
from buddy.compiler.importers.sources.pretrained import offline_models
from buddy.compiler.importers.sources.script import register_script, run_script, script_environment
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.source_locations import locate_source
from buddy.compiler.tools.bench.plan import EAGER, BenchPrecision, Task

# Computes a subject once.
SubjectCall = Callable[[], Any]
# A model's positional and keyword arguments.
Inputs = tuple[tuple[Any, ...], dict[str, Any]]
# The names of a training script's loss and optimizer, and the learning rate of SGD if the script has no optimizer.
_LOSS, _OPTIMIZER = "loss", "optimizer"
_LEARNING_RATE = 1e-4


class SideError(BuddyError):
    """A side cannot run a subject; the text is the reason."""


@dataclass(frozen=True)
class LoadedModel:
    """The subject's model with its inputs, in eager; several inputs if the task is "dynamic".

    A call returns the results of all inputs. For the task "training", it is a step: forward, backward, `optimizer`.
    """

    model: Callable[..., Any]
    inputs: tuple[Inputs, ...]
    task: Task = "inference"
    loss: Callable[..., torch.Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None

    def __call__(self) -> Any:
        results = self.results()
        if self.optimizer is not None:
            self.optimizer.step()
        return results

    def results(self) -> Any:
        """Returns what is compared with eager: the results, or the loss and the gradients of all parameters."""
        if self.optimizer is None:
            return [self.model(*args, **kwargs) for args, kwargs in self.inputs]
        ((args, kwargs),) = self.inputs
        self.optimizer.zero_grad()
        output = self.model(*args, **kwargs)
        loss = output if self.loss is None else self.loss(output)
        loss.backward()
        gradients = (parameter.grad for parameter in self._trained_parameters())
        return [loss.detach(), *(gradient for gradient in gradients if gradient is not None)]

    def result_names(self) -> list[str]:
        """Returns the names of the results of a training step; `results` must have been called before."""
        assert isinstance(self.model, torch.nn.Module)
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        trained = [parameter for parameter in self._trained_parameters() if parameter.grad is not None]
        return ["the loss", *(f"the gradient of {names.get(parameter, 'a parameter')}" for parameter in trained)]

    def trained_floats(self) -> list[torch.Tensor]:
        """Returns the trained parameters and the inputs that are floats."""
        leaves = [*self._trained_parameters(), *pytree.tree_leaves(self.inputs)]
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]

    def _trained_parameters(self) -> list[torch.Tensor]:
        assert self.optimizer is not None
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def parameter_bytes(self) -> int:
        """The size of all parameters in bytes, 0 for a function that is no module."""
        if not isinstance(self.model, torch.nn.Module):
            return 0
        return sum(p.numel() * p.element_size() for p in self.model.parameters())


def load_subject(source: str, arguments: tuple[str, ...], task: Task = "inference") -> LoadedModel:
    """Runs the script and returns its `model` and `example_inputs`. Raises `SourceError` and `SideError`."""
    location, notes = locate_source(source), list[str]()
    assert location.path is not None
    with script_environment(location.path, arguments), offline_models(notes):
        module = register_script(location.path, "subject")
        run_script(location.path, module)
    variables = vars(module)
    model, example_inputs = variables.get(MODEL), variables.get(INPUTS)
    if task == "dynamic":
        if not isinstance(example_inputs, list) or not example_inputs:
            raise SideError(f"{source}: `{INPUTS}` of a subject with dynamic shapes is a list of inputs")
        calls = [make_call(model, inputs, f"{source}:{MODEL}") for inputs in example_inputs]
        return LoadedModel(calls[0][0], tuple(call[1:] for call in calls), task)
    model_call, args, kwargs = make_call(model, example_inputs, f"{source}:{MODEL}")
    loaded = LoadedModel(model_call, ((args, kwargs),), task)
    if task == "inference":
        return loaded
    if not isinstance(model_call, torch.nn.Module):
        raise SideError(f"{source}: the model of a training step is a torch.nn.Module")
    optimizer = variables.get(_OPTIMIZER) or torch.optim.SGD(model_call.parameters(), _LEARNING_RATE)
    return replace(loaded, loss=variables.get(_LOSS), optimizer=optimizer)


def result_tensors(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of a nested result."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class FlatModel(torch.nn.Module):
    """A subject's model with flat tensors as inputs and results, as exporters and traces need it.

    `inputs` are the tensors of each input, in order.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.inner = loaded.model
        flattened = [pytree.tree_flatten(inputs) for inputs in loaded.inputs]
        self._leaves, self._spec = flattened[0]
        self.inputs = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves, _ in flattened]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        remaining = iter(tensors)
        values = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(values, self._spec)
        return tuple(result_tensors(self.inner(*args, **kwargs)))

    def export(self) -> Any:
        """Returns the program that PyTorch exports; sizes that differ between the inputs are dynamic."""
        first, *others = self.inputs
        dynamic_dims = []
        for number, tensor in enumerate(first):
            shapes = [tensors[number].shape for tensors in others]
            varying = (dim for dim, size in enumerate(tensor.shape) if any(shape[dim] != size for shape in shapes))
            dynamic_dims.append(dict.fromkeys(varying, torch.export.Dim.AUTO))
        with torch.no_grad():
            return torch.export.export(self, tuple(first), dynamic_shapes=(tuple(dynamic_dims),) if others else None)


# ---- precisions ------------------------------------------------------------------------------------------------------


def convert_precision(loaded: LoadedModel, precision: BenchPrecision, side: str) -> LoadedModel:
    """Converts a subject to a precision as a user of PyTorch does, with its model changed in place.

    For bfloat16, the model and its inputs are cast. torchao quantises to integers, except for dynamic quantisation in
    eager, for which PyTorch's own layers have faster kernels. Raises `SideError`.
    """
    if precision == "f32":
        return loaded
    model = loaded.model
    if precision == "bf16":
        if isinstance(model, torch.nn.Module):
            model.to(torch.bfloat16)
        return replace(loaded, inputs=tuple(pytree.tree_map(_as_bfloat16, inputs) for inputs in loaded.inputs))
    if not isinstance(model, torch.nn.Module):
        raise SideError(f"only modules are quantised, not {type(model).__name__}")
    if precision == "int8-dynamic" and side == EAGER:
        return replace(loaded, model=quantize_linears_dynamically(model))
    try:
        if precision == "int8-static":
            return replace(loaded, model=_quantize_statically(model, loaded.inputs[0]))
        from torchao import quantization
    except ImportError as error:
        raise SideError(f"{precision} needs torchao, not installed: pip install 'buddy-tui[bench]'") from error
    if precision == "int8-dynamic":
        quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    else:
        quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return loaded


def quantize_linears_dynamically(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the model with PyTorch's own layers of 8-bit weights, which round activations in each call."""
    from torch.ao.quantization import quantize_dynamic

    layers = {torch.nn.Linear, torch.nn.LSTM, torch.nn.GRU}
    quantised: torch.nn.Module = quantize_dynamic(model, layers, dtype=torch.qint8)
    return quantised


def _quantize_statically(model: torch.nn.Module, inputs: Inputs) -> torch.nn.Module:
    """Returns the model with static scales (PT2E, the quantiser for x86), calibrated on `inputs`."""
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    args, kwargs = inputs
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, args, kwargs, strict=False).module(), quantizer)
    prepared(*args, **kwargs)
    converted: torch.fx.GraphModule = move_exported_model_to_eval(convert_pt2e(prepared))
    if not any("quantize_per" in str(node.target) for node in converted.graph.nodes):
        raise SideError(f"torchao's quantiser changed nothing in the model, with PyTorch {torch.__version__}")
    return converted


def _as_bfloat16(value: Any) -> Any:
    return value.to(torch.bfloat16) if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value

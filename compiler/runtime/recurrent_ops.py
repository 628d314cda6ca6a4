"""The custom torch ops of recurrent layers: each runs one direction of one layer over all steps.

The overload `saving` of an op has gradients, and also returns what they need of each step. An op `*_layer_backward`
goes through the steps in the opposite order and computes the gradients of the sums that enter the gates. The gradients
of the weights and of the steps are products over all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

_library = torch.library.Library("buddy", "FRAGMENT")
_buddy_ops = torch.ops.buddy

# One direction of one layer. `steps` is [time, batch, inputs], or [rows, inputs] of packed sequences, with the number
# of sequences that have each step in `batch_sizes`. Returns the output, of the form of `steps`, and the last states.
_WEIGHT_ARGUMENTS = "Tensor input_weight, Tensor hidden_weight, Tensor? input_bias, Tensor? hidden_bias"
_ORDER_ARGUMENTS = "Tensor? batch_sizes=None, bool reverse=False"
_LSTM = f"(Tensor steps, Tensor hidden, Tensor cell, {_WEIGHT_ARGUMENTS}, Tensor? projection=None, {_ORDER_ARGUMENTS})"
_GRU = f"(Tensor steps, Tensor hidden, {_WEIGHT_ARGUMENTS}, {_ORDER_ARGUMENTS})"
_RNN = f"(Tensor steps, Tensor hidden, {_WEIGHT_ARGUMENTS}, str nonlinearity='tanh', {_ORDER_ARGUMENTS})"
_library.define(f"lstm_layer{_LSTM} -> (Tensor, Tensor, Tensor)")
_library.define(f"gru_layer{_GRU} -> (Tensor, Tensor)")
_library.define(f"rnn_layer{_RNN} -> (Tensor, Tensor)")
# The overloads `saving` also return [time, batch, 4 * width]: for an LSTM, the input, forget, new and output gates, and
# in a further tensor the cell after each step; for a GRU, the reset, update and new gates, and the sum over its state
# that the reset gate multiplies. The new gate is the candidate: g in PyTorch's documentation, n for a GRU. An RNN needs
# only its output. Packed sequences and projections are rejected.
_library.define(f"lstm_layer.saving{_LSTM} -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
_library.define(f"gru_layer.saving{_GRU} -> (Tensor, Tensor, Tensor)")
_library.define(f"rnn_layer.saving{_RNN} -> (Tensor, Tensor)")
# The first arguments are the gradients of the output and of the last states. Returns those of the sums that enter the
# gates, [time, batch, gates * width] (for a GRU, of the sums over the inputs and of those over the states), and those
# of the first states.
_library.define(
    "lstm_layer_backward(Tensor output, Tensor hidden, Tensor cell, Tensor hidden_weight, Tensor gates, Tensor cells, "
    "Tensor cells_before, bool reverse=False) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "gru_layer_backward(Tensor output, Tensor hidden, Tensor hidden_weight, Tensor gates, Tensor states_before, "
    "bool reverse=False) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "rnn_layer_backward(Tensor output, Tensor hidden, Tensor hidden_weight, Tensor states, str nonlinearity='tanh', "
    "bool reverse=False) -> (Tensor, Tensor)"
)

TensorOrNone: TypeAlias = torch.Tensor | None


def _run_layer(
    function: Callable[..., Sequence[torch.Tensor]], steps: torch.Tensor, states: Sequence[torch.Tensor],
    weights: Sequence[TensorOrNone], batch_sizes: TensorOrNone, reverse: bool,
) -> list[torch.Tensor]:  # fmt: skip
    """Runs one direction of a layer by PyTorch's `function`, such as `torch.lstm`.

    `weights` are the input weight, the hidden weight, two biases, and perhaps a projection; one that the layer lacks is
    `None`. With `reverse`, the steps are reversed before the call, and the output after it. Returns the output and the
    last states.
    """
    given_weights = [weight for weight in weights if weight is not None]
    stacked = [state[None] for state in states]
    hidden, has_biases = stacked if len(stacked) > 1 else stacked[0], weights[2] is not None
    # One layer, without dropout, not in training, in one direction.
    options = (given_weights, has_biases, 1, 0.0, False, False)
    if batch_sizes is None:
        output, *last = function(steps.flip(0) if reverse else steps, hidden, *options, False)
        return [output.flip(0) if reverse else output, *(state[0] for state in last)]
    order = _reversed_rows(batch_sizes) if reverse else None
    output, *last = function(steps if order is None else steps[order], batch_sizes, hidden, *options)
    return [output if order is None else output[order], *(state[0] for state in last)]


def _reversed_rows(batch_sizes: torch.Tensor) -> torch.Tensor:
    """Returns, for each row of packed sequences, the row of the same sequence at the opposite step from its end."""
    starts = batch_sizes.cumsum(0) - batch_sizes
    step = torch.arange(len(batch_sizes)).repeat_interleave(batch_sizes)
    sequence = torch.arange(len(step)) - starts[step]
    length = (batch_sizes[:, None] > sequence).sum(0)
    return starts[length - 1 - step] + sequence


def _lstm_layer(
    steps: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, input_weight: TensorOrNone,
    hidden_weight: TensorOrNone, input_bias: TensorOrNone, hidden_bias: TensorOrNone, projection: TensorOrNone = None,
    batch_sizes: TensorOrNone = None, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    weights = (input_weight, hidden_weight, input_bias, hidden_bias, projection)
    return tuple(_run_layer(torch.lstm, steps, (hidden, cell), weights, batch_sizes, reverse))


def _gru_layer(
    steps: torch.Tensor, hidden: torch.Tensor, input_weight: TensorOrNone, hidden_weight: TensorOrNone,
    input_bias: TensorOrNone, hidden_bias: TensorOrNone, batch_sizes: TensorOrNone = None, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    weights = (input_weight, hidden_weight, input_bias, hidden_bias)
    return tuple(_run_layer(torch.gru, steps, (hidden,), weights, batch_sizes, reverse))


def _rnn_layer(
    steps: torch.Tensor, hidden: torch.Tensor, input_weight: TensorOrNone, hidden_weight: TensorOrNone,
    input_bias: TensorOrNone, hidden_bias: TensorOrNone, nonlinearity: str = "tanh",
    batch_sizes: TensorOrNone = None, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    weights, function = (input_weight, hidden_weight, input_bias, hidden_bias), torch.rnn_tanh
    if nonlinearity == "relu":
        function = torch.rnn_relu
    return tuple(_run_layer(function, steps, (hidden,), weights, batch_sizes, reverse))


# ---- gradients -------------------------------------------------------------------------------------------------------


def _step_order(count: int, reverse: bool) -> Iterable[int]:
    """Returns the numbers of `count` steps in the order in which they are computed."""
    return reversed(range(count)) if reverse else range(count)


def _stack_steps(per_step: Sequence[Sequence[torch.Tensor]], reverse: bool) -> list[torch.Tensor]:
    """Stacks the tensors of all steps, which were computed in reverse order if `reverse` is set, in order of time."""
    ordered = per_step[::-1] if reverse else per_step
    return [torch.stack(parts) for parts in zip(*ordered, strict=True)]


def _reject_unsupported(*unsupported: TensorOrNone) -> None:
    """Raises `NotImplementedError` for arguments that the overloads `saving` do not support."""
    if any(value is not None for value in unsupported):
        raise NotImplementedError("packed sequences and projections have no gradients: use the op without `.saving`")


def _lstm_saving(
    steps: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, input_weight: torch.Tensor,
    hidden_weight: torch.Tensor, input_bias: TensorOrNone, hidden_bias: TensorOrNone, projection: TensorOrNone = None,
    batch_sizes: TensorOrNone = None, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    _reject_unsupported(projection, batch_sizes)
    linear, per_step = torch.nn.functional.linear, []
    for inputs in linear(steps, input_weight, input_bias)[list(_step_order(len(steps), reverse))]:
        sums = inputs + linear(hidden, hidden_weight, hidden_bias)
        input_gate, forget_gate, new_gate, output_gate = sums.chunk(4, 1)
        gates = [input_gate.sigmoid(), forget_gate.sigmoid(), new_gate.tanh(), output_gate.sigmoid()]
        cell = gates[1] * cell + gates[0] * gates[2]
        hidden = gates[3] * cell.tanh()
        per_step.append((hidden, torch.cat(gates, 1), cell))
    output, saved, cells = _stack_steps(per_step, reverse)
    return output, hidden, cell, saved, cells


def _gru_saving(
    steps: torch.Tensor, hidden: torch.Tensor, input_weight: torch.Tensor, hidden_weight: torch.Tensor,
    input_bias: TensorOrNone, hidden_bias: TensorOrNone, batch_sizes: TensorOrNone = None, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    _reject_unsupported(batch_sizes)
    linear, per_step = torch.nn.functional.linear, []
    for inputs in linear(steps, input_weight, input_bias)[list(_step_order(len(steps), reverse))]:
        state_sums, input_sums = linear(hidden, hidden_weight, hidden_bias).chunk(3, 1), inputs.chunk(3, 1)
        reset, update = (input_sums[0] + state_sums[0]).sigmoid(), (input_sums[1] + state_sums[1]).sigmoid()
        new = (input_sums[2] + reset * state_sums[2]).tanh()
        hidden = (hidden - new) * update + new
        per_step.append((hidden, torch.cat([reset, update, new, state_sums[2]], 1)))
    output, saved = _stack_steps(per_step, reverse)
    return output, hidden, saved


def _rnn_saving(*arguments: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    return _rnn_layer(*arguments, **options)


# In the next three functions, `output`, `hidden` and `cell` are gradients: of the output, and of the last states.


def _lstm_backward(
    output: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, hidden_weight: torch.Tensor, gates: torch.Tensor,
    cells: torch.Tensor, cells_before: torch.Tensor, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    per_step = []
    for i in _step_order(len(output), not reverse):
        input_gate, forget_gate, new_gate, output_gate = gates[i].chunk(4, 1)
        tanh, hidden_gradient = cells[i].tanh(), hidden + output[i]
        cell_gradient = cell + hidden_gradient * output_gate * (1 - tanh * tanh)
        sums = (
            cell_gradient * new_gate * input_gate * (1 - input_gate),
            cell_gradient * cells_before[i] * forget_gate * (1 - forget_gate),
            cell_gradient * input_gate * (1 - new_gate * new_gate),
            hidden_gradient * tanh * output_gate * (1 - output_gate),
        )  # fmt: skip
        per_step.append([torch.cat(sums, 1)])
        hidden, cell = per_step[-1][0] @ hidden_weight, cell_gradient * forget_gate
    return *_stack_steps(per_step, not reverse), hidden, cell


def _gru_backward(
    output: torch.Tensor, hidden: torch.Tensor, hidden_weight: torch.Tensor, gates: torch.Tensor,
    states_before: torch.Tensor, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    per_step = []
    for i in _step_order(len(output), not reverse):
        reset, update, new, state_sum = gates[i].chunk(4, 1)
        hidden_gradient = hidden + output[i]
        new_gradient = hidden_gradient * (1 - update) * (1 - new * new)
        common = (
            new_gradient * state_sum * reset * (1 - reset),
            hidden_gradient * (states_before[i] - new) * update * (1 - update),
        )  # fmt: skip
        per_step.append([torch.cat([*common, new_gradient], 1), torch.cat([*common, new_gradient * reset], 1)])
        hidden = hidden_gradient * update + per_step[-1][1] @ hidden_weight
    return *_stack_steps(per_step, not reverse), hidden


def _rnn_backward(
    output: torch.Tensor, hidden: torch.Tensor, hidden_weight: torch.Tensor, states: torch.Tensor,
    nonlinearity: str = "tanh", reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    per_step = []
    for i in _step_order(len(output), not reverse):
        slope = 1 - states[i] * states[i] if nonlinearity == "tanh" else states[i] > 0
        per_step.append([(hidden + output[i]) * slope])
        hidden = per_step[-1][0] @ hidden_weight
    return *_stack_steps(per_step, not reverse), hidden


def _states_before(first: torch.Tensor, states: torch.Tensor, reverse: bool) -> torch.Tensor:
    """Returns the states [time, batch, width] before each step, from the first state and those after each step."""
    parts = (states[1:], first[None]) if reverse else (first[None], states[:-1])
    return torch.cat(parts)


def _save_for_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    """Saves what the gradients need: the tensors among the inputs, and all results but the last states.

    The inputs are the steps, the states, four weights and biases, and options. An LSTM has two states and five results.
    """
    n_states = 2 if len(output) == 5 else 1
    n_tensors = 1 + n_states + 4
    tensors = [value for value in inputs[:n_tensors] if isinstance(value, torch.Tensor)]
    first_bias = inputs[1 + n_states + 2]
    ctx.has_biases, ctx.options = first_bias is not None, inputs[n_tensors:]
    ctx.save_for_backward(*tensors, output[0], *output[1 + n_states :])


def _gradients_of_weights(
    ctx: Any, steps: torch.Tensor, before: torch.Tensor, input_weight: torch.Tensor, input_sums: torch.Tensor,
    state_sums: torch.Tensor,
) -> tuple[torch.Tensor, list[TensorOrNone]]:  # fmt: skip
    """Returns the gradient of the steps, and those of the two weights and the two biases (None without biases).

    `before` are the states before each step. `input_sums` and `state_sums` are the gradients of the sums over the
    inputs and over the states, [time, batch, columns].
    """
    input_rows, state_rows = input_sums.flatten(0, 1), state_sums.flatten(0, 1)
    weights = [input_rows.t() @ steps.flatten(0, 1), state_rows.t() @ before.flatten(0, 1)]
    biases = [input_rows.sum(0), state_rows.sum(0)] if ctx.has_biases else [None, None]
    return (input_rows @ input_weight).view(steps.shape), [*weights, *biases]


def _lstm_gradients(ctx: Any, output: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *_: Any) -> Any:
    steps, first, first_cell, input_weight, hidden_weight, *_biases, outputs, gates, cells = ctx.saved_tensors
    reverse = ctx.options[-1]
    before = _states_before(first_cell, cells, reverse)
    sums, *states = _buddy_ops.lstm_layer_backward(output, hidden, cell, hidden_weight, gates, cells, before, reverse)
    states_before = _states_before(first, outputs, reverse)
    step_gradients, weights = _gradients_of_weights(ctx, steps, states_before, input_weight, sums, sums)
    return step_gradients, *states, *weights, None, None, None  # options have no gradients


def _gru_gradients(ctx: Any, output: torch.Tensor, hidden: torch.Tensor, *_: Any) -> Any:
    steps, first, input_weight, hidden_weight, *_biases, outputs, gates = ctx.saved_tensors
    before = _states_before(first, outputs, ctx.options[-1])
    *sums, state = _buddy_ops.gru_layer_backward(output, hidden, hidden_weight, gates, before, ctx.options[-1])
    step_gradients, weights = _gradients_of_weights(ctx, steps, before, input_weight, *sums)
    return step_gradients, state, *weights, None, None


def _rnn_gradients(ctx: Any, output: torch.Tensor, hidden: torch.Tensor) -> Any:
    steps, first, input_weight, hidden_weight, *_biases, outputs = ctx.saved_tensors
    nonlinearity, _batch_sizes, reverse = ctx.options
    sums, state = _buddy_ops.rnn_layer_backward(output, hidden, hidden_weight, outputs, nonlinearity, reverse)
    states_before = _states_before(first, outputs, reverse)
    step_gradients, weights = _gradients_of_weights(ctx, steps, states_before, input_weight, sums, sums)
    return step_gradients, state, *weights, None, None, None


# ---- shapes, and registration ----------------------------------------------------------------------------------------


def _empty_like(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


def _layer_shapes(steps: torch.Tensor, hidden: torch.Tensor, *rest: object, **_: object) -> tuple[torch.Tensor, ...]:
    return steps.new_empty([*steps.shape[:-1], hidden.shape[-1]]), *_empty_like(hidden)


def _lstm_shapes(
    steps: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *rest: object, **_: object
) -> tuple[torch.Tensor, ...]:
    return *_layer_shapes(steps, hidden), *_empty_like(cell)


def _gates_shape(steps: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return steps.new_empty([*steps.shape[:-1], 4 * hidden.shape[-1]])


def _lstm_saving_shapes(
    steps: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *rest: object, **_: object
) -> tuple[torch.Tensor, ...]:
    output, *states = _lstm_shapes(steps, hidden, cell)
    return output, *states, _gates_shape(steps, hidden), *_empty_like(output)


def _gru_saving_shapes(
    steps: torch.Tensor, hidden: torch.Tensor, *rest: object, **_: object
) -> tuple[torch.Tensor, ...]:
    return *_layer_shapes(steps, hidden), _gates_shape(steps, hidden)


def _lstm_backward_shapes(
    output: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, hidden_weight: torch.Tensor, gates: torch.Tensor,
    *rest: object, **_: object,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    return _empty_like(gates, hidden, cell)


def _gru_backward_shapes(
    output: torch.Tensor, hidden: torch.Tensor, *rest: object, **_: object
) -> tuple[torch.Tensor, ...]:
    sums = [output.new_empty([*output.shape[:-1], 3 * output.shape[-1]]) for _ in range(2)]
    return *sums, *_empty_like(hidden)


def _rnn_backward_shapes(
    output: torch.Tensor, hidden: torch.Tensor, *rest: object, **_: object
) -> tuple[torch.Tensor, ...]:
    return _empty_like(output, hidden)


_KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lstm_layer": (_lstm_layer, _lstm_shapes),
    "gru_layer": (_gru_layer, _layer_shapes),
    "rnn_layer": (_rnn_layer, _layer_shapes),
    "lstm_layer.saving": (_lstm_saving, _lstm_saving_shapes),
    "gru_layer.saving": (_gru_saving, _gru_saving_shapes),
    "rnn_layer.saving": (_rnn_saving, _layer_shapes),
    "lstm_layer_backward": (_lstm_backward, _lstm_backward_shapes),
    "gru_layer_backward": (_gru_backward, _gru_backward_shapes),
    "rnn_layer_backward": (_rnn_backward, _rnn_backward_shapes),
}
for _name, (_function, _shapes) in _KERNELS.items():
    _library.impl(_name, _function, "CPU")
    torch.library.register_fake(f"buddy::{_name}", _shapes, lib=_library)
for _name, _backward in (
    ("lstm_layer.saving", _lstm_gradients), ("gru_layer.saving", _gru_gradients), ("rnn_layer.saving", _rnn_gradients),
):  # fmt: skip
    torch.library.register_autograd(f"buddy::{_name}", _backward, setup_context=_save_for_gradients, lib=_library)

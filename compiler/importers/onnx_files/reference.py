"""Runs an ONNX model, with ONNX Runtime if it is installed and with ONNX's own evaluator otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from buddy.compiler.support.target import host_has_features

# Computes a model's results from NumPy arrays, by the names of the inputs.
Evaluate = Callable[[dict[str, Any]], Sequence[Any]]


class Reference:
    """Computes a model's results from tensors in the order of its inputs.

    The evaluator is created at the first call.
    """

    def __init__(self, content: bytes, names: Sequence[str]) -> None:
        self._content, self._names = content, tuple(names)
        self._evaluate: Evaluate | None = None

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._evaluate is None:
            self._evaluate = _make_runtime_evaluation(self._content) or _make_evaluator_evaluation(self._content)
        feeds = {name: tensor.numpy() for name, tensor in zip(self._names, tensors, strict=True)}
        return [torch.as_tensor(result) for result in self._evaluate(feeds)]


def _make_runtime_evaluation(content: bytes) -> Evaluate | None:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Without this, ONNX Runtime multiplies the integers of dequantised tensors by kernels of its own, whose roundings
    # differ from those of the model's ops by a step of the next integers.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if not (host_has_features("avx512_vnni") or host_has_features("avx_vnni")):
        # Without this, sums of two products of 8-bit integers saturate at 16 bits.
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def _make_evaluator_evaluation(content: bytes) -> Evaluate:
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load_model_from_string(content))
    return lambda feeds: evaluator.run(None, feeds)

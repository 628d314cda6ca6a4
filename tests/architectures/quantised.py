"""Measures quantised models: compiled and compared with the same quantised model in eager. Needs torchao.

`python -m tests.architectures.quantised` takes whole models, `--tiny` narrow ones of two layers; names pick some. It
prints the rows of the table in docs/how-to/quantised-models.md. The status is 1 where a result is wrong.

A value between two integers is rounded to either by the last bit of a float. So a model that rounds activations is
far from another correct run of itself, and three numbers are measured, each a largest difference from eager divided by
the largest result: of the compiled model; of the compiled model whose float ops of inexact results stay in eager, which
shows the faults of all others; and of eager itself when the last bits of these float ops are disturbed. `--inductor`
measures the difference of PyTorch's own compiler too, as a last column; it decides nothing.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import buddy.compiler.frontend  # noqa: F401  (registers the back end)
from buddy.compiler.frontend.capture import capture
from tests.architectures.zoo import tensors_in

ROOT = Path(__file__).resolve().parents[2]
Module = torch.nn.Module
Inputs = tuple[torch.Tensor, ...]

# What a result may differ by, where no activation is rounded to an integer: a thousand times the rounding of float32.
CLOSE = 1e-3
# And where float ops are in eager: one step of 256 in one of a thousand summands is more.
EXACT = 1e-5
# Compiled code may be as far from eager as eager from itself; the largest of some thousand differences varies by less.
MULTIPLE = 2.0
# Float ops whose results have another last bit in compiled code than in eager.
INEXACT = (
    "native_layer_norm", "gelu", "silu", "tanh", "sin", "cos", "pow", "rsqrt", "mean", "addmm", "mm", "bmm",
    "convolution", "_softmax", "_scaled_dot_product_flash_attention_for_cpu",
)  # fmt: skip
_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def bert(tiny: bool) -> tuple[Module, Inputs]:
    """BERT-base on 64 tokens."""
    from transformers import BertConfig, BertModel

    config = BertConfig(**({**_SMALL, "vocab_size": 1000} if tiny else {}))
    return BertModel(config).eval(), (torch.randint(config.vocab_size, (1, 16 if tiny else 64)),)


def llama(tiny: bool) -> tuple[Module, Inputs]:
    """Six layers, 512 wide, on 64 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    whole = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8}
    sizes = {**_SMALL, "num_key_value_heads": 2} if tiny else {**whole, "num_key_value_heads": 4}
    config = LlamaConfig(**sizes, vocab_size=1000 if tiny else 8000, use_cache=False)
    return LlamaForCausalLM(config).eval(), (torch.randint(config.vocab_size, (1, 16 if tiny else 64)),)


def resnet(tiny: bool) -> tuple[Module, Inputs]:
    """ResNet-18 of samples/resnet18.py."""
    with patch.object(sys, "argv", ["resnet18.py", *["--tiny"] * tiny]):
        sample = runpy.run_path(str(ROOT / "samples" / "resnet18.py"))
    return sample["model"], (sample["example_inputs"],)


def int8_weights(model: Module, inputs: Inputs) -> Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    return model


def int8_dynamic(model: Module, inputs: Inputs) -> Module:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    return model


def pt2e_static(model: Module, inputs: Inputs) -> Module:
    """Static quantisation of an exported program, calibrated on `inputs`."""
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, inputs, strict=False).module(), quantizer)
    prepared(*inputs)
    return move_exported_model_to_eval(convert_pt2e(prepared))  # type: ignore[no-any-return]


MODELS = {"BERT-base": bert, "Llama": llama, "ResNet-18": resnet}
METHODS = {"int8 weights": int8_weights, "int8 dynamic": int8_dynamic, "PT2E static": pt2e_static}


@dataclass(frozen=True)
class Measured:
    """`compiled`, `float_ops_in_eager` and `disturbed` as the module says; 0 where the last two were not needed.

    `inductor` is the difference of Inductor's results, `None` if it was not asked for."""

    compiled: float
    float_ops_in_eager: float = 0.0
    disturbed: float = 0.0
    inductor: float | None = None

    @property
    def is_right(self) -> bool:
        if self.compiled <= CLOSE:
            return True
        return self.float_ops_in_eager <= EXACT and self.compiled <= MULTIPLE * self.disturbed


class _Disturbed(TorchDispatchMode):
    """While it is entered, one step of the last bit is added to or taken from results of inexact float ops."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        results = op(*args, **(kwargs or {}))
        if op.overloadpacket.__name__ in INEXACT:
            first = results[0] if isinstance(results, tuple) else results
            steps = torch.randint(-1, 2, first.shape, generator=self._generator)
            first.mul_(1 + steps * torch.finfo(first.dtype).eps)
        return results


def quantised(model: str, method: str, tiny: bool) -> tuple[Module, Inputs]:
    """The quantised model, the same at every call."""
    torch.manual_seed(0)
    made, inputs = MODELS[model](tiny)
    with torch.no_grad():
        return METHODS[method](made, inputs), inputs


def measure(module: Module, inputs: Inputs, further: bool = False, inductor: bool = False) -> Measured:
    """The differences of a quantised module; all three where it needs them to be judged, or `further` is asked for."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = list(tensors_in(module(*inputs)))
        compiled = _difference(_compiled(module, {"fallback": "error"})(*inputs), expected)
        peer = _difference(_compiled(module, backend="inductor")(*inputs), expected) if inductor else None
        if compiled <= CLOSE and not further:
            return Measured(compiled, inductor=peer)
        (graph,) = capture(module, inputs)
        names = {op.stable.split("/")[-1].rsplit(".", 1)[0] for op in graph.graph.operations}
        inexact = _compiled(module, {"choices": {name: "eager" for name in INEXACT if name in names}})
        in_eager = _difference(inexact(*inputs), expected)
        with _Disturbed():
            disturbed = _difference(module(*inputs), expected)
    return Measured(compiled, in_eager, disturbed, peer)


def _compiled(module: Module, options: Mapping[str, Any] | None = None, backend: str = "buddy") -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(module, backend=backend, fullgraph=True, options=dict(options) if options else None)


def _difference(found: Any, expected: list[torch.Tensor]) -> float:
    pairs = zip(tensors_in(found), expected, strict=True)
    return max(float((ours - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs)


def row(model: str, method: str, measured: Measured) -> str:
    further = [f"{value:.1e}" for value in (measured.float_ops_in_eager, measured.disturbed)]
    if measured.compiled <= CLOSE:
        further = ["", ""]
    further += [] if measured.inductor is None else [f"{measured.inductor:.1e}"]
    return f"| {model} | {method} | {measured.compiled:.1e} | {' | '.join(further)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all where none is named")
    parser.add_argument("--tiny", action="store_true", help="two narrow layers, an eighth of the channels")
    parser.add_argument("--inductor", action="store_true", help="measure Inductor too")
    options = parser.parse_args()
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"unknown model {unknown[0]!r}; known are {', '.join(MODELS)}")
    right = True
    for model in options.models or MODELS:
        for method in METHODS:
            measured = measure(*quantised(model, method, options.tiny), inductor=options.inductor)
            right = right and measured.is_right
            print(row(model, method, measured), "" if measured.is_right else "WRONG", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

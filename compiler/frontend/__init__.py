"""Imports PyTorch programs: capture by TorchDynamo, `DynamoCompiler`, and the `torch.compile` backend `"buddy"`."""

from buddy.compiler.frontend.backend import buddy_backend, restore_weights
from buddy.compiler.frontend.capture import listening
from buddy.compiler.frontend.compiled_graph import refreeze
from buddy.compiler.frontend.dynamo_compiler import (
    DynamoCompiler,
    TorchCompileBackend,
    dynamo_compiler,
    make_default_torch_backend,
)
from buddy.compiler.frontend.errors import FallbackError, FrontendError, UnsupportedGraphError, VerificationError

__all__ = [
    "DynamoCompiler",
    "FallbackError",
    "FrontendError",
    "TorchCompileBackend",
    "UnsupportedGraphError",
    "VerificationError",
    "buddy_backend",
    "dynamo_compiler",
    "listening",
    "make_default_torch_backend",
    "refreeze",
    "restore_weights",
]

"""Imports PyTorch programs: captures them through TorchDynamo, `DynamoCompiler`, and the backend of `torch.compile`."""

from buddy.compiler.frontend.backend import buddy_backend, refreeze
from buddy.compiler.frontend.capture import listening
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
]

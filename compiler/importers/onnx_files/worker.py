"""Imports an ONNX model: `python -m buddy.compiler.importers.onnx_files.worker`, model in, MLIR text out.

It loads MLIR, which the calling process avoids, and no torch.
"""

from __future__ import annotations

import sys

from buddy.compiler.mlir import bindings

REFUSED = 3


def _written(content: bytes) -> str:
    import onnx

    found, dialect = bindings.onnx_importer(), bindings.torch_dialect()
    assert dialect is not None
    context = bindings.ir.Context()
    dialect.register_dialect(context)
    info = found.ModelInfo(onnx.load_model_from_string(content))
    module = info.create_module(context).operation
    found.NodeImporter.define_function(info.main_graph, module).import_all()
    module.verify()
    return str(module.get_asm(enable_debug_info=True))


def main() -> int:
    try:
        sys.stdout.write(_written(sys.stdin.buffer.read()))
    except Exception as error:  # the importer has no exception type for unsupported models
        line = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
        sys.stderr.write(f"{type(error).__name__}: {line}"[:400])
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())

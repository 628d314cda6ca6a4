"""The process that runs torch-mlir's passes: reads modules of the torch dialect and writes the lowered ones.

`python -m buddy.compiler.ops.torch_mlir.worker`. One JSON object per line: requests are `{"id": …, "text": …}`, answers
the same or `{"id": …, "error": …}`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from buddy.compiler.mlir.bindings import ir, passmanager, torch_dialect

# The passes of `torch_mlir.fx.export_and_import(output_type="linalg-on-tensors")`.
PASSES = (
    "builtin.module(torchdynamo-export-to-torch-backend-pipeline{extra-library=},"
    "torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})"
)


def _answer(text: str, context: Any) -> dict[str, str]:
    said: list[str] = []

    def take(found: Any) -> bool:
        said.append(str(found.message))
        return True

    handler = context.attach_diagnostic_handler(take)
    try:
        module = ir.Module.parse(text, context)
        passmanager.PassManager.parse(PASSES, context=context).run(module.operation)
        return {"text": str(module)}
    except (ir.MLIRError, ValueError) as error:
        told = said or [str(found.message) for found in getattr(error, "error_diagnostics", ())] or [str(error)]
        # The rest of the message is the op in generic form.
        return {"error": told[0].splitlines()[0].partition(":")[0]}
    finally:
        handler.detach()


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    # Output of the passes must not mix with the answers.
    os.dup2(2, 1)
    context = ir.Context()
    dialect = torch_dialect()
    assert dialect is not None
    dialect.register_dialect(context)
    for line in sys.stdin:
        question = json.loads(line)
        answers.write(json.dumps({"id": question["id"], **_answer(question["text"], context)}) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

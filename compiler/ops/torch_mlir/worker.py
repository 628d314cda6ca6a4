"""The worker that runs torch-mlir's passes: it lowers modules of the torch dialect."""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import ir, passmanager, torch_dialect
from buddy.compiler.ops.torch_mlir.apart import LowerModule, ModuleLowered
from buddy.compiler.support.processes.channel import Channel, serves

# The passes of `torch_mlir.fx.export_and_import(output_type="linalg-on-tensors")`.
PASSES = (
    "builtin.module(torchdynamo-export-to-torch-backend-pipeline{extra-library=},"
    "torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})"
)


def _answer(number: int, text: str, context: Any) -> ModuleLowered:
    said: list[str] = []

    def take(found: Any) -> bool:
        said.append(str(found.message))
        return True

    handler = context.attach_diagnostic_handler(take)
    try:
        module = ir.Module.parse(text, context)
        passmanager.PassManager.parse(PASSES, context=context).run(module.operation)
        return ModuleLowered(number, str(module))
    except (ir.MLIRError, ValueError) as error:
        told = said or [str(found.message) for found in getattr(error, "error_diagnostics", ())] or [str(error)]
        # The rest of the message is the op in generic form.
        return ModuleLowered(number, problem=told[0].splitlines()[0].partition(":")[0])
    finally:
        handler.detach()


@serves(LowerModule)
def serve(channel: Channel) -> None:
    context = ir.Context()
    dialect = torch_dialect()
    assert dialect is not None
    dialect.register_dialect(context)
    while (request := channel.receive()) is not None:
        channel.send(_answer(request.number, request.text, context))

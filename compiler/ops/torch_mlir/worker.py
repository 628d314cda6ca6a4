"""The worker process that runs torch-mlir's passes, which lower modules of the torch dialect."""

from __future__ import annotations

from buddy.compiler.mlir.bindings import ir, passmanager, torch_dialect
from buddy.compiler.ops.torch_mlir.separate_process import LowerModule, ModuleLowered
from buddy.compiler.support.processes.channel import Channel, serves

# The passes of `torch_mlir.fx.export_and_import(output_type="linalg-on-tensors")`.
PASSES = (
    "builtin.module(torchdynamo-export-to-torch-backend-pipeline{extra-library=},"
    "torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=true})"
)


def _lower(number: int, text: str, context: ir.Context) -> ModuleLowered:
    """Returns the answer to request `number`: the lowered module, or the first diagnostic."""
    messages: list[str] = []

    def collect(diagnostic: ir.DiagnosticInfo) -> bool:
        messages.append(str(diagnostic.message))
        return True

    handler = context.attach_diagnostic_handler(collect)
    try:
        module = ir.Module.parse(text, context)
        passmanager.PassManager.parse(PASSES, context=context).run(module.operation)
        return ModuleLowered(number, str(module))
    except (ir.MLIRError, ValueError) as error:
        if not messages:
            messages = [str(d.message) for d in getattr(error, "error_diagnostics", ())] or [str(error)]
        # After the colon, the message has the op in generic form.
        return ModuleLowered(number, problem=messages[0].splitlines()[0].partition(":")[0])
    finally:
        handler.detach()


@serves(LowerModule)
def serve(channel: Channel) -> None:
    """Answers requests, one after another, until the channel is closed."""
    context = ir.Context()
    dialect = torch_dialect()
    assert dialect is not None
    dialect.register_dialect(context)
    while (request := channel.receive()) is not None:
        channel.send(_lower(request.number, request.text, context))

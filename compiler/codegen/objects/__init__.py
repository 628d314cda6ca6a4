"""Objects of modules in the LLVM dialect, made here and in processes beside this one."""

from buddy.compiler.codegen.objects.batch import Made, objects_of
from buddy.compiler.codegen.objects.emit import new_context
from buddy.compiler.codegen.objects.workers import start

__all__ = ["Made", "new_context", "objects_of", "start"]

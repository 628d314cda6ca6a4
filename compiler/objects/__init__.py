"""Objects of modules in the LLVM dialect, made here and in processes beside this one."""

from buddy.compiler.objects.batch import Made, objects_of
from buddy.compiler.objects.emit import new_context
from buddy.compiler.objects.workers import start

__all__ = ["Made", "new_context", "objects_of", "start"]

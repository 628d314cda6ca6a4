"""Objects of modules in the LLVM dialect, made here and in processes beside this one."""

from buddy.compiler.objects.batch import objects_of
from buddy.compiler.objects.workers import start

__all__ = ["objects_of", "start"]

"""Compiles modules in the LLVM dialect to objects, in this process and in worker processes."""

from buddy.compiler.codegen.objects.batch import CompiledObject, ObjectCrash, objects_of
from buddy.compiler.codegen.objects.emit import new_context
from buddy.compiler.codegen.objects.workers import start

__all__ = ["CompiledObject", "ObjectCrash", "new_context", "objects_of", "start"]

"""Compiles modules in the LLVM dialect to objects, in this process and in worker processes."""

from buddy.compiler.codegen.objects.workers import (
    CompiledObject,
    ObjectCrash,
    compile_objects,
    new_context,
    start_workers,
)

__all__ = ["CompiledObject", "ObjectCrash", "compile_objects", "new_context", "start_workers"]

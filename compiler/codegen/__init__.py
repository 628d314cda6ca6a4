"""From the LLVM dialect to machine code: objects, calling convention, assembly; GPU kernels and IREE."""
